"""What is made of the files of a package: one plain text of a body of texts, one file of parts.

Texts are separated by a blank line that follows a form feed, so that a reader may keep them apart or read on.
"""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from attractor.errors import FetchError

BREAK = "\n\f\n"


def prepare(step: str, folder: Path, members: list[str], target: str) -> None:
    """Carry out a step of the registry."""
    STEPS[step](folder, members, folder / target)


def _joined(folder: Path, members: list[str], target: Path) -> None:
    with target.open("wb") as whole:
        for name in members:
            with (folder / name).open("rb") as part:
                shutil.copyfileobj(part, whole, 1 << 20)
            (folder / name).unlink()


def _reviews(folder: Path, members: list[str], target: Path) -> None:
    with (folder / members[0]).open(encoding="utf-8", newline="") as file:
        texts = [row["text"].replace("<br /><br />", "\n\n").replace("<br />", "\n") for row in csv.DictReader(file)]
    _write(texts, target)


def _dictionary(folder: Path, members: list[str], target: Path) -> None:
    with gzip.open(folder / members[0]) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    (folder / members[0]).unlink()


def _speeches(folder: Path, members: list[str], target: Path) -> None:
    """The addresses lie as JSON objects between the modules of one JavaScript file."""
    source, found, decoder = (folder / members[0]).read_text(encoding="utf-8"), [], json.JSONDecoder()
    at = source.find('{"year":')
    while at >= 0:
        speech, end = decoder.raw_decode(source, at)
        found.append(speech)
        at = source.find('{"year":', end)
    if not found:
        raise FetchError("the package of the State of the Union addresses holds none that can be read")
    _write([speech["text"] for speech in sorted(found, key=lambda speech: speech["year"])], target)
    (folder / members[0]).unlink()


def _manual(folder: Path, members: list[str], target: Path) -> None:
    """Text files, packed or not, in the order of their names."""
    names = sorted(members)
    stored = ((name, (folder / name).read_bytes()) for name in names)
    plain = (gzip.decompress(content) if name.endswith(".gz") else content for name, content in stored)
    _write((content.decode("utf-8", errors="replace") for content in plain), target)
    for name in names:
        (folder / name).unlink()
    for place in sorted((place for place in folder.rglob("*") if place.is_dir()), reverse=True):
        place.rmdir()


def _antiberty(folder: Path, members: list[str], target: Path) -> None:
    """The vocabulary is put beside the weights, where tokenizers look for it."""
    (folder / "vocab.txt").rename(target / "vocab.txt")


def _write(texts: Iterable[str], target: Path) -> None:
    with target.open("w", encoding="utf-8", newline="\n") as file:
        for count, text in enumerate(texts):
            file.write((BREAK if count else "") + text.strip())
        file.write("\n")


STEPS: dict[str, Callable[[Path, list[str], Path], None]] = {
    "joined": _joined,
    "reviews": _reviews,
    "dictionary": _dictionary,
    "speeches": _speeches,
    "manual": _manual,
    "antiberty": _antiberty,
}
