"""Published claims that fail as stated, each with a counter-example to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from attractor.errors import InputError
from attractor.plotting import Panel
from attractor.registry import find
from attractor.theory.theorem import load_members

VERDICTS = {
    "false": "false as stated",
    "incomplete": "true with a hypothesis that is missing",
    "misleading": "the measurement does not show what it is said to show",
}


BASES = {
    "paper": "stated in the paper",
    "code": "in the released code",
    "reading": "common reading",
}


@dataclass(frozen=True)
class Evidence:
    """What a run measured: ``facts`` by name, whether they refute the claim, one sentence, and the data of the figure."""

    facts: Mapping[str, float | int | bool | str]
    reproduced: bool
    sentence: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class CounterExample:
    """A claim and the system that refutes it.

    ``source`` is a key of references.bib or "code", ``place`` says where and how the claim is made; ``basis`` is a key of BASES,
    ``verdict`` of VERDICTS; ``truth`` says what holds instead, and ``theorems`` are the keys of statements about it.
    """

    key: str
    title: str
    claim: str
    source: str
    place: str
    basis: str
    verdict: str
    truth: str
    run: Callable[[], Evidence]
    theorems: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InputError(f"counter-example {self.key}: the verdict {self.verdict!r} is not one of {list(VERDICTS)}")
        if self.basis not in BASES:
            raise InputError(f"counter-example {self.key}: the basis {self.basis!r} is not one of {list(BASES)}")

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"attractor claims --only {self.key}"

    def row(self) -> dict[str, Any]:
        """Return the claim as a JSON object."""
        return {
            "key": self.key,
            "title": self.title,
            "claim": self.claim,
            "source": self.source,
            "place": self.place,
            "basis": BASES[self.basis],
            "verdict": VERDICTS[self.verdict],
            "truth": self.truth,
            "theorems": list(self.theorems),
            "command": self.command,
        }


@cache
def _load_counterexamples() -> dict[str, CounterExample]:
    return load_members("attractor.theory.counterexamples", "EXAMPLE", CounterExample)


def list_counterexamples() -> tuple[CounterExample, ...]:
    """Return all counter-examples in the order of their keys."""
    return tuple(_load_counterexamples().values())


def find_counterexample(key: str) -> CounterExample:
    """Return the counter-example with a key."""
    return find(key, _load_counterexamples(), "claim", listing="attractor claims --list")


def render_claims() -> str:
    """Return the claims as a MyST page: a table with one row each, with the command that shows the evidence."""
    lines = [
        "# Claims",
        "",
        "Claims of the papers, of released code and of folklore that do not hold as stated, each with a system that shows it.",
        "This page is written by `attractor claims --write docs/claims.md`; `attractor claims` runs every system and says",
        "whether the evidence was reproduced. [The gallery](counterexamples.md) says how to use and extend it.",
        "",
        "*Stated in the paper*: the source says it. *In the released code*: a program of the authors does it. *Common reading*: readers",
        "take it from the source, which does not say it; the source is then not wrong.",
        "",
        "| claim | source | basis | verdict | what is true | evidence |",
        "|---|---|---|---|---|---|",
    ]
    for example in list_counterexamples():
        source = "released code" if example.source == "code" else f"{{cite:p}}`{example.source}`"
        place = f"{source}, {example.place}" if example.place else source
        related = f" ({', '.join(example.theorems)})" if example.theorems else ""
        cells = (
            example.claim,
            place,
            BASES[example.basis],
            VERDICTS[example.verdict],
            example.truth + related,
            f"`{example.command}`",
        )
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
