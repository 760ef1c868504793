"""Text of every kind: bytes, pieces and words, parts by name or by share, the library of datasets, and scores of each."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attractor.errors import InputError, MissingExtraError, StoreError
from attractor.training import Config, list_configs, read_config, train
from attractor.training.data.text import Text, count_words, open_corpus, open_text, split_blocks
from attractor.training.models import LanguageModel, attention_layer

pytest.importorskip("tokenizers", reason="comes with attractor[train]")
LINES = ["The tokens gather, and where they gather they stay.", "Some of them wander: à la mode, naïvely."]
TEXT = "\n".join(LINES * 60) + "\n"
SMALL: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "context": 16, "batch": 4, "steps": 2, "warmup": 1}
SMALL |= {"evaluate": 2, "evaluations": 2, "checkpoint": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Parts by their names, as WikiText has them."""
    made = tmp_path / "wiki"
    made.mkdir()
    for name, text in (("train", TEXT), ("valid", TEXT[:700] + "unheard-of\n"), ("test", TEXT[:500])):
        (made / f"wiki.{name}.tokens").write_text(text, encoding="utf-8")
    return made


def test_parts_by_their_names(folder: Path, tmp_path: Path) -> None:
    corpus = open_corpus(str(folder), (0.9, 0.1), tmp_path / "cache")
    assert list(corpus) == ["train", "validation", "test"]
    assert bytes(corpus["train"]).decode() == TEXT
    assert not (tmp_path / "cache").exists()
    (folder / "wiki.valid.tokens").unlink()
    cut = open_corpus(str(folder), (0.9, 0.1), tmp_path / "cache")
    assert len(cut["validation"]) == len(TEXT.encode()) // 10
    assert bytes(cut["train"]) + bytes(cut["validation"]) == TEXT.encode()


def test_a_file_called_train_by_chance(tmp_path: Path) -> None:
    data = tmp_path / "notes"
    data.mkdir()
    (data / "train-times.txt").write_text("t" * 40)
    (data / "walks.txt").write_text("w" * 60)
    corpus = open_corpus(str(data), (0.9, 0.1), tmp_path / "cache")
    assert bytes(corpus["train"]) == b"t" * 40 + b"w" * 50


def test_parts_by_shares_are_those_of_enwik8(tmp_path: Path) -> None:
    """One file: the first 90 of 100, then 5 and 5, read where it lies."""
    (tmp_path / "enwik8").write_bytes(bytes(range(100)) * 10)
    corpus = open_corpus(str(tmp_path / "enwik8"), read_config("enwik8", data="x").split, tmp_path / "cache")
    assert {part: len(found) for part, found in corpus.items()} == {"train": 900, "validation": 50, "test": 50}
    whole = np.concatenate(list(corpus.values()))
    assert whole.tobytes() == bytes(range(100)) * 10
    assert all(isinstance(found, np.memmap) for found in corpus.values())


def test_files_of_a_folder_are_joined_once(tmp_path: Path) -> None:
    data, cache = tmp_path / "text", tmp_path / "cache"
    (data / "b").mkdir(parents=True)
    (data / "a.txt").write_text("a" * 50)
    (data / "b" / "c.txt").write_text("c" * 50)
    (data / "z.txt").write_text("")
    corpus = open_corpus(str(data), (0.8, 0.2), cache)
    assert bytes(corpus["train"]) == b"a" * 50 + b"c" * 30
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    open_corpus(str(data), (0.8, 0.2), cache)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    (data / "a.txt").write_text("A" * 50)  # as long as before
    assert bytes(open_corpus(str(data), (0.8, 0.2), cache)["train"]) == b"A" * 50 + b"c" * 30


def test_pieces_are_learned_from_training_text_alone(folder: Path, tmp_path: Path) -> None:
    config = Config(str(folder), tokens="bpe", vocabulary=300, **SMALL)
    text = open_text(config, tmp_path / "cache")
    assert 256 < text.vocabulary <= 300
    from tokenizers import Tokenizer

    learned = next((tmp_path / "cache").glob("bpe300.*.json"))
    tokenizer = Tokenizer.from_file(str(learned))
    assert tokenizer.decode(text.text_parts["train"].tokens.tolist()) == TEXT
    held = text.text_parts["validation"]
    whole = (folder / "wiki.valid.tokens").read_bytes()
    assert (held.bytes, held.words) == (len(whole), len(whole.split()))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    open_text(config, tmp_path / "cache")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == before
    # a tokenizer that is given is taken as it is
    given = open_text(Config(str(folder), tokens="bpe", tokenizer=str(learned), **SMALL), tmp_path / "other")
    assert np.array_equal(given.text_parts["test"].tokens, text.text_parts["test"].tokens)
    (tmp_path / "wrong.json").write_text("{}")
    with pytest.raises(StoreError, match=r"wrong\.json is not a file of the tokenizers library"):
        open_text(Config(str(folder), tokens="bpe", tokenizer=str(tmp_path / "wrong.json"), **SMALL), tmp_path / "c")
    with pytest.raises(InputError, match=r"none\.json is not a file"):
        open_text(Config(str(folder), tokens="bpe", tokenizer=str(tmp_path / "none.json"), **SMALL), tmp_path / "c")


def test_words_are_ordered_by_how_often_they_come(folder: Path, tmp_path: Path) -> None:
    text = open_text(Config(str(folder), tokens="words", **SMALL), tmp_path / "cache")
    assert text.vocabulary == len(set(TEXT.split())) + 2
    train = text.text_parts["train"].tokens
    assert len(train) == len(TEXT.split()) + TEXT.count("\n")
    counts = np.bincount(train, minlength=text.vocabulary)
    assert all(counts[:-1] >= counts[1:])
    # a word that training text has not is unknown, the last of all
    assert text.vocabulary - 1 in text.text_parts["validation"].tokens
    assert text.vocabulary - 1 not in train


def test_blocks_end_with_lines_and_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.training.data.text.TOKEN_BLOCK", 100)
    monkeypatch.setattr("attractor.training.data.text.BLOCK", 7)
    whole = np.frombuffer(TEXT.encode(), dtype=np.uint8)
    found = list(split_blocks(whole))
    assert "".join(found) == TEXT
    assert len(found) > 20
    assert all(block.endswith("\n") for block in found)
    assert count_words(whole) == len(TEXT.split())
    assert count_words(np.frombuffer(b"  two   words ", dtype=np.uint8)) == 2


def spell(word: str, text: str) -> float:
    """Bits of a word with its end, byte by byte, at the frequencies in the different words of a text, each counted once more."""
    words = {*text.split(), "<unk>", "<eos>"}
    counts = Counter(byte for known in words for byte in known.encode())
    total = counts.total() + len(words) + 257
    return -sum(math.log2((counts[byte] + 1) / total) for byte in word.encode()) - math.log2((len(words) + 1) / total)


def test_unknown_words_are_not_free(folder: Path, tmp_path: Path) -> None:
    """A model that predicts every token with certainty still has to spell the words that are not in the training text."""
    text = open_text(Config(str(folder), tokens="words", **SMALL), tmp_path / "cache")
    cut = TEXT[:500].split()[-1]  # the only word of the test part that the training text does not have
    assert cut not in TEXT.split()
    assert set(TEXT[:500].split()[:-1]) <= set(TEXT.split())
    found = text.scores("test", {"loss": 0.0, "count": 1})["bits_per_byte"]
    assert found == pytest.approx(spell(cut, TEXT) / len(TEXT[:500].encode()))
    assert text.scores("validation", {"loss": 0.0, "count": 1})["bits_per_byte"] > 0.05


def test_scores_of_a_uniform_model(folder: Path, tmp_path: Path) -> None:
    """A model that knows nothing needs log2(v) bits for each token, whatever a token is."""
    for tokens in ("bytes", "bpe", "words"):
        text = open_text(Config(str(folder), tokens=tokens, vocabulary=280, **SMALL), tmp_path / "cache")
        held, nats = text.text_parts["validation"], math.log(text.vocabulary)
        scores = text.scores("validation", {"loss": 70 * nats, "count": 70})
        assert scores["perplexity"] == pytest.approx(text.vocabulary)
        bits = len(held.tokens) * math.log2(text.vocabulary)
        words = (folder / "wiki.valid.tokens").read_text(encoding="utf-8").split() if tokens == "words" else []
        spelling = sum(spell(word, TEXT) for word in words if word not in TEXT.split())
        assert scores["bits_per_byte"] == pytest.approx((bits + spelling) / held.bytes)
        assert math.log2(scores["word_perplexity"]) == pytest.approx(bits / held.words)


def test_evaluation_wants_every_token_once() -> None:
    text = Text(50, 8, {"validation": SimpleNamespace(tokens=np.arange(43))})  # type: ignore[dict-item]
    wanted = torch.cat([wanted.flatten() for _, wanted in text.evaluation("validation", 2, 0)])
    assert sorted(wanted.tolist()) == list(range(1, 43))
    some = list(text.evaluation("validation", 2, 3))
    assert [tuple(given.shape) for given, _ in some] == [(2, 8), (1, 8)]


def test_the_adaptive_softmax_is_a_softmax(folder: Path) -> None:
    """Its probabilities over all words add up to one, and training lowers the loss."""
    torch.manual_seed(0)
    model = LanguageModel(Config(str(folder), **SMALL, cutoffs=(5, 12)), 20)
    given = torch.randint(0, 20, (1, 16))
    assert model.adaptive is not None
    with torch.no_grad():
        last = model.backbone(model.embedding(given)).flatten(0, 1)
        whole = model.adaptive.log_prob(last)
        torch.testing.assert_close(whole.exp().sum(-1), torch.ones(16))
        wanted = torch.randint(0, 20, (1, 16))
        one = -whole.gather(1, wanted.view(-1, 1)).mean()
        torch.testing.assert_close(model(given, wanted), one)


@pytest.mark.parametrize("tokens", ["bpe", "words"])
def test_runs_on_tokens(tokens: str, folder: Path, tmp_path: Path) -> None:
    cutoffs = (5, 10) if tokens == "words" else ()
    config = Config(str(folder), tokens=tokens, vocabulary=270, cutoffs=cutoffs, test=True, **SMALL)
    scores = train(config, tmp_path / "run").scores
    assert {"perplexity", "word_perplexity", "bits_per_byte", "test_perplexity", "test_loss"} <= set(scores)
    assert (tmp_path / "run" / "data").is_dir()


class Library:
    """The part of the ``datasets`` library that is used, with WikiText's three parts."""

    asked: tuple[Any, ...] = ()

    @classmethod
    def load_dataset(cls, name: str, configuration: str | None) -> dict[str, Any]:
        cls.asked = name, configuration
        return {part: Rows(LINES * count) for part, count in (("train", 30), ("validation", 5), ("test", 4))}


class Rows(list[dict[str, str]]):
    column_names = ("text",)

    def __init__(self, lines: list[str]) -> None:
        super().__init__({"text": line} for line in lines)


def test_text_of_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", Library)  # type: ignore[arg-type]
    config = Config("datasets:Salesforce/wikitext:wikitext-103-raw-v1", **SMALL)
    text = open_text(config, tmp_path / "cache")
    assert Library.asked == ("Salesforce/wikitext", "wikitext-103-raw-v1")
    assert bytes(text.text_parts["test"].tokens).decode() == "\n".join(LINES * 4) + "\n"
    Rows.column_names = ("page",)  # type: ignore[assignment]
    with pytest.raises(InputError, match="no column 'text', but page"):
        open_text(config, tmp_path / "again")
    Rows.column_names = ("text",)

    def unreachable(name: str, configuration: str | None) -> None:
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr(Library, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"cannot load Salesforce/wikitext: Couldn't reach the Hub$"):
        open_text(config, tmp_path / "again")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"attractor\[data\]"):
        open_text(config, tmp_path / "again")


def test_configurations_of_the_publication_follow_its_code() -> None:
    text = read_config("enwik8", data="x")
    assert {text.learning_rate(step) for step in (0, 1, 12_000, 24_999)} == {6e-4}
    images = read_config("imagenet", data="x")
    assert (images.clip, images.rate, images.learning_rate(images.steps)) == (0.0, 1e-3, pytest.approx(1e-5))
    words = read_config(
        "wikitext103", data="x", attention="divergent", orientation="official", options={"solve": "product"}
    )
    layer: Any = attention_layer(dataclasses.replace(words, dim=16, heads=2), 0)
    assert layer.core.solve == "product"


@pytest.mark.parametrize("name", list_configs())
def test_shipped_configurations_are_models(name: str) -> None:
    """Every shape can be built (on no device) with a vocabulary of the size it is meant for."""
    from attractor.training.models import VisionModel

    config = read_config(name, data="x")
    with torch.device("meta"):
        if config.task == "images":
            side = {"tiny-vit": 8, "cifar10": 32}.get(name, config.size)
            model: Any = VisionModel(config, (side, side, 3), 10, [0.5] * 3, [0.2] * 3)
        else:
            model = LanguageModel(config, {"words": 267735, "bpe": config.vocabulary, "bytes": 256}[config.tokens])
    sizes = {"imagenet": 5_720_000 - 990 * 193, "enwik8": 19_570_000}
    if name in sizes:  # DeiT-tiny has 5.72 million with 1000 classes
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == pytest.approx(sizes[name], rel=0.01)
