"""Registry of reproducible figures and experiments."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from attractor.plotting import Panel
from attractor.registry import find

Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Answer:
    """What an experiment measured: ``rows`` of one table, the answer in a sentence, what it does not show, and the curves."""

    rows: tuple[Row, ...]
    sentence: str
    limits: str
    panels: tuple[Panel, ...]

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"answer": self.sentence, "limits": self.limits, "rows": list(self.rows)}


@dataclass(frozen=True)
class Question:
    """A question that a paper leaves open, and the experiment (of a seed) that answers it as far as it goes."""

    key: str
    title: str
    question: str
    source: str
    run: Callable[[int], Answer]

    @property
    def command(self) -> str:
        return f"attractor questions {self.key}"


@cache
def _shelf() -> dict[str, Question]:
    package = importlib.import_module("attractor.papers")
    modules = pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    found = [getattr(importlib.import_module(module.name), "QUESTION", None) for module in modules]
    return {question.key: question for question in found if isinstance(question, Question)}


def questions() -> tuple[Question, ...]:
    """All of them."""
    return tuple(_shelf().values())


def question(key: str) -> Question:
    """The one of that key."""
    return find(key, _shelf(), "question")
