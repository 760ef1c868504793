"""Atomic file output and strict JSON."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attractor.errors import InputError, StoreError


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file to write; raise if it is a folder or its folder does not exist."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise InputError(f"{place} is a folder; give the name of a file in it, such as {place / 'tokens.html'}")
    if not place.parent.is_dir():
        raise InputError(f"the folder {place.parent} does not exist; create it before a file is written there")
    return place


def check_folder(folder: Path, what: str) -> None:
    """Raise if no file can be created in a folder. It creates one, because permission bits alone do not decide it."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{what} cannot be written: {reason(error)} in {folder}; choose a folder you may write to"
        ) from None


@contextmanager
def replace_on_success(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path next to ``path`` that replaces it on success and is removed on error.

    An empty file is there already; with ``folder`` the caller creates a folder.
    """
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    if not folder:
        temporary.touch(exist_ok=False)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        if folder:
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """``replace_on_success`` for a file, with errors of the operating system as ``StoreError``."""
    began = False
    try:
        with replace_on_success(path) as temporary:
            began = True
            yield temporary
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        advice = "" if began else "; choose a folder you may write to"
        raise StoreError(f"{path} cannot be written: {reason(error)}{advice}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with write_atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write one JSON document atomically."""
    write_text(path, dump_json(value, indent) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Write one JSON document per line, atomically."""
    write_text(path, "".join(dump_json(row) + "\n" for row in rows))


def read_json_lines(path: Path) -> list[Any]:
    """Return the documents of a file with one per line, up to the first line that an interrupted write left incomplete."""
    found: list[Any] = []
    if path.exists():
        with suppress(ValueError):
            for line in path.read_text(encoding="utf-8").splitlines():
                found.append(parse_json(line))
    return found


def read_json(path: Path) -> Any:
    """Return the document of a JSON file in UTF-8; raise ``OSError`` or ``ValueError``, also for a file that is no regular one."""
    check_regular(path)
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Return a JSON document; raise ``ValueError`` if it is not valid, or nested too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def check_regular(path: Path) -> None:
    """Raise ``OSError`` for a named pipe, a socket or a device: to read from it could wait forever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a named pipe, a socket or a device, not a regular file", str(path))


def dump_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON text; see ``to_json``."""
    return json.dumps(to_json(value), allow_nan=False, indent=indent)


def to_json(value: Any, digits: int | None = None) -> Any:
    """Return a value made of what JSON has: text keys, lists, and None for numbers that are not finite.

    Arrays, tensors and their scalars become numbers and nested lists; ``digits`` rounds floats to so many significant digits.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {str(key): to_json(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, digits) for item in value]
    return value


def reason(error: OSError) -> str:
    """Return the operating system's reason, in lower case."""
    return (error.strerror or str(error)).lower()
