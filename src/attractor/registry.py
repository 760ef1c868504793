"""Lookup by name, with a suggestion when a name is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from attractor.errors import InputError

T = TypeVar("T")


def find(name: object, known: Mapping[str, T], kind: str, plural: str | None = None, listing: str = "") -> T:
    """Return ``known[name]``.

    Parameters
    ----------
    name : the name as the user gave it.
    known : all names and their values.
    kind, plural : what the names denote, for the error message; the plural defaults to ``kind + "s"``.
    listing : command that lists the names, for the message where they are too many to be listed.

    Raises
    ------
    InputError
        If the name is not known. The message suggests the closest name, or lists all of them.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    raise unknown(name, known, kind, plural, listing)


def check_name(name: object, known: Iterable[str], kind: str, plural: str | None = None) -> None:
    """Raise the error of :func:`find` unless ``name`` is among the names."""
    names = tuple(known)
    if name not in names:
        raise unknown(name, names, kind, plural)


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to ``name``, or None if none is at least ``cutoff`` similar (0 to 1)."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def unknown(name: object, known: Iterable[str], kind: str, plural: str | None = None, listing: str = "") -> InputError:
    """Return the error for a name that is not known."""
    names = list(known)
    close = closest(str(name), names)
    plural = plural or f"{kind}s"
    every = f"{listing} lists all {len(names)} {plural}" if listing else f"the {plural} are {', '.join(names)}"
    hint = f"did you mean {close!r}?" if close else every
    return InputError(f"{kind} {name!r} is not known; {hint}")
