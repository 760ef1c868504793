"""Atomic file output."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attractor.errors import InputError, StoreError


def target(path: str | os.PathLike[str]) -> Path:
    """The path of a picture, in a folder that exists."""
    place = Path(path).expanduser()
    if place.is_dir():
        raise InputError(f"{place} is a folder; give the name of a file in it, such as {place / 'tokens.html'}")
    if not place.parent.is_dir():
        raise InputError(f"the folder {place.parent} does not exist; create it before a file is written there")
    return place


def check_folder(folder: Path, what: str) -> None:
    """Refuse a folder in which no file can be made, by making one: permissions alone do not tell."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f"{what} cannot be written: {reason(error)} in {folder}; choose a folder you may write to"
        ) from None


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name in the same folder that takes the place of ``path`` if all goes well and vanishes otherwise."""
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {reason(error)}; choose a folder you may write to") from None
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be written: {reason(error)}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
