"""Texts from files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from attractor.errors import InputError


def read_files(paths: Iterable[Path]) -> list[str]:
    """The whole of every file."""
    found = []
    for path in paths:
        if not path.is_file():
            raise InputError(f"--file {path} is not a file that can be read")
        try:
            found.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--file {path} cannot be read as text: {error}") from None
    return found
