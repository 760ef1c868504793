"""Tokens made of text once and kept: pieces of a byte-level BPE, or whole words."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, StoreError, missing
from attractor.experiments.training.config import Config

BLOCK, PAGE = 1 << 20, 1 << 14
UNKNOWN, END = "<unk>", "<eos>"
Encode = Callable[[str], list[int]]


def tokenised(config: Config, corpus: dict[str, np.ndarray], cache: Path) -> tuple[int, dict[str, np.ndarray]]:
    """The vocabulary's size and the numbers of every part, memory-mapped from files in ``cache`` that are made once."""
    cache.mkdir(parents=True, exist_ok=True)
    vocabulary, encode, key = (_pieces if config.tokens == "bpe" else _words)(config, corpus["train"], cache)
    kind = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
    numbers = {}
    for part, text in corpus.items():
        # named for what it is made of, so that other text or another vocabulary never meets it
        path = cache / f"{part}.{_digest(text, key)}.tokens"
        if not path.exists():
            fresh = path.with_suffix(f".{os.getpid()}.new")
            with fresh.open("wb") as target:
                for block in blocks(text):
                    target.write(np.asarray(encode(block), dtype=kind).tobytes())
            fresh.replace(path)
        numbers[part] = np.memmap(path, dtype=kind, mode="r") if path.stat().st_size else np.zeros(0, dtype=kind)
    return vocabulary, numbers


def blocks(text: np.ndarray) -> Iterator[str]:
    """Text of about a million bytes at a time, cut after ends of lines; bytes that are no UTF-8 become one sign that says so."""
    start = 0
    while start < len(text):
        end = min(len(text), start + BLOCK)
        part = bytes(text[start:end])
        if end < len(text):
            cut = part.rfind(b"\n") + 1
            part = part[: cut or len(part)]
        start += len(part)
        yield part.decode("utf-8", errors="replace")


def _pages(text: str) -> list[str]:
    """Text in pieces that end with lines, if there are any."""
    found, start = [], 0
    while start < len(text):
        end = text.find("\n", start + PAGE) + 1 or len(text)
        found.append(text[start:end])
        start = end
    return found


def _pieces(config: Config, train: np.ndarray, cache: Path) -> tuple[int, Encode, str]:
    """A byte-level BPE: from a file tokenizer.json, or learned from the training text and kept beside the tokens."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise missing("tokenizers", "train") from None
    path = Path(config.tokenizer) if config.tokenizer else cache / f"bpe{config.vocabulary}.{_digest(train)}.json"
    if config.tokenizer and not path.is_file():
        raise InputError(f"the tokenizer {path} is not a file: give a tokenizer.json, or leave it out to learn one")
    if not path.exists():
        learned: Any = Tokenizer(models.BPE())
        learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        learned.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=config.vocabulary, initial_alphabet=alphabet, show_progress=False)
        learned.train_from_iterator(blocks(train), trainer)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        learned.save(str(fresh))
        fresh.replace(path)
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises the bare class
        raise StoreError(f"{path} is not a file of the tokenizers library: {error}") from None

    def encode(text: str) -> list[int]:
        parts = tokenizer.encode_batch_fast(_pages(text), add_special_tokens=False)  # on all cores
        return list(chain.from_iterable(part.ids for part in parts))

    return tokenizer.get_vocab_size(), encode, hashlib.sha256(path.read_bytes()).hexdigest()


def _words(config: Config, train: np.ndarray, cache: Path) -> tuple[int, Encode, str]:
    """Words between white space, the most frequent first, and an end after every line; others of later parts are unknown."""
    path = cache / f"words.{_digest(train)}.json"
    if not path.exists():
        counts: Counter[str] = Counter()
        for block in blocks(train):
            for line in block.splitlines():
                counts.update(line.split())
                counts[END] += 1
        counts.setdefault(UNKNOWN, 0)
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        fresh = path.with_suffix(f".{os.getpid()}.new")
        fresh.write_text(json.dumps(ordered), encoding="utf-8")
        fresh.replace(path)
    ordered = json.loads(path.read_text(encoding="utf-8"))
    index = {word: number for number, word in enumerate(ordered)}
    unknown, end = index[UNKNOWN], index[END]

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for line in text.splitlines():
            found += [index.get(word, unknown) for word in line.split()]
            found.append(end)
        return found

    return len(ordered), encode, hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(text: np.ndarray, key: str = "") -> str:
    """Short name of a text, all of it, and of what encodes it."""
    found = hashlib.sha256(f"{len(text)} {key} ".encode())
    for start in range(0, len(text), BLOCK):
        found.update(text[start : start + BLOCK].tobytes())
    return found.hexdigest()[:16]
