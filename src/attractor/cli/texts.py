"""Texts from files, each with a name by which an error can tell it from the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attractor.errors import InputError

BEGINS = 24  # characters by which a text is told


@dataclass(frozen=True)
class Text:
    """A text and where it is from."""

    text: str
    place: str

    @property
    def name(self) -> str:
        """The place and how the text begins."""
        line = " ".join(self.text.split())
        return f"{self.place} ({line if len(line) <= BEGINS else line[: BEGINS - 3] + '...'!r})"


def read_file(path: Path, option: str = "--file") -> str:
    """The whole of a file."""
    if not path.is_file():
        kind = "is a folder, not a file with text" if path.is_dir() else "is not a file that can be read"
        raise InputError(f"{option} {path} {kind}")
    try:
        return path.read_text(encoding="utf-8-sig")  # with or without the mark that some programs put first
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} {path} is no text in UTF-8: byte {error.start} is {error.object[error.start]:#04x}"
        ) from None


def read_files(paths: Iterable[Path]) -> list[Text]:
    """The whole of every file."""
    return [Text(read_file(path), f"--file {path}") for path in paths]


def read_lines(paths: Iterable[Path]) -> list[Text]:
    """Every line that is not blank."""
    return [
        Text(line, f"line {number} of {path}")
        for path in paths
        for number, line in enumerate(read_file(path).split("\n"), 1)
        if line.strip()
    ]
