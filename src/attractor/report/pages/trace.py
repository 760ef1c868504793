"""Report page of ``attractor trace``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attractor.models import list_columns
from attractor.plotting import PlotlySpec, style
from attractor.report.blocks import Measure, format_value
from attractor.report.figures import axes_layout, scatter
from attractor.report.report import Report, Section

REST = "_without_first"
STREAM = {  # title, label of the axis, definition
    "token_norm": ("length of a token", "length", r"mean of \(|x_i|\)"),
    "pairwise_distance": ("squared distance of two tokens", "squared distance", r"mean of \(|x_i - x_j|^2\)"),
    "cosine": ("mean cosine of two tokens", "mean cosine", r"1 at consensus"),
    "cosine_min": ("smallest cosine, with its sign", "smallest cosine", "an antipodal pair has -1"),
    "effective_rank": ("effective rank", "effective rank", "the exponential of the entropy of the spectrum"),
    "sharpness": ("sharpness", "sharpness", "the share of the tokens' size that is spread; 0 at consensus"),
    "clusters": ("clusters", "clusters", "groups of tokens that are closer than a tenth of the longest one's length"),
    "energy": ("energy on the sphere", "energy", r"\(\tfrac12\,\mathrm{mean}\,e^{\cos(x_i, x_j)}\); e/2 at consensus"),
    "first_norm": ("length of the first token over the others'", "first / others", "hundreds where it is a sink"),
}
PARTS = {"attention": "attention", "feedforward": "feed-forward", "displacement": "whole block"}
LOGARITHMIC = ("token_norm", "pairwise_distance", "first_norm")
DIVERGING = ("expansion", "log_energy")


def trace_report(report: dict[str, Any]) -> Report:
    """Build the page of a trace."""
    model, count = report["model"], report["texts"]
    name = "/".join(Path(model["name"]).parts[-2:])
    cosine = report["curves"]["cosine"]["mean"]
    lead = f"{name_findings(report['findings'])} The mean cosine of two tokens goes from {cosine[0]:.3g} to {cosine[-1]:.3g}."
    facts = {
        "model": name,
        **({} if model["family"] is None else {"family": model["family"]}),
        "layers": model["layers"],
        "width": model["dim"],
        report["reads"]: count,
        "tokens": sum(report["lengths"]),
    }
    if report["without"]:
        facts["without"] = ", ".join(report["without"])
    page = Report(f"Where the tokens of {name} go", report["command"], lead=lead, facts=facts, kicker="attractor trace")
    for note in report["notes"]:
        page.text(note, tone="warn")
    if report["skipped"]:
        names = ", ".join(one["text"] for one in report["skipped"])
        page.text(f"Left out, with fewer than two tokens: {names}.", tone="warn")
    add_findings(page.section("Findings"), report["findings"], CALIBRATED)
    add_stream(page.section("The residual stream along depth"), report)
    add_blocks(page.section("Displacement by block"), report)
    if report["heads"]:
        add_heads(page.section(f"Heads on these {report['reads']}"), report)
    add_definitions(page.section("Definitions"), report)
    return page


CALIBRATED = (
    "Quantities are means over texts. Thresholds were chosen on MiniLM, SmolLM2 and copies of them with random weights, and tested on "
    "other models and seeds (docs/checkpoints.md, Findings). The column of random weights is the share of places that have the finding "
    "in this model with random weights. What most places have with random weights too says nothing about training."
)


def name_findings(rows: Sequence[dict[str, Any]]) -> str:
    """What was found, in one sentence; findings that random weights share are left out."""
    names = [row["kind"].replace("_", " ") for row in rows if not row["common"]]
    return f"Found: {', '.join(names)}." if names else "Nothing was found that random weights do not show."


def add_findings(section: Section, rows: Sequence[dict[str, Any]], words: str) -> None:
    """Add a table of findings, those that random weights share last, and say how thresholds were chosen."""
    if rows:
        section.table([describe_finding(row) for row in rows])
    else:
        section.text("No quantity is beyond its threshold.")
    section.text(words)


def describe_finding(row: dict[str, Any]) -> dict[str, str]:
    """Return the cells of one finding."""
    known = row["random_rate"] is not None
    rate = f"{100 * row['random_rate']:.3g} % of {row['random_total']} places" if known else "unknown"
    return {
        "finding": row["kind"].replace("_", " "),
        "what was found": row["summary"],
        "places": row["everywhere"] or "whole model",
        "value": f"{row['quantity']} {format_value(row['value'])} (threshold {format_value(row['threshold'])})",
        f"with {row['baseline']}": rate + (": says nothing about training" if row["common"] else ""),
        "usually means": row["meaning"],
    }


def add_stream(section: Section, report: dict[str, Any]) -> None:
    """Add one figure for each quantity, with and without the first token, mean and spread over texts."""
    section.text("States are the residual stream before every block and after the last, before the final norm.")
    ratio = [value for value in report["curves"]["first_norm"]["mean"] if value is not None]
    if ratio and max(ratio) > 5:
        section.text(
            f"The first token is a sink: it is up to {max(ratio):.0f} times as long as the others, and dominates distances, rank "
            "and sharpness. See the curves without it.",
            tone="warn",
        )
    for name, (title, label, words) in STREAM.items():
        if name not in report["curves"]:
            continue
        data: list[PlotlySpec] = []
        for place, suffix in enumerate(("", REST)):
            curve = report["curves"].get(name + suffix)
            if curve is not None:
                data += traces(curve, "all tokens" if not suffix else "without the first", style.PALETTE[place])
        last = report["curves"][name]["mean"]
        layout = axes_layout("blocks passed", label, yaxis=log_scale(data) if name in LOGARITHMIC else {})
        caption = f"{name}: {title} along depth ({words}){describe_spread(report)}."
        alt = f"{title} along depth, from {format_value(last[0])} to {format_value(last[-1])}"
        section.figure({"data": data, "layout": layout}, caption, alt, height=300)


def traces(curve: dict[str, Any], name: str, colour: str) -> list[PlotlySpec]:
    """Return the mean as a line and the spread as a band."""
    mean, spread = (
        np.array([np.nan if value is None else value for value in curve[key]]) for key in ("mean", "spread")
    )
    depth = np.arange(len(mean))
    found: list[PlotlySpec] = []
    if np.nanmax(spread, initial=0.0) > 0:
        # a logarithmic axis cannot show a band that reaches below zero
        lower = np.maximum(mean - spread, mean / 20) if np.nanmin(mean) > 0 else mean - spread
        edge = np.concatenate((mean + spread, lower[::-1]))
        fill = {"fill": "toself", "fillcolor": colour, "opacity": 0.18, "line": {"width": 0}}
        around = np.concatenate((depth, depth[::-1]))
        found.append(scatter(around, edge, **fill, hoverinfo="skip", showlegend=False))
    return [*found, scatter(depth, mean, "lines+markers", name=name, line={"color": colour})]


def log_scale(data: list[PlotlySpec]) -> PlotlySpec:
    """Return a logarithmic axis if lines are positive and span more than a decade, with ticks at 1, 2 and 5 on short ranges."""
    values = np.concatenate([part["y"] for part in data if part["mode"] == "lines+markers"])
    low, high = np.nanmin(values), np.nanmax(values)
    if not 0 < 10 * low < high:
        return {}
    return {"type": "log", "exponentformat": "power", "dtick": "D2" if high < 3000 * low else 1}


def describe_spread(report: dict[str, Any]) -> str:
    return (
        f", mean over {report['texts']} {report['reads']}; bands are one standard deviation"
        if report["texts"] > 1
        else ""
    )


def add_blocks(section: Section, report: dict[str, Any]) -> None:
    """Add how far blocks move tokens, and their attention and feed-forward where these parts are known."""
    data: list[PlotlySpec] = []
    names = [name for name in PARTS if name in report["blocks"]]
    for name in names:
        data += traces(report["blocks"][name], PARTS[name], style.PALETTE[list(PARTS).index(name)])
    layout = axes_layout("block", "moved", yaxis=log_scale(data))
    section.figure(
        {"data": data, "layout": layout},
        f"Root mean square displacement of tokens by each block"
        f"{', and by its parts, including a norm after them' if len(names) > 1 else ''}{describe_spread(report)}.",
        f"How far {', '.join(PARTS[name] for name in names)} move tokens in every block",
        height=320,
    )


def add_heads(section: Section, report: dict[str, Any]) -> None:
    """Add a heat map of layers by heads."""
    heads = {name: np.array(rows, dtype=float) for name, rows in report["heads"].items()}
    words = list_columns("trace")
    measures = {
        name: Measure(
            rows, "diverging" if name in DIVERGING else "sequential", f"{words[name][0].upper()}{words[name][1:]}."
        )
        for name, rows in heads.items()
        if np.isfinite(rows).any()
    }
    layers, count = next(iter(heads.values())).shape
    section.heatmap(
        measures,
        rows=range(layers),
        columns=range(count),
        caption=f"Every head on these {report['reads']}, mean over tokens and {report['reads']}.",
        alt=f"{layers} layers by {count} heads",
        detail=lambda layer, head: {name: float(rows[layer, head]) for name, rows in heads.items()},
    )


def add_definitions(section: Section, report: dict[str, Any]) -> None:
    """Add definitions."""
    section.text(
        f"Every number here depends on the {report['reads']}; none is a property of the weights alone (`attractor audit` has those). "
        "The energy on the sphere does not depend on weights and can be compared along depth; the energy of a head uses its own scores."
    )
    section.maths(r"e_l = \text{scale}\;\mathrm{tr}\big(\mathrm{Cov}_{P_l}(k, v)\,O Q_l\big)")
    section.text(
        r"This is the expansion of a head at token \(l\): the divergence of its velocity through its query alone."
    )
    section.fold("All columns (JSON, --fail-if)").table(
        [{"column": name, "meaning": meaning} for name, meaning in list_columns("trace").items()]
    )
    if report["texts"] > 1:
        section.text(f"Lengths of the texts in tokens: {min(report['lengths'])} to {max(report['lengths'])}.")
