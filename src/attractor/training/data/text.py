"""Text data: corpora, tokenisation and batches."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

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


class Tokenizer:
    """The tokens of a run: bytes.

    It is called and decodes as a tokenizer of ``transformers``.

    Attributes
    ----------
    size : number of different tokens.
    file : file that holds them; None for bytes.
    unk_token_id : token of unknown words, if there is one.
    """

    name: ClassVar[str] = ""  # of the file in the folder of a run
    all_special_ids: ClassVar[tuple[int, ...]] = ()

    def __init__(self, size: int = 256, file: Path | None = None) -> None:
        self.size, self.file = size, file
        self.unk_token_id: int | None = None

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens."""
        return bytes(ids).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return every token as a string."""
        return [self.decode([index]) if 32 <= index < 127 else f"0x{index:02x}" for index in ids]

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}

    def spell_unknown(self, text: np.ndarray) -> float:
        """Return the nats for the spelling of the words of a text that have no token."""
        return 0.0


class PieceTokenizer(Tokenizer):
    """Byte-level BPE, from a file tokenizer.json."""

    name = "tokenizer.json"

    def __init__(self, file: Path) -> None:
        try:
            from tokenizers import Tokenizer as Pieces
        except ImportError:
            raise missing("tokenizers", "train") from None
        try:
            self._pieces: Any = Pieces.from_file(str(file))
        except Exception as error:  # the library raises the bare class
            raise StoreError(f"{file} is not a file of the tokenizers library: {error}") from None
        super().__init__(self._pieces.get_vocab_size(), file)

    def encode(self, text: str) -> list[int]:
        parts = self._pieces.encode_batch_fast(_split_chunks(text), add_special_tokens=False)  # on all cores
        return list(chain.from_iterable(part.ids for part in parts))

    def decode(self, ids: Iterable[int]) -> str:
        return self._pieces.decode(list(ids))

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces.id_to_token(index) or "" for index in ids]


class WordTokenizer(Tokenizer):
    """Words between white space, with an end token after every line; the most frequent word is first."""

    name = "words.json"

    def __init__(self, file: Path) -> None:
        try:
            self._words: list[str] = list(read_json(file))
            self._index = {word: number for number, word in enumerate(self._words)}
            unknown, self._end = self._index[UNKNOWN], self._index[END]
        except (OSError, ValueError, KeyError, TypeError):
            raise StoreError(f"{file} is not a list of words with {UNKNOWN} and {END}") from None
        super().__init__(len(self._words), file)
        self.unk_token_id: int | None = unknown

    def encode(self, text: str) -> list[int]:
        assert self.unk_token_id is not None
        found: list[int] = []
        for line in text.splitlines():
            found += [self._index.get(word, self.unk_token_id) for word in line.split()]
            found.append(self._end)
        return found

    def decode(self, ids: Iterable[int]) -> str:
        words = (self._words[index] for index in ids)
        return " ".join("\n" if word == END else word for word in words).replace(" \n ", "\n").replace(" \n", "\n")

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self._words[index] for index in ids]

    def spell_unknown(self, text: np.ndarray) -> float:
        """Return the nats of unknown words, byte by byte with an end, at the frequencies of bytes in the known words."""
        cost: np.ndarray | None = None
        total = 0.0
        for block in split_blocks(text):
            for word in block.split():
                if word not in self._index:
                    cost = self._byte_costs() if cost is None else cost
                    total += float(cost[list(word.encode())].sum() + cost[256])
        return total

    def _byte_costs(self) -> np.ndarray:
        """Return the nats of every byte, and of the end of a word, (257,)."""
        joined = np.frombuffer("".join(self._words).encode(), dtype=np.uint8)
        counts = np.append(np.bincount(joined, minlength=256), len(self._words)) + 1.0
        return np.log(counts.sum() / counts)


TOKENIZERS: dict[str, type[Tokenizer]] = {"bytes": Tokenizer, "bpe": PieceTokenizer, "words": WordTokenizer}


def read_tokenizer(tokens: str, folder: Path) -> Tokenizer:
    """Return the tokenizer that is stored in the folder of a run, for its kind of ``tokens``."""
    kind: Any = TOKENIZERS[tokens]
    return kind(folder / kind.name) if kind.name else kind()


def tokenize(config: Config, corpus: dict[str, np.ndarray], cache: Path) -> tuple[Tokenizer, dict[str, np.ndarray]]:
    """Return the tokenizer and the tokens of every part, memory-mapped from files in ``cache``."""
    cache.mkdir(parents=True, exist_ok=True)
    tokenizer = (_open_bpe if config.tokens == "bpe" else _open_words)(config, corpus["train"], cache)
    assert tokenizer.file is not None
    key = checksum_file(tokenizer.file)
    kind = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.uint32)
    numbers = {}
    for part, text in corpus.items():
        # the name depends on the text and the vocabulary
        path = cache / f"{part}.{_hash_text(text, key)}.tokens"
        if not _is_cached(path):
            with _caching(path) as temporary, temporary.open("wb") as target:
                for block in split_blocks(text):
                    target.write(np.asarray(tokenizer.encode(block), dtype=kind).tobytes())
        numbers[part] = np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.zeros(0, dtype=kind)
    return tokenizer, numbers


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


def _open_bpe(config: Config, train: np.ndarray, cache: Path) -> Tokenizer:
    """Return a byte-level BPE from a file tokenizer.json, or one learned from the training text and kept in ``cache``."""
    try:
        from tokenizers import Tokenizer as Pieces
        from tokenizers import decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise missing("tokenizers", "train") from None
    path = Path(config.tokenizer) if config.tokenizer else cache / f"bpe{config.vocabulary}.{_hash_text(train)}.json"
    if config.tokenizer and not path.is_file():
        raise InputError(f"the tokenizer {path} is not a file: give a tokenizer.json, or leave it out to learn one")
    if not config.tokenizer and not _is_cached(path):
        learned: Any = Pieces(models.BPE())
        learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        learned.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=config.vocabulary, initial_alphabet=alphabet, show_progress=False)
        learned.train_from_iterator(split_blocks(train), trainer)
        with _caching(path) as temporary:
            learned.save(str(temporary))
    return PieceTokenizer(path)


def _open_words(config: Config, train: np.ndarray, cache: Path) -> Tokenizer:
    """Return a tokenizer of the words of the training text, kept in ``cache``."""
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
    return WordTokenizer(path)


def _hash_text(text: np.ndarray, key: str = "") -> str:
    """Return a short hash of a text and of the key of its encoder."""
    found = hashlib.sha256(f"{len(text)} {key} ".encode())
    for start in range(0, len(text), TOKEN_BLOCK):
        found.update(text[start : start + TOKEN_BLOCK].tobytes())
    return found.hexdigest()[:16]


@dataclass(frozen=True)
class TextPart:
    """Tokens of one part (memory-mapped), the bytes and words of its text, and the nats for spelling its unknown words."""

    tokens: np.ndarray
    bytes: int
    words: int
    spelling: float = 0.0


@dataclass(frozen=True)
class Text:
    """Windows of ``context`` tokens and the tokens that follow each."""

    vocabulary: int
    context: int
    text_parts: dict[str, TextPart]
    tokenizer: Tokenizer = field(default_factory=Tokenizer)

    def describe(self) -> dict[str, Any]:
        """Return what a model depends on, for JSON."""
        return {"vocabulary": self.vocabulary}

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
        """Return loss in nats per token, perplexity per token and per word, and bits per byte.

        An unknown word is one token of the loss; bits per byte contain the bits of its spelling too.
        """
        loss, piece = totals["loss"] / totals["count"], self.text_parts[part]
        each_word, each_byte = (len(piece.tokens) / max(1, count) for count in (piece.words, piece.bytes))
        return {
            "loss": loss,
            "perplexity": _exp(loss),
            "word_perplexity": _exp(loss * each_word),
            "bits_per_byte": (loss * each_byte + piece.spelling / max(1, piece.bytes)) / math.log(2),
        }

    def _cut(self, text: np.ndarray, places: np.ndarray, length: int) -> Batch:
        whole = np.stack([text[place : place + length + 1] for place in places]).astype(np.int64)
        windows = torch.from_numpy(whole)
        return windows[:, :-1], windows[:, 1:]


def open_text(config: Config, cache: Path) -> Text:
    """Open the text of a configuration."""
    corpus = open_corpus(config.data, config.split, cache)
    tokenizer, numbers = (Tokenizer(), corpus) if config.tokens == "bytes" else tokenize(config, corpus, cache)
    need = config.context + 1
    for part in ("train", "validation"):
        if len(numbers[part]) < need:
            raise InputError(
                f"{config.data} holds {len(corpus[part])} bytes ({len(numbers[part])} tokens) for {part}; "
                f"with a context of {config.context} a run needs at least {need} tokens there"
            )
    text_parts: dict[str, TextPart] = {}
    for part, text in corpus.items():
        if len(numbers[part]) >= need:
            counts = (0, 0.0) if part == "train" else (count_words(text), tokenizer.spell_unknown(text))
            text_parts[part] = TextPart(numbers[part], len(text), *counts)
    return Text(tokenizer.size, config.context, text_parts, tokenizer)


def _exp(loss: float) -> float:
    """Return exp(loss), with the loss limited so that it does not overflow."""
    return math.exp(min(loss, 700.0))
