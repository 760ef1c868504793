"""Entries of ``attractor reproduce``: figures and experiments of the literature, found by registration.

A module of this package that defines ``FIGURE``, or a tuple ``FIGURES``, has entries. An entry computes data that JSON can hold;
everything else (figure, tables, verdict, comparisons) is made from these data alone, so that a stored file is enough.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from attractor._version import __version__
from attractor.assets import find_local, list_assets
from attractor.errors import FetchError, InputError, StoreError, missing
from attractor.files import checksum_json, make_folder, read_json, reason, to_json, write_json
from attractor.html_repr import format_number
from attractor.laws import Attention
from attractor.plotting import Panel
from attractor.registry import find, unknown
from attractor.states import Tokens

Data = dict[str, Any]  # results of an entry, made of what JSON has
Settings = Mapping[str, Any]
Update = Callable[[int, int], object]  # progress: done, total

SCHEMA = "attractor.reproduce/2"
Outcome = Literal["reproduced", "reproduced with a correction", "differs", "no published result"]
# outcomes of verdicts, and their tone in reports
OUTCOMES = {
    "reproduced": "good",
    "reproduced with a correction": "warn",
    "differs": "bad",
    "no published result": "plain",
}
# what find_spec looks for, by the extra that installs it
MODULES = {
    "plot": "matplotlib",
    "checkpoints": "transformers",
    "meanfield": "ot",
    "report": "jinja2",
    "pandas": "pandas",
}


@dataclass(frozen=True)
class Parameter:
    """A setting of an entry.

    Attributes
    ----------
    default : the published value, or ours; its type is that of all values, and a tuple holds values of one type.
    source : where the default comes from (line of the paper, or file of the authors' code); empty if it is our choice.
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
    """A table for the terminal and the page: rows of cells; without columns, rows are a label and a text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Verdict:
    """Whether the published figure was reproduced, and why; "no published result" for experiments that have none to meet."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A number of ours beside that of independent code.

    Attributes
    ----------
    tolerance : largest difference that counts as agreement; relative to ``other`` with ``relative``.
    code : the independent code, with its version or commit.
    """

    quantity: str
    ours: float
    other: float
    tolerance: float
    code: str
    relative: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the numbers differ by at most the tolerance."""
        scale = abs(self.other) if self.relative else 1.0
        return abs(self.ours - self.other) <= self.tolerance * scale

    def row(self) -> dict[str, Any]:
        """Return the fields and ``agrees``, for JSON."""
        return {**asdict(self), "agrees": self.agrees}


@dataclass(frozen=True)
class Beside:
    """A result of ours beside what the published procedure gives for the same quantity, as texts."""

    quantity: str
    accurate: str
    published: str


class Work:
    """What ``compute`` reports to: progress, and finished parts, which an interrupted run reads back when it is resumed."""

    def __init__(self, update: Update | None = None, folder: Path | None = None, identity: str = "") -> None:
        self._update, self._folder, self._identity = update, folder, identity
        self._seconds = 0.0  # CPU time of parts that were read back
        self._began = time.process_time()

    def __call__(self, done: int, total: int) -> None:
        """Report progress."""
        if self._update is not None:
            self._update(done, total)

    @property
    def seconds(self) -> float:
        """CPU time of all threads since the start, with that of the parts that were read back."""
        return self._seconds + time.process_time() - self._began

    def keep(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return ``compute()`` as JSON holds it, from the folder of the run if an interrupted run has stored it there."""
        if self._folder is None:
            return to_json(compute())
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"
        if path.exists():
            try:
                stored = read_json(path)
            except (OSError, ValueError):
                stored = None  # damaged: computed again below
            if isinstance(stored, dict) and stored.get("identity") == [self._identity, name]:
                self._seconds += stored["seconds"]
                return stored["value"]
        began = time.process_time()
        value = to_json(compute())
        make_folder(self._folder)
        row = {"identity": [self._identity, name], "seconds": time.process_time() - began, "value": value}
        write_json(path, row)
        return value


def _no_weights(settings: Settings) -> Sequence[str]:
    return ()


def _no_comparisons(data: Data) -> tuple[Comparison, ...]:
    return ()


def _nothing_beside(data: Data) -> tuple[Beside, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published figure, or an experiment on a question of a paper.

    Attributes
    ----------
    key : name on the command line.
    title, question : what it shows.
    source : key of the paper in the bibliography.
    reference : figure of the paper, or file of the authors' code with its commit; empty for an experiment of ours.
    parameters : settings and their defaults; one named ``seed`` is set by ``--seed``.
    unknown : what neither the paper nor the code tells, one sentence each.
    cost : seconds of CPU time with the default settings.
    compute : ``compute(settings, work)`` returns the data, which JSON can hold; ``work(done, total)`` reports progress, and
        ``work.keep(name, function)`` stores a part for a run that is resumed.
    draw : ``draw(data, path)`` draws the data alone, and returns the files written.
    summarise : ``summarise(data)`` returns tables for the terminal.
    verdict : ``verdict(data)`` judges the data against the published figure.
    compare : ``compare(data)`` returns numbers beside those of independent code.
    beside : ``beside(data)`` returns our results beside those of the published procedure.
    small : settings for tests.
    extras : optional dependencies that it needs, as extras of the package.
    weights : ``weights(settings)`` returns the assets of ``attractor fetch`` that it needs.
    version : of the layout of the data; a file of another version is rejected.
    """

    key: str
    title: str
    question: str
    source: str
    parameters: tuple[Parameter, ...]
    cost: float
    compute: Callable[[Settings, Work], Data] = field(repr=False)
    draw: Callable[[Data, Path], tuple[Path, ...]] = field(repr=False)
    summarise: Callable[[Data], tuple[Table, ...]] = field(repr=False)
    verdict: Callable[[Data], Verdict] = field(repr=False)
    reference: str = ""
    unknown: tuple[str, ...] = ()
    compare: Callable[[Data], tuple[Comparison, ...]] = field(default=_no_comparisons, repr=False)
    beside: Callable[[Data], tuple[Beside, ...]] = field(default=_nothing_beside, repr=False)
    small: Settings = field(default_factory=dict, repr=False)
    extras: tuple[str, ...] = ("plot",)
    weights: Callable[[Settings], Sequence[str]] = field(default=_no_weights, repr=False)
    version: int = 1

    def settings(self, changes: Settings | None = None) -> dict[str, Any]:
        """Return all settings: the defaults, with changes as values or as text."""
        known = {parameter.name: parameter for parameter in self.parameters}
        given = {name: parameter.default for name, parameter in known.items()} | dict(changes or {})
        for name in given:
            if name not in known:
                raise unknown(name, known, f"parameter of {self.key}", f"parameters of {self.key}")
        return {name: known[name].convert(value) for name, value in given.items()}

    def check_needs(self, settings: Settings) -> None:
        """Raise if an optional dependency or the weights of a model are missing; the message says how to get them."""
        for extra in self.extras:
            if find_spec(MODULES[extra]) is None:
                raise missing(MODULES[extra], extra)
        assets = {asset.name for asset in list_assets()}
        absent = [name for name in self.weights(settings) if name in assets and find_local(name) is None]
        if absent:
            raise FetchError(
                f"{self.key} needs the weights of {', '.join(absent)}, which are not on this machine: "
                + "; ".join(f"attractor fetch {name}" for name in absent)
            )

    def reproduce(
        self, changes: Settings | None = None, progress: Update | None = None, folder: Path | None = None
    ) -> Data:
        """Compute the data, together with ``key``, ``version``, ``settings`` and ``seconds`` of CPU time.

        With a ``folder``, finished parts are stored there, and a run with equal settings continues from them.
        """
        settings = self.settings(changes)
        self.check_needs(settings)
        work = Work(progress, folder, checksum_json([self.key, self.version, __version__, to_json(settings)]))
        data = self.compute(settings, work)
        head = {"key": self.key, "version": self.version, "settings": settings, "seconds": round(work.seconds, 2)}
        return to_json({**head, **data})

    def document(self, data: Data) -> dict[str, Any]:
        """Return data with verdict, comparisons and command, as they are stored; ``read_data`` returns the data again."""
        head = {
            "schema": SCHEMA,
            "key": self.key,
            "title": self.title,
            "source": self.source,
            "reference": self.reference,
        }
        judged = {
            "command": command_of(data),
            "verdict": asdict(self.verdict(data)),
            "published_settings": self.has_published_settings(data),
            "comparisons": [row.row() for row in self.compare(data)],
            "beside": [asdict(row) for row in self.beside(data)],
        }
        known = {name: data[name] for name in ("version", "settings", "seconds")}
        rest = {name: value for name, value in data.items() if name not in (*known, "key")}
        return to_json({**head, **known, **judged, "data": rest})

    def has_published_settings(self, data: Data) -> bool:
        """Whether data were computed with the default settings."""
        return data["settings"] == to_json(self.settings())

    def row(self) -> dict[str, Any]:
        """Return the description of the entry, for JSON."""
        names = ("name", "default", "description", "source")
        parameters = [{name: getattr(parameter, name) for name in names} for parameter in self.parameters]
        fields = ("key", "title", "question", "source", "reference", "unknown", "cost", "extras", "version")
        head = {name: getattr(self, name) for name in fields}
        return {**head, "weights": list(self.weights(self.settings())), "parameters": parameters}


@cache
def _figures() -> dict[str, Figure]:
    package = importlib.import_module("attractor.papers")
    found: list[Any] = []
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        loaded = importlib.import_module(module.name)
        found += [getattr(loaded, "FIGURE", None), *getattr(loaded, "FIGURES", ())]
    return {entry.key: entry for entry in found if isinstance(entry, Figure)}


def list_figures() -> tuple[Figure, ...]:
    """Return all entries."""
    return tuple(_figures().values())


def find_figure(key: str) -> Figure:
    """Return the entry of a key."""
    return find(key, _figures(), "figure", listing="attractor reproduce")


def read_data(path: Path, figure: Figure | None = None) -> Data:
    """Return the data of a stored file; raise ``StoreError`` if it is damaged, of another version, or not of ``figure``."""
    try:
        stored = read_json(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise StoreError(f"{path} is no JSON document ({error}): compute it again") from None
    schema = stored.get("schema") if isinstance(stored, dict) else None
    if schema != SCHEMA:
        found = f"has the schema {schema!r}" if schema else "has no schema"
        raise StoreError(f"{path} {found}, expected {SCHEMA!r}: give a file that attractor reproduce wrote")
    entry = find_figure(stored.get("key", ""))
    if figure is not None and entry.key != figure.key:
        raise StoreError(f"{path} has the data of {entry.key!r}, not of {figure.key!r}")
    if stored.get("version") != entry.version:
        raise StoreError(
            f"{path} has version {stored.get('version')} of the data of {entry.key}, this release of attractor reads version "
            f"{entry.version}: compute them again with attractor reproduce {entry.key}"
        )
    absent = [name for name in ("settings", "seconds", "data") if name not in stored]
    if absent:
        raise StoreError(f"{path} has no {absent[0]}: it is damaged; compute it again")
    head = {name: stored[name] for name in ("key", "version", "settings", "seconds")}
    return {**head, **stored["data"]}


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
    caption = f"{answer[0].upper()}{answer[1:]}. {data['limits']} Drawn by: {command_of(data)} --plot {path.name}"
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


def judge_answer(data: Data) -> Verdict:
    """Return the verdict of an experiment of ours, which has an answer but no published figure to meet."""
    answer = data["answer"]
    return Verdict("no published result", f"{answer[0].upper()}{answer[1:]}.")


SEED = Parameter("seed", 0, "seed of the random systems", minimum=0)


def draw_captioned(data: Data, panels: Sequence[Panel], caption: str, path: Path) -> tuple[Path, ...]:
    """Draw panels under the title of an entry; the caption ends with the command that draws them."""
    from attractor.plotting import draw_panels

    words = f"{caption} Drawn by: {command_of(data)} --plot {path.name}"
    return (draw_panels(panels, find_figure(data["key"]).title, words, path),)


def make_tokens(points: NDArray[Any], masses: NDArray[Any] | None = None) -> Tokens:
    """Return tokens at the points of an array."""
    return Tokens(torch.from_numpy(points), None if masses is None else torch.from_numpy(masses))


def make_law(query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], **options: Any) -> Attention:
    """Return attention with the parameters of arrays."""
    return Attention(torch.from_numpy(query), torch.from_numpy(key), torch.from_numpy(value), **options)
