"""Entries of ``attractor reproduce``: figures and experiments of the literature, found by registration.

A module of this package that defines ``FIGURE`` is an entry.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.files import to_json
from attractor.html_repr import format_number
from attractor.plotting import Panel
from attractor.registry import find, unknown

Data = dict[str, Any]  # results of an entry, made of what JSON has
Settings = Mapping[str, Any]
Update = Callable[[int, int], object]  # progress: done, total


@dataclass(frozen=True)
class Parameter:
    """A setting of an entry.

    Attributes
    ----------
    default : the published value, or ours; its type is that of all values, and a tuple holds values of one type.
    source : where the default comes from (paper, or file of the authors' code); empty if it is our choice.
    minimum : smallest number allowed.
    """

    name: str
    default: int | float | str | tuple[Any, ...]
    description: str
    source: str = ""
    minimum: float = -math.inf

    def convert(self, value: Any) -> Any:
        """Return a value of the type of the default; text is parsed, tuples from lists separated by commas or semicolons."""
        if not isinstance(self.default, tuple):
            return self._convert_scalar(value, type(self.default))
        if isinstance(value, str):
            value = [part.strip() for part in value.split(";" if ";" in value else ",") if part.strip()]
        kind = type(self.default[0]) if self.default else str
        return [self._convert_scalar(part, kind) for part in value]

    def _convert_scalar(self, value: Any, kind: type) -> Any:
        if kind is bool:
            words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
            if str(value).lower() not in words:
                raise InputError(f"{self.name} must be true or false, got {value!r}")
            return words[str(value).lower()]
        try:
            converted = kind(value)
        except ValueError:
            name = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
            raise InputError(f"{self.name} must be {name}, got {value!r}") from None
        if kind in (int, float) and not self.minimum <= converted < math.inf:
            least = f"at least {self.minimum:g}" if self.minimum > -math.inf else "a finite number"
            raise InputError(f"{self.name} must be {least}, got {value}")
        return converted


@dataclass(frozen=True)
class Table:
    """A table for the terminal: rows of cells; without columns, rows are a label and a text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A published figure, or an experiment on a question of a paper.

    Attributes
    ----------
    key : name on the command line.
    title, question : what it shows.
    source : key of the paper in the bibliography.
    parameters : settings and their defaults; one named ``seed`` is set by ``--seed``.
    cost : time with the default settings on two cores.
    compute : ``compute(settings, progress)`` returns the data, which JSON can hold.
    draw : ``draw(data, path)`` draws the data alone, and returns the files written.
    summarise : ``summarise(data)`` returns tables for the terminal.
    small : settings for tests.
    """

    key: str
    title: str
    question: str
    source: str
    parameters: tuple[Parameter, ...]
    cost: str
    compute: Callable[[Settings, Update], Data] = field(repr=False)
    draw: Callable[[Data, Path], tuple[Path, ...]] = field(repr=False)
    summarise: Callable[[Data], tuple[Table, ...]] = field(repr=False)
    small: Settings = field(default_factory=dict, repr=False)

    def settings(self, changes: Settings | None = None) -> dict[str, Any]:
        """Return all settings: the defaults, with changes as values or as text."""
        known = {parameter.name: parameter for parameter in self.parameters}
        given = {name: parameter.default for name, parameter in known.items()} | dict(changes or {})
        for name in given:
            if name not in known:
                raise unknown(name, known, f"parameter of {self.key}", f"parameters of {self.key}")
        return {name: known[name].convert(value) for name, value in given.items()}

    def reproduce(self, changes: Settings | None = None, progress: Update | None = None) -> Data:
        """Compute the data, together with ``key`` and ``settings``."""
        settings = self.settings(changes)
        data = self.compute(settings, progress or (lambda done, total: None))
        return to_json({"key": self.key, "settings": settings, **data})

    def row(self) -> dict[str, Any]:
        """Return the description of the entry, for JSON."""
        names = ("name", "default", "description", "source")
        parameters = [{name: getattr(parameter, name) for name in names} for parameter in self.parameters]
        head = {name: getattr(self, name) for name in ("key", "title", "question", "source", "cost")}
        return {**head, "parameters": parameters}


@cache
def _figures() -> dict[str, Figure]:
    package = importlib.import_module("attractor.papers")
    modules = pkgutil.iter_modules(package.__path__, package.__name__ + ".")
    found = [getattr(importlib.import_module(module.name), "FIGURE", None) for module in modules]
    return {entry.key: entry for entry in found if isinstance(entry, Figure)}


def list_figures() -> tuple[Figure, ...]:
    """Return all entries."""
    return tuple(_figures().values())


def find_figure(key: str) -> Figure:
    """Return the entry of a key."""
    return find(key, _figures(), "figure")


def command_of(data: Data) -> str:
    """Return the command line that computes data again."""
    defaults = find_figure(data["key"]).settings()
    words = ["attractor", "reproduce", data["key"]]
    for name, value in data["settings"].items():
        if value != defaults[name]:
            text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
            words += ["--seed", text] if name == "seed" else ["--set", f"{name}={text}"]
    return shlex.join(words)


def draw_answer(data: Data, panels: tuple[Panel, ...], path: Path) -> tuple[Path, ...]:
    """Draw panels under the question of an entry, with its answer and limits as the caption."""
    from attractor.plotting import draw_panels

    answer = data["answer"]
    caption = f"{answer[0].upper()}{answer[1:]}. {data['limits']} Drawn by: {command_of(data)} --plot {path}"
    return (draw_panels(panels, find_figure(data["key"]).question, caption, path),)


def summarise_answer(data: Data) -> tuple[Table, ...]:
    """Return the rows of an experiment, its answer and its limits."""
    cells = [
        tuple(value if isinstance(value, str) else format_number(value) for value in row.values())
        for row in data["rows"]
    ]
    texts = (("answer", data["answer"]), ("limits", data["limits"]))
    question = find_figure(data["key"]).question
    return Table(question, tuple(data["rows"][0]), tuple(cells)), Table("", (), texts)


SEED = Parameter("seed", 0, "seed of the random systems", minimum=0)
