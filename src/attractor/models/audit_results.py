"""Results of an audit: typed rows of heads and layers, their summaries, and export to CSV, Parquet and pandas."""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from attractor.errors import missing
from attractor.files import write_atomic
from attractor.models.findings import Finding
from attractor.models.quantisation import ErrorBar
from attractor.serialization import to_frame
from attractor.weights import NAMES, QUANTITIES, Growth, HeadRegime, LayerRegime, Nulls, NullScore

OFFSETS = tuple(4**power for power in range(6))  # 1 to 1024
SUMMARY = ("interaction_index", "reduced_metric_index", "metric_asymmetry", "value_abscissa", "value_radius")
NullModel = Literal["random", "mismatched"]
Quantities = Mapping[str, float | None]


@dataclass(frozen=True)
class AuditSettings:
    """What an audit computes for each layer.

    Attributes
    ----------
    fold : whether the norm before attention is folded into the weights.
    sums : whether the sum over the heads of a layer is classified too.
    both : whether the quantities are also computed with the opposite choice of ``fold``.
    draws : number of random heads of the null model; 0 for none.
    shifts : number of mismatched pairings of heads; 0 for none.
    offsets : rotary offsets at which the interaction is evaluated.
    copies : number of perturbed copies of quantised weights.
    seed : seed of random heads and perturbations.
    """

    fold: bool = True
    sums: bool = True
    both: bool = True
    draws: int = 64
    shifts: int = 8
    offsets: tuple[int, ...] = OFFSETS
    copies: int = 6
    seed: int = 0


class Spectra(NamedTuple):
    """Eigenvalues of one head: of the symmetric parts of W, of the reduced W and of the reduced V'W, and of the value (complex)."""

    interaction: Tensor
    reduced_interaction: Tensor
    reduced_metric: Tensor
    value: Tensor


# columns of a head besides those of its regime
OWN = (
    "label_random_rate",
    "certified_random_rate",
    "value_index",
    "value_relative_size",
    "nearest_head",
    "nearest_similarity",
)


def index_of(eigenvalues: Tensor) -> float | None:
    """The sum of the real parts of eigenvalues over the sum of their sizes; None without any."""
    size = float(eigenvalues.abs().sum())
    return float(eigenvalues.real.sum()) / size if size > 0 else None


@dataclass(frozen=True)
class AuditHead(HeadRegime):
    """One head of a model: its regime, compared with null models and with the other choice of folding.

    Attributes
    ----------
    name : name of the layer.
    nulls : scores under the null models, by quantity; None if none were drawn.
    plain : quantities of the weights without the norm, where the audit folds it in.
    folded : quantities of the weights with the norm folded in, where the audit does not.
    errors : error bars of quantised weights, by quantity.
    sizes : rows of its queries and of its values.
    label_random_rate, certified_random_rate : share of random heads of its shape, with the same mask and positions, that have its
        label, and for which a theorem certifies it; None if none were drawn.
    value_relative_size : Frobenius norm of its value map over the median of its layer.
    nearest_head, nearest_similarity : the head of its layer that is most like it, and the smaller of the cosines of their W and of
        their value maps; None if heads were not compared.
    """

    layer: int
    name: str = ""
    sizes: tuple[int, int] = (0, 0)
    label_random_rate: float | None = None
    certified_random_rate: float | None = None
    value_relative_size: float | None = None
    nearest_head: int | None = None
    nearest_similarity: float | None = None
    nulls: Mapping[str, Nulls] | None = None
    plain: Quantities | None = None
    folded: Quantities | None = None
    errors: Mapping[str, ErrorBar | None] | None = None

    @classmethod
    def from_regime(cls, regime: HeadRegime, name: str, head: int) -> AuditHead:
        """A head of the layer ``name``; ``head`` is its index in the whole layer."""
        given = {field.name: getattr(regime, field.name) for field in fields(regime)}
        return cls(**{**given, "head": head}, name=name)

    @cached_property
    def quantities(self) -> Quantities:
        """The quantities of ``weights.QUANTITIES`` by name; None where one is undefined."""
        row = super().row()
        return {name: row[name] for name in NAMES}

    @property
    def value_index(self) -> float | None:
        """The sum of the real parts of the eigenvalues of the value over the sum of their sizes: 1 if the head writes back what it
        reads in every direction, -1 if its opposite; near 0 for random heads. None if there are none."""
        return index_of(self.value.eigenvalues)

    @property
    def spectra(self) -> Spectra:
        forms = self.interaction, self.reduced_interaction, self.reduced_metric, self.value
        return Spectra(*(form.eigenvalues for form in forms))

    def null(self, name: str, model: NullModel) -> NullScore | None:
        """The score of a quantity under one null model."""
        return None if self.nulls is None else getattr(self.nulls[name], model)

    def row(self) -> dict[str, Any]:
        """The head as a JSON object; parts that were not computed are left out."""
        row: dict[str, Any] = {**super().row(), "name": self.name}
        row |= {name: getattr(self, name) for name in OWN}
        if self.nulls is not None:
            row["nulls"] = {name: asdict(nulls) for name, nulls in self.nulls.items()}
        row |= {name: part for name in ("plain", "folded") if (part := getattr(self, name)) is not None}
        if self.errors is not None:
            row["errors"] = {name: None if bar is None else asdict(bar) for name, bar in self.errors.items()}
        return row

    def flat_row(self) -> dict[str, Any]:
        """The head as one table row with a scalar in each column."""
        row = self.row()
        columns = {name: value for name, value in row.items() if not isinstance(value, (list, dict))}
        for name in NAMES if self.nulls is not None else ():
            for model in ("random", "mismatched"):
                score = self.null(name, model)
                if score is not None:
                    columns |= {
                        f"{name}_{model}_{part}": getattr(score, part) for part in ("mean", "spread", "deviations")
                    }
        for kind in ("plain", "folded"):
            columns |= {f"{kind}_{name}": value for name, value in row.get(kind, {}).items()}
        for name, bar in (self.errors or {}).items():
            columns |= {} if bar is None else {f"{name}_error": bar.bar, f"{name}_error_shift": bar.shift}
        for offset in self.offsets:
            parts = ("index", "low", "high", "change")
            columns |= {f"offset_{offset.offset}_{part}": getattr(offset, part) for part in parts}
        return columns


@dataclass(frozen=True)
class AuditLayer:
    """All heads of one layer together.

    Attributes
    ----------
    layer, name, heads, dim : index, name, number of heads and width of the layer.
    growth : predicted growth of the residual stream.
    growth_reads : "normed" if attention reads a normalised copy of the stream, "stream" if it reads the stream itself.
    regime : spectra and label of the sums over heads; None if sums were not computed.
    plain, folded : ``value_abscissa`` and ``value_radius`` of the summed value with the other choice of folding.
    label_random_rate, certified_random_rate : share of sums of random heads of these shapes that have the label of the sum, and for
        which a theorem certifies it; None if none were drawn.
    """

    layer: int
    name: str
    heads: int
    dim: int
    growth: Growth
    growth_reads: Literal["normed", "stream"]
    regime: LayerRegime | None = None
    plain: Quantities | None = None
    folded: Quantities | None = None
    label_random_rate: float | None = None
    certified_random_rate: float | None = None

    def row(self) -> dict[str, Any]:
        """The layer as a flat JSON object; parts that were not computed are left out."""
        row: dict[str, Any] = {"layer": self.layer, "name": self.name, "heads": self.heads, "dim": self.dim}
        if self.regime is not None:
            row |= self.regime.row()
            row |= {name: getattr(self, name) for name in ("label_random_rate", "certified_random_rate")}
        row |= {name: part for name in ("plain", "folded") if (part := getattr(self, name)) is not None}
        return {**row, **self.growth.row(), "growth_reads": self.growth_reads}


@dataclass(frozen=True)
class UndefinedLayer:
    """A layer whose heads have no interaction matrix, and the reason."""

    layer: int
    name: str
    reason: str


@dataclass(frozen=True)
class VerifiedLayers:
    """Comparison with the original model: the layers, the largest relative ``error``, or the ``reason`` why it could not be made;
    ``passed`` if the error is no more than rounding."""

    layers: list[int]
    error: float | None
    reason: str | None
    passed: bool = False


@dataclass(frozen=True)
class AuditCard:
    """The audited model and the settings of the audit: family title, sizes, placement and type of the norm, source of the weights."""

    title: str
    model_type: str | None
    layers: int
    heads: int
    groups: int
    dim: int
    placement: str
    norm: str | None
    source: str
    remark: str
    verified: VerifiedLayers | None
    settings: AuditSettings


@dataclass(frozen=True)
class Audit:
    """Spectra and regimes of every head and layer of a model.

    Attributes
    ----------
    model, family : name of the model and of its family.
    folded : whether the norm before attention is folded into the weights.
    heads : one ``AuditHead`` for each head.
    layers : one ``AuditLayer`` for each layer that has heads.
    undefined : layers without an interaction matrix.
    notes : remarks on the weights and on what was left out.
    seconds : wall-clock time.
    card : what was audited and how.
    findings : what is notable about the heads, what random heads share last.
    """

    model: str
    family: str
    folded: bool
    heads: tuple[AuditHead, ...]
    layers: tuple[AuditLayer, ...]
    undefined: tuple[UndefinedLayer, ...]
    notes: tuple[str, ...]
    seconds: float
    card: AuditCard
    findings: tuple[Finding, ...] = ()

    @property
    def spectra(self) -> tuple[Spectra, ...]:
        """Eigenvalues of every head, in the order of ``heads``."""
        return tuple(head.spectra for head in self.heads)

    @property
    def heads_by_layer(self) -> dict[str, list[AuditHead]]:
        """The heads of each layer, by the name of the layer."""
        found: dict[str, list[AuditHead]] = {}
        for head in self.heads:
            found.setdefault(head.name, []).append(head)
        return found

    def row(self) -> dict[str, Any]:
        """The audit as a JSON object, without eigenvalues."""
        rows = {name: [row.row() for row in getattr(self, name)] for name in ("heads", "layers")}
        rows["undefined"] = [asdict(row) for row in self.undefined]
        rows["findings"] = [one.row() for one in self.findings]
        return {**vars(self), **rows, "card": asdict(self.card)}

    def frame(self, rows: Literal["heads", "layers"] = "heads") -> Any:
        """A pandas DataFrame with one row for each head (the columns of the CSV file), or for each layer."""
        if rows == "heads":
            return to_frame([head.flat_row() for head in self.heads])
        flat = [
            {name: value for name, value in layer.row().items() if not isinstance(value, dict)} for layer in self.layers
        ]
        return to_frame(flat)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained HTML page; needs ``attractor[report]``."""
        report = import_module("attractor.report")  # a higher layer, loaded on demand
        return report.audit_report([self], command=f"at.audit({self.model!r}, fold={self.folded})").write(path)

    def __repr__(self) -> str:
        sizes = f"{len(self.layers)} layers, {len(self.heads)} heads, {'folded' if self.folded else 'plain'}"
        found = count_labels(self.heads)
        if not found and self.undefined:
            found = f"no head has matrices: {self.undefined[0].reason}"
        return f"Audit({self.model!r}, {self.family}, {sizes}: {found})"

    def _repr_html_(self) -> str:
        """Medians over the heads of each layer as an HTML table."""
        shown = {quantity.name: quantity for quantity in QUANTITIES if quantity.name in SUMMARY}
        head = "".join(
            f'<th title="{escape(f"{shown[name].title}: {shown[name].meaning}")}">{name}</th>' for name in SUMMARY
        )
        rows = []
        for name, heads in self.heads_by_layer.items():
            medians = (median(head.quantities[column] for head in heads) for column in SUMMARY)
            cells = "".join(f"<td>{'' if value is None else f'{value:.3g}'}</td>" for value in medians)
            rows.append(f"<tr><th>{escape(name)}</th>{cells}<td>{escape(count_labels(heads))}</td></tr>")
        rows += [f"<tr><th>{escape(row.name)}</th><td>{escape(row.reason)}</td></tr>" for row in self.undefined]
        caption = f"<caption>{escape(repr(self))}<br>medians over heads; spectra of weights alone</caption>"
        titles = f"<thead><tr><th></th>{head}<th>labels</th></tr></thead>"
        return f"<table>{caption}{titles}<tbody>{''.join(rows)}</tbody></table>"


def count_labels(heads: Iterable[AuditHead]) -> str:
    """How many heads have each label, most frequent first, how many a theorem certifies, and the share of random heads with the label."""
    groups: dict[str, list[AuditHead]] = {}
    for head in heads:
        groups.setdefault(head.label.name, []).append(head)
    named = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    return ", ".join(f"{len(group)} {name} ({describe_label_rate(group)})" for name, group in named)


def name_label(name: str, rate: float | None) -> str:
    """A label with the share of random heads, or of random layers, that have it."""
    if name == "undefined":
        return name
    return f"{name} (random: {'unknown' if rate is None else f'{100 * rate:.3g}%'})"


def describe_label_rate(group: Sequence[AuditHead]) -> str:
    """How many of some heads with one label are certified, and the mean shares of random heads with it and with its certificate."""
    certified = sum(head.label.certified for head in group)
    words = [f"{certified} certified"] if certified else []
    rates = [head.label_random_rate for head in group if head.label_random_rate is not None]
    if not rates:
        return ", ".join([*words, "no matrices" if group[0].label.name == "undefined" else "random heads: unknown"])
    words.append(f"random heads: {100 * statistics.fmean(rates):.3g}%")
    proved = [head.certified_random_rate for head in group if head.certified_random_rate is not None]
    if certified and statistics.fmean(proved) != statistics.fmean(rates):
        words.append(f"certified {100 * statistics.fmean(proved):.3g}%")
    return ", ".join(words)


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def median_deviation(heads: Iterable[AuditHead], name: str, model: NullModel) -> float | None:
    """The median over heads of the absolute deviation of a quantity from a null model."""
    scores = [score for head in heads if (score := head.null(name, model)) is not None]
    return median(None if score.deviations is None else abs(score.deviations) for score in scores)


def _table(audits: Sequence[Audit]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of all audits together, and one row for each head."""
    rows = [{"model": audit.model, **head.flat_row()} for audit in audits for head in audit.heads]
    return list(dict.fromkeys(name for row in rows for name in row)) or ["model"], rows


def write_csv(audits: Sequence[Audit], path: Path) -> None:
    """Write one row for each head of every model."""
    columns, rows = _table(audits)
    with write_atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(audits: Sequence[Audit], path: Path) -> None:
    """Write the same table as Parquet, with the card of every model in its metadata."""
    pyarrow, parquet = import_pyarrow()
    columns, rows = _table(audits)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    cards = {audit.model: asdict(audit.card) for audit in audits}
    table = table.replace_schema_metadata({"attractor.audit": json.dumps(cards, default=str)})
    with write_atomic(path) as temporary:
        parquet.write_table(table, temporary)


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and pyarrow.parquet.

    Raises
    ------
    MissingPackageError : with the command that installs pyarrow.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet
