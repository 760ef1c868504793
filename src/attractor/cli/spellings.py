"""Spellings of earlier versions, in the words of this one: they go on working and are in no help."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice


def modern(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command as they are written now."""
    name, *rest = arguments or [""]
    if name == "iterate":
        return [name, *_place(rest)]
    if name == "study":
        return [name, *_seconds(rest)]
    return list(arguments)


def _place(words: list[str]) -> list[str]:
    """``--out FILE.npz --resume`` is ``--resume FILE.npz``."""
    at = words.index("--resume") if "--resume" in words else -1
    if at < 0 or "".join(words[at + 1 : at + 2]).endswith(".npz"):
        return words
    for option in ("--out", "-o"):
        if option in words[:-1]:
            out = words.index(option)
            file, rest = words[out + 1], [word for k, word in enumerate(words) if k not in (at, out, out + 1)]
            return [*rest, "--resume", file]
    return words


def _seconds(words: list[str]) -> list[str]:
    """``--minutes M`` is ``--max-seconds S``."""
    rest, found = iter(words), []
    for word in rest:
        if word == "--minutes":
            found += ["--max-seconds", *map(_sixty, islice(rest, 1))]
        elif word.startswith("--minutes="):
            found += ["--max-seconds", _sixty(word.partition("=")[2])]
        else:
            found.append(word)
    return found


def _sixty(minutes: str) -> str:
    try:
        return f"{60 * float(minutes):.12g}"
    except ValueError:
        return minutes  # whoever reads it says what is wrong
