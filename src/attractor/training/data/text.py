"""Text data: corpora, tokenisation and batches."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attractor.errors import InputError, StoreError, missing
from attractor.files import checksum_file, dump_json, read_json, write_atomic, write_text
from attractor.training.config import Config
from attractor.training.data.batches import LIBRARY, Batch, find_paths, sample_numbers, sample_places, spread

NAMES = {"train": "train", "valid": "validation", "validation": "validation", "dev": "validation", "test": "test"}
SHARES = ("train", "validation", "test")
BLOCK = 1 << 24


def open_corpus(data: str, split: Sequence[float], cache: Path) -> dict[str, np.ndarray]:
    """Return the parts of a corpus as memory-mapped bytes; files of a folder are joined in the order of their names.

    Files named after parts (wiki.train.raw, valid.txt, test.txt) are those parts; other text is divided by the shares of ``split``.
    """
    if data.startswith(LIBRARY):
        return _by_files(_from_library(data.removeprefix(LIBRARY), cache / "datasets"), data, split, cache)
    files = [file for path in find_paths(data) for file in _files(path)]
    return _by_files(files, data, split, cache)


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _by_files(files: list[Path], data: str, split: Sequence[float], cache: Path) -> dict[str, np.ndarray]:
    named: dict[str, list[Path]] = {}
    for file in files:
        words = file.name.lower().replace("-", ".").replace("_", ".").split(".")
        for word, part in NAMES.items():
            if word in words:
                named.setdefault(part, []).append(file)
                break
    # one file with such a name by chance must not replace the others
    if "train" in named and ("validation" in named or sum(map(len, named.values())) == len(files)):
        parts = {part: _map_files(named[part], cache / f"{part}.txt") for part in SHARES if part in named}
        if "validation" in parts:
            return parts
        whole = parts.pop("train")
        return {**_cut(whole, (1 - split[1], split[1])), **parts}
    if sum(file.stat().st_size for file in files) == 0:
        raise InputError(f"{data} holds 0 bytes in {len(files)} files: give a file or a folder of text")
    return _cut(_map_files(files, cache / "corpus.txt"), split)


def _cut(whole: np.ndarray, split: Sequence[float]) -> dict[str, np.ndarray]:
    """Divide text into shares; the first one takes the rounding error."""
    sizes = [int(share * len(whole)) for share in split[1:]]
    ends = np.cumsum([len(whole) - sum(sizes), *sizes])
    return {part: whole[end - size : end] for part, end, size in zip(SHARES, ends, [ends[0], *sizes], strict=False)}


def _map_files(files: list[Path], joined: Path) -> np.ndarray:
    """Memory-map the bytes of files; several are joined into one file first."""
    files = [file for file in files if file.stat().st_size]
    if not files:
        return np.zeros(0, dtype=np.uint8)
    if len(files) == 1:
        return np.memmap(files[0], dtype=np.uint8, mode="r")
    content = _hash_files(files)
    joined = joined.with_suffix(f".{content}{joined.suffix}")
    if not joined.exists() or _hash_files([joined]) != content:  # damaged
        joined.parent.mkdir(parents=True, exist_ok=True)
        with (
            write_atomic(joined) as temporary,
            temporary.open("wb") as target,
        ):  # processes of one run may write at once
            for file in files:
                with file.open("rb") as source:
                    shutil.copyfileobj(source, target)
    return np.memmap(joined, dtype=np.uint8, mode="r")


def _is_cached(path: Path) -> bool:
    """Whether a file of the cache is there and has its checksum; a damaged one is written again."""
    try:
        return checksum_file(path) == path.with_name(f"{path.name}.sha256").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return False


@contextmanager
def _caching(path: Path) -> Iterator[Path]:
    """Write a file of the cache atomically, then its checksum."""
    with write_atomic(path) as temporary:
        yield temporary
    write_text(path.with_name(f"{path.name}.sha256"), checksum_file(path) + "\n")


def _hash_files(files: list[Path]) -> str:
    """Return a short hash of the contents of files."""
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as source:
            while block := source.read(BLOCK):
                found.update(block)
    return found.hexdigest()[:16]


def _from_library(name: str, folder: Path) -> list[Path]:
    """Write NAME or NAME:CONFIGURATION of the ``datasets`` library as one text file per part."""
    loaded = load_dataset(name)
    folder /= hashlib.sha256(name.encode()).hexdigest()[:16]  # a shared folder may hold other datasets
    found = []
    for part in ("train", "validation", "test"):
        if part not in loaded:
            continue
        path = folder / f"{part}.txt"
        found.append(path)
        if _is_cached(path):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with _caching(path) as temporary, temporary.open("wb") as target:
            for text in _texts(loaded[part], name):
                target.write(text.encode() if text.endswith("\n") else text.encode() + b"\n")
    if not found:
        raise InputError(f"the dataset {name} has none of the parts train, validation and test, but {list(loaded)}")
    return found


def load_dataset(name: str) -> Any:
    """Load a dataset of the ``datasets`` library: a name on its hub, NAME:CONFIGURATION, or a folder of ``save_to_disk``."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise missing("datasets", "data") from None
    if Path(name).is_dir() and any((Path(name) / mark).exists() for mark in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(name)
    base, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(base, configuration or None)
    except Exception as error:  # errors of the network, the hub and files have no common class
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"the datasets library cannot load {base}: {reason}") from None


def _texts(part: Any, name: str) -> Iterable[str]:
    if "text" not in part.column_names:
        raise InputError(f"the dataset {name} has no column 'text', but {', '.join(part.column_names)}")
    return (row["text"] for row in part)


def count_words(text: np.ndarray) -> int:
    """Count runs of bytes without white space."""
    count, before = 0, True
    for start in range(0, len(text), BLOCK):
        blank = np.isin(np.asarray(text[start : start + BLOCK]), np.frombuffer(b" \t\n\r\v\f", dtype=np.uint8))
        count += int((blank[:-1] & ~blank[1:]).sum()) + int(before and not blank[0])
        before = bool(blank[-1])
    return count


TOKEN_BLOCK, CHUNK = 1 << 20, 1 << 14
UNKNOWN, END = "<unk>", "<eos>"
Encode = Callable[[str], list[int]]


def tokenize(config: Config, corpus: dict[str, np.ndarray], cache: Path) -> tuple[int, dict[str, np.ndarray]]:
    """Return the size of the vocabulary and the tokens of every part, memory-mapped from files in ``cache``."""
    cache.mkdir(parents=True, exist_ok=True)
    vocabulary, encode, key = (_open_bpe if config.tokens == "bpe" else _open_words)(config, corpus["train"], cache)
    kind = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    numbers = {}
    for part, text in corpus.items():
        # the name depends on the text and the vocabulary
        path = cache / f"{part}.{_hash_text(text, key)}.tokens"
        if not _is_cached(path):
            with _caching(path) as temporary, temporary.open("wb") as target:
                for block in split_blocks(text):
                    target.write(np.asarray(encode(block), dtype=kind).tobytes())
        numbers[part] = np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.zeros(0, dtype=kind)
    return vocabulary, numbers


def split_blocks(text: np.ndarray) -> Iterator[str]:
    """Yield text of about a million bytes at a time, divided at line ends; invalid UTF-8 becomes the replacement character."""
    start = 0
    while start < len(text):
        end = min(len(text), start + TOKEN_BLOCK)
        part = bytes(text[start:end])
        if end < len(text):
            cut = part.rfind(b"\n") + 1
            part = part[: cut or len(part)]
        start += len(part)
        yield part.decode("utf-8", errors="replace")


def _split_chunks(text: str) -> list[str]:
    """Split text into chunks that end at line ends."""
    found, start = [], 0
    while start < len(text):
        end = text.find("\n", start + CHUNK) + 1 or len(text)
        found.append(text[start:end])
        start = end
    return found


def _open_bpe(config: Config, train: np.ndarray, cache: Path) -> tuple[int, Encode, str]:
    """Return a byte-level BPE from a file tokenizer.json, or one learned from the training text and kept in ``cache``."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise missing("tokenizers", "train") from None
    path = Path(config.tokenizer) if config.tokenizer else cache / f"bpe{config.vocabulary}.{_hash_text(train)}.json"
    if config.tokenizer and not path.is_file():
        raise InputError(f"the tokenizer {path} is not a file: give a tokenizer.json, or leave it out to learn one")
    if not config.tokenizer and not _is_cached(path):
        learned: Any = Tokenizer(models.BPE())
        learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        learned.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=config.vocabulary, initial_alphabet=alphabet, show_progress=False)
        learned.train_from_iterator(split_blocks(train), trainer)
        with _caching(path) as temporary:
            learned.save(str(temporary))
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise StoreError(f"{path} is not a file of the tokenizers library: {error}") from None

    def encode(text: str) -> list[int]:
        parts = tokenizer.encode_batch_fast(_split_chunks(text), add_special_tokens=False)  # on all cores
        return list(chain.from_iterable(part.ids for part in parts))

    return tokenizer.get_vocab_size(), encode, hashlib.sha256(path.read_bytes()).hexdigest()


def _open_words(config: Config, train: np.ndarray, cache: Path) -> tuple[int, Encode, str]:
    """Return an encoder of words between white space, with an end token after every line; the most frequent word is first."""
    path = cache / f"words.{_hash_text(train)}.json"
    if not _is_cached(path):
        counts: Counter[str] = Counter()
        for block in split_blocks(train):
            for line in block.splitlines():
                counts.update(line.split())
                counts[END] += 1
        counts.setdefault(UNKNOWN, 0)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        with _caching(path) as temporary:
            temporary.write_text(dump_json(ordered), encoding="utf-8")
    ordered = read_json(path)
    index = {word: number for number, word in enumerate(ordered)}
    unknown, end = index[UNKNOWN], index[END]

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for line in text.splitlines():
            found += [index.get(word, unknown) for word in line.split()]
            found.append(end)
        return found

    return len(ordered), encode, hashlib.sha256(path.read_bytes()).hexdigest()


def _hash_text(text: np.ndarray, key: str = "") -> str:
    """Return a short hash of a text and of the key of its encoder."""
    found = hashlib.sha256(f"{len(text)} {key} ".encode())
    for start in range(0, len(text), TOKEN_BLOCK):
        found.update(text[start : start + TOKEN_BLOCK].tobytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class TextPart:
    """Tokens of one part (memory-mapped), and the bytes and words of its text."""

    tokens: np.ndarray
    bytes: int
    words: int


@dataclass(frozen=True)
class Text:
    """Windows of ``context`` tokens and the tokens that follow each."""

    vocabulary: int
    context: int
    text_parts: dict[str, TextPart]

    def parts(self) -> tuple[str, ...]:
        return tuple(self.text_parts)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """Return inputs and targets, (size, context) each, at random places."""
        text = self.text_parts["train"].tokens
        places = sample_places(len(text) - self.context, seed, sample_numbers(size, number, rank, world))
        return self._cut(text, places, self.context)

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """Yield all of a part, each token once as a target, or ``count`` windows spread over it."""
        text = self.text_parts[part].tokens
        last = len(text) - self.context - 1
        places = spread(last + 1, count) if count else np.arange(0, last + 1, self.context)
        for start in range(0, len(places), size):
            yield self._cut(text, places[start : start + size], self.context)
        rest = (len(text) - 1) % self.context
        if rest and not count:
            yield self._cut(text, np.array([len(text) - 1 - rest]), rest)

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        """Return loss in nats per token, perplexity per token and per word, and bits per byte."""
        loss, piece = totals["loss"] / totals["count"], self.text_parts[part]
        each_word, each_byte = (len(piece.tokens) / max(1, count) for count in (piece.words, piece.bytes))
        return {
            "loss": loss,
            "perplexity": _exp(loss),
            "word_perplexity": _exp(loss * each_word),
            "bits_per_byte": loss * each_byte / math.log(2),
        }

    def _cut(self, text: np.ndarray, places: np.ndarray, length: int) -> Batch:
        whole = np.stack([text[place : place + length + 1] for place in places]).astype(np.int64)
        windows = torch.from_numpy(whole)
        return windows[:, :-1], windows[:, 1:]


def open_text(config: Config, cache: Path) -> Text:
    """Open the text of a configuration."""
    corpus = open_corpus(config.data, config.split, cache)
    if config.tokens == "bytes":
        vocabulary, numbers = 256, corpus
    else:
        vocabulary, numbers = tokenize(config, corpus, cache)
    need = config.context + 1
    for part in ("train", "validation"):
        if len(numbers[part]) < need:
            raise InputError(
                f"{config.data} holds {len(corpus[part])} bytes ({len(numbers[part])} tokens) for {part}; "
                f"with a context of {config.context} a run needs at least {need} tokens there"
            )
    text_parts = {
        part: TextPart(numbers[part], len(corpus[part]), 0 if part == "train" else count_words(corpus[part]))
        for part in corpus
        if len(numbers[part]) >= need
    }
    return Text(vocabulary, config.context, text_parts)


def _exp(loss: float) -> float:
    """Return exp(loss), with the loss limited so that it does not overflow."""
    return math.exp(min(loss, 700.0))
