"""Heads by layers: what the cells of an audit's page are coloured by, and what their panels say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attractor.checkpoints.audit_pictures import traces
from attractor.report import Measure
from attractor.theory.weights.labels import LABELS
from attractor.theory.weights.quantities import QUANTITIES, Quantity

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit

JUDGED = (
    "interaction_index",
    "interaction_asymmetry",
    "metric_index",
    "reduced_metric_index",
    "metric_asymmetry",
    "value_abscissa",
    "value_radius",
)
KINDS = {"random": "from random", "mismatched": "from mismatched", "others": "from other heads"}


class Grid:
    """Heads by layers: numbers, labels, panels and pictures of cells."""

    def __init__(self, audit: Audit, every: int = 1, points: int | None = None, judged: bool = False) -> None:
        """``every`` so many layers, ``points`` of every spectrum, and of the nulls the ``judged`` ones alone."""
        self.audit, self.points, self.judged = audit, points, judged
        names = {row["layer"]: row["name"] for row in (*audit.heads, *audit.undefined)}
        self.indices = sorted(names)[::every]
        self.layers = [names[index].removeprefix("layer ") for index in self.indices]
        self.heads = range(max(row["head"] for row in audit.heads) + 1)
        self.places = {(row["layer"], row["head"]): place for place, row in enumerate(audit.heads)}

    def place(self, row: int, column: int) -> int | None:
        return self.places.get((self.indices[row], column))

    def row(self, row: int, column: int) -> dict[str, Any]:
        place = self.place(row, column)
        return {} if place is None else self.audit.heads[place]

    def table(self, read: Any) -> list[list[Any]]:
        return [[read(self.row(row, column)) for column in self.heads] for row in range(len(self.layers))]

    def values(self) -> dict[str, Measure]:
        return {
            quantity.title: Measure(
                self.table(lambda head, name=quantity.name: as_float(head.get(name))),
                "diverging" if quantity.signed else "sequential",
                quantity.meaning[0].upper() + quantity.meaning[1:] + ".",
            )
            for quantity in QUANTITIES
        }

    def label(self) -> Measure:
        words = "; ".join(f"{name}: {LABELS[name]}" for name in dict.fromkeys(row["label"] for row in self.audit.heads))
        return Measure(
            self.table(lambda head: head.get("label")),
            "category",
            f"The regime of the head alone, as a flow without norms. {words}.",
        )

    def deviations(self) -> dict[str, Measure]:
        found = {}
        for quantity in (one for one in QUANTITIES if one.name in JUDGED):
            for kind in ("random", "mismatched"):
                read = lambda head, name=quantity.name, kind=kind: as_float(null_of(head, name, kind).get("deviations"))  # noqa: E731
                values = self.table(read)
                if any(value == value for line in values for value in line):
                    shown = kind if kind == "random" or quantity.half == "both" else "others"
                    found[f"{quantity.title}, {KINDS[shown]}"] = Measure(values, "diverging", WORDS[shown])
        return found

    def detail(self, row: int, column: int) -> dict[str, Any]:
        """The label and every number of a head, with its error bar, deviations and value without the norm."""
        head = self.row(row, column)
        if not head:
            return {
                "undefined": next(
                    (one["reason"] for one in self.audit.undefined if one["layer"] == self.indices[row]), ""
                )
            }
        verdict = (
            head["label"] if head["certificate"] is None else f"{head['label']}, certified by {head['certificate']}"
        )
        return {"label": verdict, "why": head["why"]} | {
            quantity.title: number_of(head, quantity) for quantity in QUANTITIES
        }

    def against(self, row: int, column: int) -> dict[str, Any]:
        """Every number of a head beside its nulls."""
        head = self.row(row, column)
        return {
            f"{quantity.title}, {kind}": f"{short(head.get(quantity.name))} against {short(null['mean'])} ± {short(null['spread'])}"
            for quantity in QUANTITIES
            for kind in ("random", "mismatched")
            if (not self.judged or quantity.name in JUDGED) and (null := null_of(head, quantity.name, kind))
        }

    def picture(self, row: int, column: int) -> list[dict[str, Any]] | None:
        place = self.place(row, column)
        return (
            None
            if place is None or not self.audit.spectra
            else traces(self.audit.spectra[place], self.audit.heads[place], self.points)
        )


WORDS = {
    "random": "Deviations from random heads: independent normal entries, the same shape, the same Frobenius norms of W and of the value.",
    "mismatched": "Deviations from heads of the same layer with the queries and keys of one and the values and outputs of another.",
    "others": "Deviations from the other heads of the layer: mismatching changes nothing in a number that one half of a head decides.",
}


def null_of(head: dict[str, Any], name: str, kind: str) -> dict[str, Any]:
    return (head.get("nulls", {}).get(name) or {}).get(kind) or {}


def number_of(head: dict[str, Any], quantity: Quantity) -> str:
    """A number with its error bar, its deviations from nulls, and what it is without the norm, or with it."""
    text = short(head[quantity.name])
    bar = (head.get("errors") or {}).get(quantity.name)
    if bar:
        text += f" ± {bar['bar']:.1g}"
    away = [
        f"{kind} {null['deviations']:+.1f}σ"
        for kind in ("random", "mismatched")
        if (null := null_of(head, quantity.name, kind)) and null["deviations"] is not None
    ]
    other = [f"{kind} {short(head[kind][quantity.name])}" for kind in ("plain", "folded") if head.get(kind)]
    return " · ".join([text, *away, *other])


def as_float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def short(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3g}"
