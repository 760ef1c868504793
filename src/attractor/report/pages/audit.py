"""Report page of ``attractor audit``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.models import Comparison, count_labels, list_columns, name_label
from attractor.plotting import PlotlySpec, style
from attractor.report.blocks import (
    Badge,
    CellFigures,
    Code,
    Measure,
    measure_content,
    panel_rows,
    share_phrases,
    split_common,
)
from attractor.report.figures import escape_text, scatter
from attractor.report.pages.trace import add_findings, name_findings
from attractor.report.report import Report, Section
from attractor.weights import LABELS, QUANTITIES, Quantity

if TYPE_CHECKING:
    from attractor.models import Audit, AuditHead, HeadChange, Spectra
    from attractor.weights import NullScore, Offset


def audit_report(audits: Sequence[Audit], compared: Sequence[Comparison] = (), command: str = "") -> Report:
    """Build the page of one audit, or of several with their comparisons."""
    short = [_short_name(audit.model) for audit in audits]
    # equal names are numbered
    names = [
        name if name not in short[:at] else f"{name} ({short[:at].count(name) + 1})" for at, name in enumerate(short)
    ]
    first = audits[0]
    if compared:
        sentences = [f"{names[0]} -> {name}: {one.describe()}" for name, one in zip(names[1:], compared, strict=True)]
    else:
        sentences = [name_findings([one.row() for one in first.findings])] if first.heads else []
    sentences.append("No text was read: see attractor trace for the tokens of a text.")
    report = Report(
        f"Audit of {', '.join(dict.fromkeys(short))}",
        command,
        lead=" ".join(sentences),
        facts=facts(first) if len(audits) == 1 else {name: audit.card.title for name, audit in zip(names, audits, strict=True)},
        kicker="attractor audit",
    )  # fmt: skip
    for one in compared:
        add_comparison(report, one)
    for name, audit in zip(names, audits, strict=True):
        add_audit(report, audit, f" of {name}" if len(audits) > 1 else "", len(audits) + len(compared))
    add_meanings(report)
    add_method(report, audits)
    return report


def facts(audit: Audit) -> dict[str, Any]:
    card = audit.card
    return {
        "family": card.title,
        "layers": card.layers,
        "heads": card.heads,
        "keys and values": card.groups,
        "width": card.dim,
        "norm": f"{card.norm} ({card.placement}), {'folded in' if audit.folded else 'not folded in'}",
        "seconds": round(audit.seconds, 1),
    }


CALIBRATED = (
    "Every head is compared with random heads of its shape, for labels under the same mask and positions; the column of random weights is "
    "the share of random heads that have the finding. No random head of the shapes of MiniLM, SmolLM2 and stories15M reaches a "
    "threshold other than those of labels. A label that most random heads have too says nothing about training."
)


def add_audit(report: Report, audit: Audit, of: str = "", share: int = 1) -> None:
    """Add the sections of one model; ``share`` is the number of models and comparisons on the page."""
    if audit.heads:
        rows = [one.row() for one in audit.findings]
        add_findings(report.section(f"Findings{of}"), rows, CALIBRATED)
    part = report.section(f"Heads{of}", lead=summarise_audit(audit))
    for note in audit.notes:
        part.text(note, "warn")
    for row in audit.undefined[:1]:
        part.text(f"{len(audit.undefined)} layers have no interaction matrix: {row.reason}.", "warn")
    if not audit.heads:
        return
    budget = find_budget(audit, share)
    grid = budget.grid(audit)
    if (less := budget.describe(audit)) is not None:
        part.text(less, "warn")
    part.heatmap(
        {**grid.values(), "label": grid.label()},
        rows=grid.layers,
        columns=grid.heads,
        caption="Numbers of every head. The panel of a cell shows the spectra of its value, W and metric form, deviations (σ) from nulls, "
        "and the values without the norm (plain) or with it (folded).",
        alt="A grid of layers by heads, coloured by a number of the weights",
        detail=grid.detail,
        figures=CellFigures(grid.figure, LAYOUT, "Eigenvalues of the head"),
    )
    if audit.heads[0].nulls is not None:
        part = report.section(
            f"Against nulls{of}",
            lead="Each head compared with random heads of its shape and norms, and with mismatched heads of its layer.",
        )
        part.heatmap(
            grid.deviations(),
            rows=grid.layers,
            columns=grid.heads,
            caption="Distance of each head from the mean of the null, in standard deviations.",
            alt="A grid of layers by heads, coloured by deviations from a null",
            detail=grid.nulls,
        )
    add_layers(report, audit, of)


def summarise_audit(audit: Audit) -> str:
    """Return one or two sentences on the labels and the largest deviation."""
    if not audit.heads:
        return "No head of this model has an interaction matrix."
    words = f"{len(audit.heads)} heads: {count_labels(audit.heads)}."
    paired = [quantity for quantity in QUANTITIES if quantity.half == "both"]
    far = [
        (abs(null.deviations), head, quantity)
        for head in audit.heads
        for quantity in paired
        if (null := head.null(quantity.name, "mismatched")) is not None and null.deviations is not None
    ]
    if far:
        away, head, quantity = max(far, key=lambda one: one[0])
        words += (
            f" Farthest from mismatched heads: {head.name} head {head.head}, {quantity.name}, by {away:.1f} deviations."
        )
    return words


def add_layers(report: Report, audit: Audit, of: str) -> None:
    part = report.section(
        f"Layers{of}",
        lead="All heads of a layer together. The sum of value maps moves a consensus; theorems apply if the heads share a metric.",
    )
    if any(layer.regime is not None for layer in audit.layers):
        part.figure(
            layer_figure(audit),
            "Discrete radius of the summed value, predicted growth of the norm of a consensus, and share of the interactions that the "
            "best shared metric does not explain.",
            alt=f"Radius of the value, growth of the norm and residual of a shared metric over {len(audit.layers)} layers",
            height=340,
        )
    columns = [
        "layer",
        "value_abscissa",
        "value_radius",
        "interaction_index",
        "metric_index",
        "residual",
        "growth_consensus",
        "growth_diffuse",
        "label",
    ]
    rows = [
        {name: row.get(name) for name in columns}
        | {"layer": layer.name.removeprefix("layer ")}
        | ({} if layer.regime is None else {"label": name_label(row["label"], layer.label_random_rate)})
        for layer in audit.layers
        for row in [layer.row()]
    ]
    part.table(
        rows,
        [name for name in columns if any(row[name] is not None for row in rows)],
        caption="Sums over heads: largest real part and discrete radius of the value, indices of W and of the metric form, residual of the "
        "best shared metric; growth of the root mean square of a stream of unit size, for random directions at consensus and for "
        "diffuse attention.",
    )
    if any(head.offsets for head in audit.heads):
        part.figure(
            offset_figure(audit),
            "W depends on the offset under rotary positions: definiteness index, and change relative to offset 0; median and quartiles "
            "over all heads.",
            alt="Definiteness index and change of W over offsets of key and query",
            height=320,
        )


LAYOUT: PlotlySpec = {
    "height": 600,
    "margin": {"l": 48, "r": 12, "t": 64, "b": 40},
    "xaxis": {"title": {"text": "real part"}, "domain": [0, 1], "zeroline": True},
    "yaxis": {"title": {"text": "imaginary part"}, "domain": [0.56, 1], "zeroline": True, "scaleanchor": "x"},
    "xaxis2": {"title": {"text": "rank of the eigenvalue"}, "anchor": "y2", "domain": [0, 1]},
    "yaxis2": {"title": {"text": "eigenvalue"}, "domain": [0, 0.38], "zeroline": True, "anchor": "x2"},
    "legend": {"orientation": "h", "x": 0, "y": 1.03, "xanchor": "left", "yanchor": "bottom", "font": {"size": 11}},
    "showlegend": True,
}


JUDGED = (
    "interaction_index",
    "interaction_asymmetry",
    "metric_index",
    "reduced_metric_index",
    "metric_asymmetry",
    "value_abscissa",
    "value_radius",
)


DEVIATIONS = {"random": "from random", "mismatched": "from mismatched", "others": "from other heads"}


NULL_MEANINGS = {
    "random": "Deviations from random heads: independent normal entries, the same shape, the same Frobenius norms of W and of the value.",
    "mismatched": "Deviations from heads of the same layer with the queries and keys of one and the values and outputs of another.",
    "others": "Deviations from the other heads of the layer: mismatching changes nothing in a number that one half of a head decides.",
}


class HeadGrid:
    """Heads by layers: measures, panels and figures of the cells."""

    def __init__(self, audit: Audit, every: int = 1, points: int | None = None, judged: bool = False) -> None:
        """Show one layer of ``every``, ``points`` of every spectrum, and only the ``judged`` nulls."""
        self.audit, self.points, self.judged = audit, points, judged
        names = {row.layer: row.name for row in (*audit.heads, *audit.undefined)}
        self.indices = sorted(names)[::every]
        self.layers = [names[index].removeprefix("layer ") for index in self.indices]
        self.heads = range(max(head.head for head in audit.heads) + 1)
        self.places = {(head.layer, head.head): place for place, head in enumerate(audit.heads)}

    def place(self, row: int, column: int) -> int | None:
        return self.places.get((self.indices[row], column))

    def head(self, row: int, column: int) -> AuditHead | None:
        place = self.place(row, column)
        return None if place is None else self.audit.heads[place]

    def table(self, read: Callable[[AuditHead], Any], empty: Any = float("nan")) -> list[list[Any]]:
        """Return ``read`` of every head by layers, ``empty`` where a layer has no such head."""
        rows = ([self.head(row, column) for column in self.heads] for row in range(len(self.layers)))
        return [[empty if head is None else read(head) for head in row] for row in rows]

    def values(self) -> dict[str, Measure]:
        return {
            quantity.name: Measure(
                self.table(lambda head, name=quantity.name: as_float(head.quantities[name])),
                "diverging" if quantity.signed else "sequential",
                f"{quantity.title[0].upper()}{quantity.title[1:]}: {quantity.meaning}.",
            )
            for quantity in QUANTITIES
        }

    def label(self) -> Measure:
        words = "; ".join(
            f"{name}: {LABELS[name]}" for name in dict.fromkeys(head.label.name for head in self.audit.heads)
        )
        return Measure(
            self.table(lambda head: name_label(head.label.name, head.label_random_rate), None),
            "category",
            f"The regime of the head alone, as a flow without norms. {words}.",
        )

    def deviations(self) -> dict[str, Measure]:
        found = {}
        for quantity in (one for one in QUANTITIES if one.name in JUDGED):
            for kind in ("random", "mismatched"):
                values = self.table(lambda head, name=quantity.name, kind=kind: deviation(head.null(name, kind)))
                if any(value == value for line in values for value in line):
                    shown = kind if kind == "random" or quantity.half == "both" else "others"
                    found[f"{quantity.name}, {DEVIATIONS[shown]}"] = Measure(values, "diverging", NULL_MEANINGS[shown])
        return found

    def detail(self, row: int, column: int) -> dict[str, Any]:
        """Return the label and every number of a head, with error bar, deviations and the value without the norm."""
        head = self.head(row, column)
        if head is None:
            reasons = (one.reason for one in self.audit.undefined if one.layer == self.indices[row])
            return {"undefined": next(reasons, "")}
        label = head.label
        verdict = name_label(label.name, head.label_random_rate)
        verdict += "" if label.certificate is None else f", certified by {label.certificate}"
        return {"label": verdict, "why": label.why} | {
            quantity.name: describe_number(head, quantity) for quantity in QUANTITIES
        }

    def nulls(self, row: int, column: int) -> dict[str, Any]:
        """Return every number of a head with its nulls."""
        head = self.head(row, column)
        if head is None:
            return {}
        return {
            f"{quantity.name}, {kind}": f"{compact(head.quantities[quantity.name])} against {compact(null.mean)} ± {compact(null.spread)}"
            for quantity in QUANTITIES
            for kind in ("random", "mismatched")
            if (not self.judged or quantity.name in JUDGED) and (null := head.null(quantity.name, kind)) is not None
        }

    def figure(self, row: int, column: int) -> list[PlotlySpec] | None:
        place = self.place(row, column)
        return (
            None
            if place is None or not self.audit.spectra
            else spectrum_traces(self.audit.spectra[place], self.audit.heads[place], self.points)
        )


def deviation(null: NullScore | None) -> float:
    return as_float(None if null is None else null.deviations)


def describe_number(head: AuditHead, quantity: Quantity) -> str:
    """Return a number with its error bar, deviations from nulls, and the value without (plain) or with (folded) the norm."""
    text = compact(head.quantities[quantity.name])
    bar = (head.errors or {}).get(quantity.name)
    if bar is not None:
        text += f" ± {bar.bar:.1g}"
    away = [
        f"{kind} {null.deviations:+.1f}σ"
        for kind in ("random", "mismatched")
        if (null := head.null(quantity.name, kind)) is not None and null.deviations is not None
    ]
    others = {"plain": head.plain, "folded": head.folded}
    other = [f"{kind} {compact(part[quantity.name])}" for kind, part in others.items() if part is not None]
    return " · ".join([text, *away, *other])


def as_float(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def compact(value: float | None) -> str:
    return "not defined" if value is None else f"{value:.3g}"


def spectrum_traces(spectra: Spectra, head: AuditHead, most: int | None = None) -> list[PlotlySpec]:
    """Return the eigenvalues of the value in the plane, with the disc of a random head, and those of the symmetric forms by rank;
    ``most`` of each, with the extreme ones."""
    value = spectra.value.numpy()
    value = _thin(value, most)
    made = [
        {
            **_dots("value O V", _round(np.real(value)), _round(np.imag(value)), style.PALETTE[0]),
            "hovertemplate": "%{x:.3g} + %{y:.3g}i<extra></extra>",
        }
    ]
    null = head.null("value_abscissa", "random")
    if null is not None:
        angle = np.linspace(0, 2 * np.pi, 25)
        x, y = _round(null.mean * np.cos(angle)), _round(null.mean * np.sin(angle))
        line = {"color": style.QUIET, "dash": "dot", "width": 1, "shape": "spline"}
        made.append(scatter(x, y, name="radius of a random head", hoverinfo="skip", line=line))
    forms = {
        "sym W": spectra.interaction,
        "sym W, reduced": spectra.reduced_interaction,
        "metric form": spectra.reduced_metric,
    }
    for (name, values), colour in zip(forms.items(), style.PALETTE[1:], strict=False):
        rank = np.arange(len(values)) / max(len(values) - 1, 1)
        shown = _spaced(len(values), most)
        dots = _dots(name, _round(rank[shown]), _round(values.numpy()[shown]), colour)
        made.append(
            {**dots, "xaxis": "x2", "yaxis": "y2", "hovertemplate": "%{y:.3g}<extra>" + escape_text(name) + "</extra>"}
        )
    return made


def _thin(value: np.ndarray, most: int | None) -> np.ndarray:
    """Return eigenvalues of a real matrix evenly by size, as conjugate pairs, with the largest and smallest real part and the largest
    |1 + x| and |x|."""
    if most is None or len(value) <= most:
        return value[np.argsort(-np.abs(value), kind="stable")]
    upper = value[np.imag(value) >= 0]
    upper = upper[np.argsort(-np.abs(upper), kind="stable")]
    ends = [np.argmax(np.real(upper)), np.argmin(np.real(upper)), np.argmax(np.abs(1 + upper)), 0]
    for count in range(most, 0, -1):
        kept = upper[np.union1d(_spaced(len(upper), count), ends).astype(int)]
        both = np.concatenate((kept, np.conj(kept[np.imag(kept) > 0])))
        if len(both) <= most:
            return both
    return upper[np.unique(ends)]


def _spaced(count: int, most: int | None) -> np.ndarray:
    """Return evenly spaced indices, both ends included."""
    if most is None or count <= most:
        return np.arange(count)
    return np.unique(np.round(np.linspace(0, count - 1, most)).astype(int))


def _dots(name: str, x: list[float], y: list[float], colour: str) -> PlotlySpec:
    return scatter(x, y, "markers", name=name, marker={"size": 4, "color": colour})


def _round(values: np.ndarray) -> list[float]:
    """Round to four digits, finer than a pixel."""
    return [float(f"{value:.4g}") for value in values]


def layer_figure(audit: Audit) -> PlotlySpec:
    """Return radius, growth and residual along depth."""
    curves = {"discrete radius": "value_radius", "growth at consensus": "growth_consensus", "residual": "residual"}
    names, rows = [layer.name.removeprefix("layer ") for layer in audit.layers], [layer.row() for layer in audit.layers]
    data = [
        scatter(names, [row.get(name) for row in rows], "lines+markers", name=title) for title, name in curves.items()
    ]
    return {
        "data": data,
        "layout": {"xaxis": {"title": {"text": "layer"}, "type": "category"}, "yaxis": {"rangemode": "tozero"}},
    }


def offset_figure(audit: Audit) -> PlotlySpec:
    """Return median and quartiles over heads of index and change at each offset."""
    found: dict[int, list[Offset]] = {}
    for head in audit.heads:
        for row in head.offsets:
            found.setdefault(row.offset, []).append(row)
    offsets = sorted(found)
    data = []
    for name, colour in (("index", style.PALETTE[0]), ("change", style.PALETTE[1])):
        columns = [np.quantile([getattr(row, name) for row in found[offset]], (0.25, 0.5, 0.75)) for offset in offsets]
        low, middle, high = (list(map(float, part)) for part in zip(*columns, strict=True))
        error = {"type": "data", "symmetric": False, "array": [b - a for a, b in zip(middle, high, strict=True)]}
        error |= {"arrayminus": [b - a for a, b in zip(low, middle, strict=True)], "thickness": 1}
        x = [str(offset) for offset in offsets]
        data.append(scatter(x, middle, "lines+markers", name=name, error_y=error, line={"color": colour}))
    return {"data": data, "layout": {"xaxis": {"title": {"text": "key minus query"}, "type": "category"}}}


MOST = 1600  # heads of a comparison, for a page below 8 MB


def add_comparison(report: Report, compared: Comparison) -> None:
    """Add what changed between two models."""
    before, after = _short_name(compared.first), _short_name(compared.second)
    part = report.section(f"What changed: {before} to {after}", lead=compared.describe())
    columns = before, after if after != before else f"{after} (2)"
    rows = [
        dict(
            zip(
                ("quantity", *columns, "change"),
                (quantity.name, row.first, row.second, row.change),
                strict=True,
            )
        )
        for quantity in QUANTITIES
        if (row := compared.summary[quantity.name]).first is not None
    ]
    if compared.heads:
        _add_changes(part, compared)
    part.table(rows, caption="Medians over all heads.")


def _add_changes(part: Section, compared: Comparison) -> None:
    _add_moved(part, compared)
    layers = list(dict.fromkeys(head.layer for head in compared.heads))
    every = -(-len(compared.heads) // MOST)
    layers = layers[::every]
    heads = range(max(head.head for head in compared.heads) + 1)
    found: dict[tuple[int, int], HeadChange] = {(head.layer, head.head): head for head in compared.heads}
    measures = {
        "interaction_moved": ("interaction_moved", "Frobenius norm of the change of W over that of W."),
        "value_moved": ("value_moved", "Frobenius norm of the change of the value map over that of the map."),
        "standardised": (
            "standardised",
            "Mean change of all numbers, each in units of its spread over the first model's heads.",
        ),
    }
    part.heatmap(
        {
            title: Measure(
                [[as_float(getattr(found.get((layer, head)), name, None)) for head in heads] for layer in layers],
                words=words,
            )
            for title, (name, words) in measures.items()
            if getattr(compared.heads[0], name) is not None
        },
        rows=layers,
        columns=heads,
        caption="How far each head moved." + (f" One layer of {every} is shown." if every > 1 else ""),
        alt="A grid of layers by heads, coloured by how far they moved",
        detail=lambda row, column: {
            quantity.name: head.changes[quantity.name]
            if (head := found.get((layers[row], column))) is not None
            else None
            for quantity in QUANTITIES
        },
    )


def _add_moved(part: Section, compared: Comparison) -> None:
    """Add the heads that moved most, and the labels that changed."""
    top = compared.most_moved[:12]
    if top:
        part.table([describe_change(row) for row in top], caption="The heads that moved most.")
    if compared.relabelled:
        shown = compared.relabelled[:12]
        more = f", {len(shown)} of {len(compared.relabelled)}" if len(compared.relabelled) > len(shown) else ""
        part.table([describe_change(row) for row in shown], caption=f"Labels that changed{more}.")


def describe_change(row: HeadChange) -> dict[str, Any]:
    """Return how far a head moved and its labels, each with the share of random heads that have it."""
    before, after = row.labels
    distances = {"interaction_moved": row.interaction_moved, "value_moved": row.value_moved}
    return {
        "layer": row.name,
        "head": row.head,
        "moved": row.moved,
        **({} if row.value_moved is None else distances),
        "standardised": row.standardised,
        "label": before if row.label[0] == row.label[1] else f"{before} → {after}",
    }


HALVES = {"scores": "query and key", "moves": "value and output", "both": "all four"}


def add_meanings(report: Report) -> None:
    part = report.section("What each number means")
    part.text(
        r"A head scores tokens by \(s_{ij} = x_i^\top W x_j\), \(W = \mathrm{scale}\,Q^\top K\), and moves them by "
        r"\(\dot x_i = \sum_j w_{ij} V x_j\) with the value map \(V = O V'\). Alone it is a dynamical system on the range of \(O\); "
        r"the metric \(A = W V^{-1}\) there makes \(A\dot x_i\) a gradient. \(V^\top W\) is congruent to \(A\) and needs no inverse."
    )
    part.table(
        [
            {
                "column": quantity.name,
                "meaning": f"{quantity.title}: {quantity.meaning}",
                "made of": HALVES[quantity.half],
                "depends on": Badge("weights alone"),
            }
            for quantity in QUANTITIES
        ]
    )  # fmt: skip
    part.text(
        "A label, and the theorem that certifies it, describe the head by itself: tokens that move by this head's attention alone, in "
        "continuous time, without norms, feed-forward and other heads. They do not describe what the model does to a text."
    )
    part.fold("Labels").table([{"label": name, "meaning": meaning} for name, meaning in LABELS.items()])
    entries = {"All columns of heads": list_columns("audit"), "Columns of a comparison": list_columns("comparison")}
    for title, columns in entries.items():
        part.fold(f"{title} (JSON, CSV, --fail-if)").table(
            [{"column": name, "meaning": meaning} for name, meaning in columns.items()]
        )


def add_method(report: Report, audits: Sequence[Audit]) -> None:
    part = report.section("How it was computed")
    for audit in audits:
        card, checked = audit.card, audit.card.verified
        proof = "not compared with the model's own code"
        if checked is not None:
            proof = (
                f"not possible: {checked.reason}"
                if checked.error is None
                else f"our attention equals the model's own to {checked.error:.1g} (layers {', '.join(map(str, checked.layers))})"
                if checked.passed
                else f"FAILED: our attention differs from the model's own by {checked.error:.2g}; do not trust these numbers"
            )
        part.card(
            {
                "model": Code(audit.model),
                "source": Code(card.source),
                "family": card.title,
                "type": card.model_type,
                "layers, heads, groups, width": f"{card.layers}, {card.heads}, {card.groups}, {card.dim}",
                "verified": proof,
                **({"remark": card.remark} if card.remark else {}),
                "settings": ", ".join(f"{name} {value}" for name, value in vars(card.settings).items()),
            },
            title=_short_name(audit.model),
        )
    part.text(
        r"No matrix of the width of the model is diagonalised for a head: with the Gram matrix of the rows of \(Q\) and \(K\) and "
        r"its Cholesky factor \([R_1\,R_2]\), \(W\) has the eigenvalues of \(R_1 R_2^\top\), of twice the size of a head, and zeros. "
        r"Everything is computed in float64, but for wide models whose weights are stored with 16 bits: their products are formed, "
        r"and the eigenvalues of W and V'W found, in float32. Folding takes the norm's gain \(\Gamma\) and centring \(\Pi\) into the "
        r"weights, \(Q \leftarrow Q\Gamma\Pi\); in post-norm models attention adds to the very tokens that it reads, and unless --fold is "
        r"given the numbers are those of the weights as they are stored."
    )
    part.text(
        "Random heads have independent normal entries, rescaled to the Frobenius norms of the head's own W and V; only inner products "
        "matter, so they are drawn as Wishart matrices of the size of a head. Mismatched heads join the queries and keys of one head "
        "with the values and outputs of another of its layer, both ways."
    )
    if any(head.errors for audit in audits for head in audit.heads):
        part.text(
            "Error bars of quantised weights: every weight was moved by an independent uniform error of its block's step and all "
            "numbers were measured again; the bar is the root mean square change. The rounding of the block scales is not included.",
            "warn",
        )


def _short_name(model: str) -> str:
    """Return the last informative part of a path or hub name."""
    parts = [part for part in Path(model).parts if part not in ("/", "model", "snapshots")]
    return parts[-1] if parts else model


PAGE = 8_000_000  # largest page, in bytes
REST = 5_100_000  # plotly, text, tables and other figures
FEW = 24  # heads whose size is measured
LEVELS = ((None, False), (96, False), (64, False), (48, True), (32, True), (24, True), (16, True))


@dataclass(frozen=True)
class PageBudget:
    """What of a grid fits on the page: one layer of ``every``, ``points`` of a spectrum (None: all), all nulls or the ``judged`` ones."""

    every: int = 1
    points: int | None = None
    judged: bool = False

    def grid(self, audit: Audit) -> HeadGrid:
        return HeadGrid(audit, self.every, self.points, self.judged)

    def describe(self, audit: Audit) -> str | None:
        """Return a sentence on what is left out, None if nothing is."""
        layers = len({row.layer for row in (*audit.heads, *audit.undefined)})
        parts = [f"one layer of {self.every} of all {layers}"] * (self.every > 1)
        longest = max((len(values) for values in (audit.spectra[0] if audit.spectra else ())), default=0)
        if self.points is not None and self.points < longest:
            parts.append(f"{self.points} eigenvalues of every spectrum, the extreme ones among them")
        if self.judged:
            parts.append("fewer nulls in the panels")
        if not parts:
            return None
        return (
            f"To stay below {PAGE // 1_000_000} MB this page shows {', '.join(parts)}; --json and --csv have the numbers of all heads, "
            "and at.audit(...).spectra all eigenvalues."
        )


def find_budget(audit: Audit, share: int = 1) -> PageBudget:
    """Return the largest budget that fits if ``share`` audits are on one page."""
    budget, layers = 0.93 * (PAGE - REST) / share, len({head.layer for head in audit.heads})
    if not audit.heads:
        return PageBudget()
    fixed = _measure_bytes(HeadGrid(audit))
    costs = [(points, judged, fixed + _panel_bytes(HeadGrid(audit, 1, points, judged))) for points, judged in LEVELS]
    for every in range(1, layers + 1):
        shown = len(audit.heads) * -(-layers // every) / layers
        for points, judged, cost in costs:
            if cost * shown <= budget:
                return PageBudget(every, points, judged)
    return PageBudget(layers, *LEVELS[-1])


def _panel_bytes(grid: HeadGrid) -> float:
    """Return the bytes of the panels and the figure of a head."""
    places = [(row, column) for row in range(len(grid.layers)) for column in grid.heads if grid.head(row, column)]
    few = places[:: max(1, len(places) // FEW)]
    total = sum(
        _size(share_phrases([[panel_rows(one(*place)) for place in few]])[0]) for one in (grid.detail, grid.nulls)
    )
    if grid.audit.spectra:
        total += _size(split_common([[grid.figure(*place) for place in few]])[0])
    return total / len(few)


def _measure_bytes(grid: HeadGrid) -> float:
    """Return the bytes of the measures of a cell."""
    values = {
        **grid.values(),
        "label": grid.label(),
        **(grid.deviations() if grid.audit.heads[0].nulls is not None else {}),
    }
    size = len(grid.layers), len(grid.heads)
    found = [measure_content(name, measure, size) for name, measure in values.items()]
    return sum(_size([one["values"], one.get("shown", [])]) for one in found) / (size[0] * size[1])


def _size(content: Any) -> int:
    return len(json.dumps(content, ensure_ascii=False).encode())
