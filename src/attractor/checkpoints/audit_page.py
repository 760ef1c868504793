"""An audit as a page: heads by layers with hover and spectra, layers, rotary family, comparisons, meanings, and how it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attractor.checkpoints.audit_pictures import LAYOUT, layer_figure, offset_figure
from attractor.checkpoints.audit_prose import add_meanings, add_method
from attractor.checkpoints.audit_room import room_for
from attractor.checkpoints.audit_words import labels, short_name
from attractor.checkpoints.comparison import Comparison
from attractor.checkpoints.comparison_page import add_comparison
from attractor.report import Pictures, Report
from attractor.theory.weights.quantities import QUANTITIES

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit


def audit_report(audits: Sequence[Audit], compared: Sequence[Comparison] = (), command: str = "") -> Report:
    """The page of one audit, or of several with their comparisons."""
    short = [short_name(audit.model) for audit in audits]
    # sections and facts are told apart by their names
    names = [
        name if name not in short[:at] else f"{name} ({short[:at].count(name) + 1})" for at, name in enumerate(short)
    ]
    first = audits[0]
    report = Report(
        f"Audit of {', '.join(dict.fromkeys(short))}",
        command,
        lead="What the weights of attention say, head by head. Every number on this page is a spectrum of weights alone: no text was read, "
        "and what the tokens of a text do is a matter of attractor trace.",
        facts=facts(first) if len(audits) == 1 else {name: audit.card.get("title") for name, audit in zip(names, audits, strict=True)},
        kicker="attractor audit",
    )  # fmt: skip
    for name, audit in zip(names, audits, strict=True):
        add_audit(report, audit, f" of {name}" if len(audits) > 1 else "", len(audits) + len(compared))
    for one in compared:
        add_comparison(report, one)
    add_meanings(report)
    add_method(report, audits)
    return report


def facts(audit: Audit) -> dict[str, Any]:
    card = audit.card
    return {
        "family": card.get("title", audit.family),
        "layers": card.get("layers"),
        "heads": card.get("heads"),
        "keys and values": card.get("groups"),
        "width": card.get("dim"),
        "norm": f"{card.get('norm')} ({card.get('placement')}), {'folded in' if audit.folded else 'not folded in'}",
        "seconds": round(audit.seconds, 1),
    }


def add_audit(report: Report, audit: Audit, of: str = "", share: int = 1) -> None:
    """The sections of one model; also for pages that have more to say, whose parts ``share`` their room."""
    part = report.section(f"Heads{of}", lead=summary(audit))
    for note in audit.notes:
        part.text(note, "warn")
    for row in audit.undefined[:1]:
        part.text(f"{len(audit.undefined)} layers have no matrices to speak of: {row['reason']}.", "warn")
    if not audit.heads:
        return
    room = room_for(audit, share)
    grid = room.grid(audit)
    if (less := room.words(audit)) is not None:
        part.text(less, "warn")
    part.heatmap(
        {**grid.values(), "label": grid.label()},
        rows=grid.layers,
        columns=grid.heads,
        caption="The numbers of every head; the panel of a cell shows the spectra of its value, of W and of its metric form, with the "
        "deviations (σ) of its numbers from nulls and their plain values, without the norm, or the folded ones with it.",
        alt="A grid of layers by heads, coloured by a number of the weights",
        detail=grid.detail,
        pictures=Pictures(grid.picture, LAYOUT, "Eigenvalues of the head"),
    )
    if "nulls" in audit.heads[0]:
        part = report.section(
            f"Against nulls{of}",
            lead="A number means little by itself. Each head is compared with random heads of its shape and norms, and with "
            "mismatched heads of its layer.",
        )
        part.heatmap(
            grid.deviations(),
            rows=grid.layers,
            columns=grid.heads,
            caption="How many standard deviations of the null each head is away from its mean.",
            alt="A grid of layers by heads, coloured by deviations from a null",
            detail=grid.against,
        )
    add_layers(report, audit, of)


def summary(audit: Audit) -> str:
    """What was found, in a sentence or two."""
    if not audit.heads:
        return "No head of this model has an interaction matrix."
    words = f"{len(audit.heads)} heads: {labels(audit.heads)}."
    paired = [quantity for quantity in QUANTITIES if quantity.half == "both"]
    far = [
        (abs(null["deviations"]), row, quantity)
        for row in audit.heads
        for quantity in paired
        if (null := (row.get("nulls", {}).get(quantity.name) or {}).get("mismatched"))
        and null["deviations"] is not None
    ]
    if far:
        away, row, quantity = max(far, key=lambda one: one[0])
        words += f" Farthest from mismatched heads: {row['name']} head {row['head']}, {quantity.title}, by {away:.1f} deviations."
    return words


def add_layers(report: Report, audit: Audit, of: str) -> None:
    part = report.section(
        f"Layers{of}",
        lead="All heads of a layer together: the sum of value maps moves a consensus, and one shared metric would bring theorems with it.",
    )
    if any("value_radius" in row for row in audit.layers):
        part.figure(
            layer_figure(audit),
            "The discrete radius of the summed value, the predicted growth of the norm of a consensus, and the share of the "
            "interactions that the best shared metric leaves.",
            alt=f"Radius of the value, growth of the norm and residual of a shared metric over {len(audit.layers)} layers",
            height=340,
        )
    columns = {
        "layer": "name",
        "real part": "value_abscissa",
        "radius": "value_radius",
        "index of W": "interaction_index",
        "metric index": "metric_index",
        "residual": "residual",
        "growth": "growth_consensus",
        "drift alone": "growth_diffuse",
        "label": "label",
    }
    rows = [
        {title: row.get(name) for title, name in columns.items()} | {"layer": row["name"].removeprefix("layer ")}
        for row in audit.layers
    ]
    part.table(
        rows,
        [title for title in columns if any(row[title] is not None for row in rows)],
        caption="Sums over heads: largest real part and discrete radius of the value, indices of W and of the metric form, what the best "
        "shared metric leaves; growth of the root mean square of a stream of unit size, for random directions at consensus and with "
        "attention spread so thin that its drift alone remains.",
    )
    if any(row["offsets"] for row in audit.heads):
        part.figure(
            offset_figure(audit),
            "Rotary positions make W a family: its definiteness index, and its change relative to W at offset 0, at each "
            "distance of key and query; median and quartiles over all heads.",
            alt="Definiteness index and change of W over offsets of key and query",
            height=320,
        )
