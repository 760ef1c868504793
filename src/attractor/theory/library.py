"""The theorems that are there: every module under ``theorems`` that defines THEOREM."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from functools import cache

from attractor.errors import InputError
from attractor.theory.theorem import Theorem

# imported here, before the package gives the name ``theorems`` to the function below
SHELF = importlib.import_module("attractor.theory.theorems")


@cache
def _shelved() -> dict[str, Theorem]:
    found: dict[str, Theorem] = {}
    for module in pkgutil.walk_packages(SHELF.__path__, SHELF.__name__ + "."):
        theorem = getattr(importlib.import_module(module.name), "THEOREM", None)
        if isinstance(theorem, Theorem):
            if theorem.key in found:
                raise InputError(f"two theorems are called {theorem.key!r}: give one of them another key")
            found[theorem.key] = theorem
    return dict(sorted(found.items(), key=lambda item: _natural(item[0])))


def _natural(key: str) -> list[int | str]:
    """T10 after T9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)]


def theorems(paper: str | None = None) -> tuple[Theorem, ...]:
    """All theorems in order of their keys, or those of one paper ("regimes", "consensus", "meanfield")."""
    return tuple(theorem for theorem in _shelved().values() if paper in (None, theorem.key.split(".")[0]))


def theorem(key: str) -> Theorem:
    """The theorem of that key."""
    known = _shelved()
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        hint = (
            f"did you mean {close[0]!r}?"
            if close
            else f"attractor check --list and attractor.theory.theorems() have all {len(known)}"
        )
        raise InputError(f"theorem {key!r} is not known; {hint}")
    return known[key]
