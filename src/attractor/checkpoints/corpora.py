"""Texts by the hundred: local files, bodies of text that ``attractor fetch`` knows, or a name that the ``datasets`` library loads."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from attractor import fetching
from attractor.errors import AttractorError, CheckpointError, InputError, missing

COLUMNS = ("text", "content", "sentence", "article", "document")
SUFFIXES = (".txt", ".md", ".jsonl", ".json", ".csv", ".parquet")
BREAK = "\f"  # between texts of one file


def corpus(source: str | Path, most: int | None = None, column: str | None = None, split: str = "train") -> list[str]:
    """The first ``most`` texts, blank ones left out.

    A .txt file holds texts between form feeds or blank lines; .jsonl, .json (a list), .csv and .parquet hold rows, whose ``column`` is
    read (by default text, content, ... whichever there is). Any other source is the name of an asset or of a dataset.
    """
    path = Path(source).expanduser()
    texts = _file(path, column) if path.is_file() else _named(str(source), column, split)
    found = list(islice((text for text in texts if text.strip()), most))
    if not found:
        raise InputError(f"{source} holds no text")
    return found


def _file(path: Path, column: str | None) -> Iterator[str]:
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{path} is not read as texts; give a file that ends in {', '.join(SUFFIXES)}")
    try:
        if kind in (".txt", ".md"):
            whole = path.read_text(encoding="utf-8")
            yield from whole.split(BREAK if BREAK in whole else "\n\n")
        elif kind == ".parquet":
            yield from _column(_parquet(path), column, path)
        elif kind == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                yield from _column(csv.DictReader(file), column, path)
        elif kind == ".jsonl":
            with path.open(encoding="utf-8") as file:
                yield from _column((json.loads(line) for line in file if line.strip()), column, path)
        else:
            yield from _column(json.loads(path.read_text(encoding="utf-8")), column, path)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, AttractorError):
            raise
        raise InputError(f"{path} cannot be read as texts: {error}") from None


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        yield from batch.to_pylist()


def _column(rows: Iterable[Any], column: str | None, where: str | Path) -> Iterator[str]:
    for row in rows:
        if isinstance(row, str):
            yield row
            continue
        known = list(row) if isinstance(row, dict) else []
        name = column or next((each for each in COLUMNS if each in known), None)
        if name is None or not isinstance(row, dict) or not isinstance(row.get(name), str):
            has = ", ".join(known[:8]) or "none"
            raise InputError(
                f"{where} has no column {name or 'of texts'}; its columns are {has}: choose one with column=..."
            )
        yield row[name]


def _named(name: str, column: str | None, split: str) -> Iterator[str]:
    known = {one.name.lower(): one for one in fetching.assets("data") if one.path}
    if name.lower() in known:
        return _file(fetching.fetch(name), column)
    if Path(name).suffix.lower() in SUFFIXES or name.startswith((".", "/", "~")):
        raise InputError(f"there is no file {name}")
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise missing("the datasets library", "data") from None
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        return _column(rows, column, name)
    except AttractorError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise CheckpointError(
            f"{name!r} is no file here, no asset of attractor fetch, and the datasets library could not load it: {reason}"
        ) from None
