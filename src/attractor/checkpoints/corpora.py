"""Texts by the hundred: local files, bodies of text that ``attractor fetch`` knows, or a name that the ``datasets`` library loads."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from attractor import fetching
from attractor.errors import AttractorError, CheckpointError, InputError, missing

COLUMNS = ("text", "content", "sentence", "article", "document")
SUFFIXES = (".txt", ".md", ".jsonl", ".json", ".csv", ".parquet")
PLAIN = (".txt", ".md")
ENCODING = "utf-8-sig"  # with or without the mark that some programs put first
BREAK = "\f"  # between texts of one file


def corpus(source: str | Path, most: int | None = None, column: str | None = None, split: str = "train") -> list[str]:
    """The first ``most`` texts; blank and missing ones are left out.

    A .txt file holds texts between form feeds or blank lines; .jsonl, .json (a list of texts or rows, or an object of columns), .csv
    and .parquet hold rows, whose ``column`` is read (by default text, content, ... whichever there is). Any other source is the name
    of an asset or of a dataset.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        raise InputError(f"{source} is a folder; give a file in it that ends in {', '.join(SUFFIXES)}")
    texts = _file(path, column) if path.is_file() else _named(str(source), column, split)
    found = list(islice((text for text in texts if text.strip()), most))
    if not found:
        raise InputError(f"{source} holds no text")
    return found


def takes_column(source: str) -> bool:
    """Whether texts of this source are in a column."""
    known = _assets().get(source.lower())
    return Path(source if known is None else known.path or "").suffix.lower() not in PLAIN


def takes_split(source: str) -> bool:
    """Whether this is a name for the datasets library, the only source with splits."""
    here = Path(source).expanduser().exists() or Path(source).suffix.lower() in SUFFIXES
    return not here and source.lower() not in _assets()


def _assets() -> dict[str, fetching.Asset]:
    return {one.name.lower(): one for one in fetching.assets("data") if one.path}


def _file(path: Path, column: str | None) -> Iterator[str]:
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{path} is not read as texts; give a file that ends in {', '.join(SUFFIXES)}")
    try:
        if kind in PLAIN:
            whole = path.read_text(encoding=ENCODING)
            yield from whole.split(BREAK if BREAK in whole else "\n\n")
        elif kind == ".parquet":
            yield from _column(_parquet(path), column, path)
        elif kind == ".csv":
            with path.open(encoding=ENCODING, newline="") as file, _long_fields():
                yield from _column(csv.DictReader(file), column, path)
        elif kind == ".jsonl":
            with path.open(encoding=ENCODING) as file:
                yield from _column(_lines(file), column, path)
        else:
            yield from _column(_rows(json.loads(path.read_text(encoding=ENCODING)), column, path), column, path)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        if isinstance(error, AttractorError):
            raise
        also = "; rows one a line are a .jsonl file" if kind == ".json" and "Extra data" in str(error) else ""
        raise InputError(f"{path} cannot be read as texts: {error}{also}") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Cells of a table as long as texts are; the limit is one for all of Python."""
    usual = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


def _lines(file: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON ({error})") from None


def _rows(document: Any, column: str | None, path: Path) -> list[Any]:
    """The rows of a JSON document: a list of them, or an object whose column is a list of texts (or one text)."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        name = column or _usual(document)
        part = document.get(name) if name is not None else None
        if isinstance(part, str):
            return [part]
        if isinstance(part, list) and all(isinstance(text, str) or text is None for text in part):
            return part
        raise InputError(
            f"{path} holds an object with {_some(document)}, and no texts under {name or ', '.join(COLUMNS)}; give a list of "
            "texts or of rows, or name the key of a list of texts with column=..."
        )
    raise InputError(f"{path} holds {_kind(document)}, not a list of texts or of rows")


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        yield from batch.to_pylist()


def _column(rows: Iterable[Any], column: str | None, where: str | Path) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) or row is None:
            yield row or ""
            continue
        if not isinstance(row, dict):
            raise InputError(f"row {number} of {where} is {_kind(row)}, neither a text nor a row with columns")
        name = column or _usual(row)
        if name is None or name not in row:
            raise InputError(
                f"row {number} of {where} has no column {name or 'of texts'}; its columns are {_some(row)}: choose one with column=..."
            )
        text = row[name]
        if not isinstance(text, str) and text is not None:
            raise InputError(f"row {number} of {where} has {_kind(text)} in its column {name}, not a text")
        yield text or ""


def _usual(row: dict[Any, Any]) -> str | None:
    return next((each for each in COLUMNS if each in row), None)


def _kind(value: Any) -> str:
    words = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return words.get(type(value), f"a {type(value).__name__}")


def _some(row: dict[Any, Any]) -> str:
    """The first names of columns; cells beyond the heading of a table have none."""
    return ", ".join(str(name) for name in list(row)[:8] if name is not None) or "none"


def _named(name: str, column: str | None, split: str) -> Iterator[str]:
    if name.lower() in _assets():
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
