"""Tokenizers from vocab.txt alone, and which files of a folder are the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.checkpoints.running import token_ids, tokenizer_of
from attractor.checkpoints.vocabulary import from_vocabulary
from attractor.errors import CheckpointError, InputError

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(folder: Path, *entries: str, marks: list[str] = MARKS) -> Path:
    file = folder / "vocab.txt"
    file.write_text("\n".join([*marks, *entries]) + "\n")
    return file


def tokens(file: Path, text: str) -> list[str]:
    tokenizer = from_vocabulary(file)
    return tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])


def test_pieces_of_words_are_split_as_bert_does(tmp_path: Path) -> None:
    lower = vocabulary(tmp_path, "play", "##ing", "##ed", ",", "we")
    assert tokens(lower, "We, playing") == ["[CLS]", "we", ",", "play", "##ing", "[SEP]"]
    cased = vocabulary(tmp_path, "Play", "play", "##ing", "We")
    assert tokens(cased, "We Playing playing we") == ["[CLS]", "We", "Play", "##ing", "play", "##ing", "[UNK]", "[SEP]"]


@pytest.mark.parametrize("cased", [False, True])
def test_words_against_the_tokenizer_of_transformers(tmp_path: Path, cased: bool) -> None:
    from transformers import BertTokenizer

    entries = ["play", "##ing", ",", "naive", "na", "##i", "##ve", "7", "\u6f22", "##s", *(["Play"] if cased else [])]
    file = vocabulary(tmp_path, *entries)
    original: Any = BertTokenizer(vocab=str(file), do_lower_case=not cased)
    for text in ("Playing, playings na\u00efve", "a [MASK] naives 77", "\u6f22\u6f22 play\u00a0play\t,"):
        assert from_vocabulary(file)(text)["input_ids"] == original(text)["input_ids"]


def test_symbols_are_cut_into_the_longest_entries(tmp_path: Path) -> None:
    """Chlorine is not carbon, an atom in brackets is one symbol, and nothing is said to be upper case by [CLS]."""
    molecules = vocabulary(tmp_path, "C", "Cl", "O", "=", "(", ")", "[Na+]", ".", "c", "1")
    assert tokens(molecules, "CC(=O)Cl.[Na+] c1")[1:-1] == ["C", "C", "(", "=", "O", ")", "Cl", ".", "[Na+]", "c", "1"]
    proteins = vocabulary(tmp_path, *"ACDEFGHIKLMNPQRSTVWY")
    assert tokens(proteins, "EVQ LV")[1:-1] == tokens(proteins, "E V Q L V")[1:-1] == list("EVQLV")
    small = vocabulary(tmp_path, *"acgt")
    assert tokens(small, "ACgt")[1:-1] == list("acgt")


def test_what_is_no_vocabulary_of_bert(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no entry \[CLS\]"):
        from_vocabulary(vocabulary(tmp_path, "a", marks=["[UNK]", "[SEP]"]))
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="cannot be read as a vocabulary"):
        from_vocabulary(tmp_path / "vocab.txt")


def test_a_folder_with_a_vocabulary_alone_is_traced(tmp_path: Path) -> None:
    model: Any = random_model("BERT, MiniLM")
    model.save_pretrained(tmp_path)
    vocabulary(tmp_path, *"ACDEFGHIKLMNPQRSTVWY")
    opened = at.checkpoint(tmp_path)
    assert tokenizer_of(opened).unk_token == "[UNK]"
    assert len(at.trace(opened, "EVQLV").words) == 7
    ids, words = token_ids(opened, "AC")
    assert (ids.tolist(), words) == ([2, 5, 6, 3], ["[CLS]", "A", "C", "[SEP]"])
    with pytest.raises(InputError, match="knows nothing of the text 'hello'"):
        token_ids(opened, "hello")


def test_weights_are_found_by_their_name(tmp_path: Path) -> None:
    """Files that training leaves beside the weights come first in the alphabet, and are none."""
    model: Any = random_model("GPT-2")
    model.config.save_pretrained(tmp_path)
    state = model.state_dict()
    torch.save({"state": torch.zeros(1)}, tmp_path / "optimizer.bin")
    torch.save(state, tmp_path / "weights.bin")
    assert at.checkpoint(tmp_path).layers[0].heads == 4
    torch.save(state, tmp_path / "again.bin")
    with pytest.raises(CheckpointError, match=r"several files that could be the weights \(again.bin, weights.bin\)"):
        at.checkpoint(tmp_path)
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert at.checkpoint(tmp_path).layers[0].heads == 4
    for file in tmp_path.glob("*.bin"):
        file.unlink()
    torch.save({"state": torch.zeros(1)}, tmp_path / "optimizer.pt")
    with pytest.raises(CheckpointError, match="holds no weights"):
        at.checkpoint(tmp_path)
