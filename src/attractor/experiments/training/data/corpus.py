"""The bytes of a corpus in parts: from a file, a folder, or the ``datasets`` library."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, missing
from attractor.experiments.training.data.names import LIBRARY, paths_of

NAMES = {"train": "train", "valid": "validation", "validation": "validation", "dev": "validation", "test": "test"}
SHARES = ("train", "validation", "test")
BLOCK = 1 << 24


def open_corpus(data: str, split: Sequence[float], cache: Path) -> dict[str, np.ndarray]:
    """Parts as bytes, memory-mapped. Files of a folder follow each other in the order of their names.

    Files that are named for parts (wiki.train.raw, valid.txt, test.txt) are those parts; anything else is cut by the shares of ``split``.
    """
    if data.startswith(LIBRARY):
        return _by_files(_from_library(data.removeprefix(LIBRARY), cache / "datasets"), data, split, cache)
    files = [file for path in paths_of(data) for file in _files(path)]
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
    # a file that is called so by chance must not push the others aside
    if "train" in named and ("validation" in named or sum(map(len, named.values())) == len(files)):
        parts = {part: _mapped(named[part], cache / f"{part}.txt") for part in SHARES if part in named}
        if "validation" in parts:
            return parts
        whole = parts.pop("train")
        return {**_cut(whole, (1 - split[1], split[1])), **parts}
    if sum(file.stat().st_size for file in files) == 0:
        raise InputError(f"{data} holds 0 bytes in {len(files)} files: give a file or a folder of text")
    return _cut(_mapped(files, cache / "corpus.txt"), split)


def _cut(whole: np.ndarray, split: Sequence[float]) -> dict[str, np.ndarray]:
    """Shares of the whole, the first one with what rounding leaves."""
    sizes = [int(share * len(whole)) for share in split[1:]]
    ends = np.cumsum([len(whole) - sum(sizes), *sizes])
    return {part: whole[end - size : end] for part, end, size in zip(SHARES, ends, [ends[0], *sizes], strict=False)}


def _mapped(files: list[Path], joined: Path) -> np.ndarray:
    """The bytes of files one after the other; several are joined into one file first, once."""
    files = [file for file in files if file.stat().st_size]
    if not files:
        return np.zeros(0, dtype=np.uint8)
    if len(files) == 1:
        return np.memmap(files[0], dtype=np.uint8, mode="r")
    joined = joined.with_suffix(f".{_digest(files)}{joined.suffix}")
    if not joined.exists():
        joined.parent.mkdir(parents=True, exist_ok=True)
        fresh = joined.with_suffix(f".{os.getpid()}.new")  # processes of one run may all come here
        with fresh.open("wb") as target:
            for file in files:
                with file.open("rb") as source:
                    shutil.copyfileobj(source, target)
        fresh.replace(joined)
    return np.memmap(joined, dtype=np.uint8, mode="r")


def _digest(files: list[Path]) -> str:
    """Short name of what files hold, one after the other."""
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as source:
            while block := source.read(BLOCK):
                found.update(block)
    return found.hexdigest()[:16]


def _from_library(name: str, folder: Path) -> list[Path]:
    """NAME or NAME:CONFIGURATION of the ``datasets`` library as one file for each part, a document after the other."""
    loaded = load_named(name)
    folder /= hashlib.sha256(name.encode()).hexdigest()[:16]  # a folder that is shared may hold other datasets
    found = []
    for part in ("train", "validation", "test"):
        if part not in loaded:
            continue
        path = folder / f"{part}.txt"
        found.append(path)
        if path.exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}.new")
        with fresh.open("wb") as target:
            for text in _texts(loaded[part], name):
                target.write(text.encode() if text.endswith("\n") else text.encode() + b"\n")
        fresh.replace(path)
    if not found:
        raise InputError(f"the dataset {name} has none of the parts train, validation and test, but {list(loaded)}")
    return found


def load_named(name: str) -> Any:
    """A dataset of the ``datasets`` library: a name on its hub, NAME:CONFIGURATION, or a folder that ``save_to_disk`` wrote."""
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise missing("datasets", "data") from None
    if Path(name).is_dir() and any((Path(name) / mark).exists() for mark in ("dataset_dict.json", "state.json")):
        return datasets.load_from_disk(name)
    base, _, configuration = name.partition(":")
    try:
        return datasets.load_dataset(base, configuration or None)
    except Exception as error:  # of the network, of the hub and of files: the library has no one class for them
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"the datasets library cannot load {base}: {reason}") from None


def _texts(part: Any, name: str) -> Iterable[str]:
    if "text" not in part.column_names:
        raise InputError(f"the dataset {name} has no column 'text', but {', '.join(part.column_names)}")
    return (row["text"] for row in part)


def count_words(text: np.ndarray) -> int:
    """How many runs of bytes without white space."""
    count, before = 0, True
    for start in range(0, len(text), BLOCK):
        blank = np.isin(np.asarray(text[start : start + BLOCK]), np.frombuffer(b" \t\n\r\v\f", dtype=np.uint8))
        count += int((blank[:-1] & ~blank[1:]).sum()) + int(before and not blank[0])
        before = bool(blank[-1])
    return count
