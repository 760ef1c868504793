"""Two models side by side, as a section of a page."""

from __future__ import annotations

from attractor.checkpoints.audit_grid import as_float
from attractor.checkpoints.audit_words import short_name
from attractor.checkpoints.comparison import Comparison
from attractor.report import Measure, Report, Section
from attractor.theory.weights.quantities import QUANTITIES

MOST = 1600  # heads that are shown: a page stays below 8 MB


def add_comparison(report: Report, compared: Comparison) -> None:
    """Two models side by side."""
    before, after = short_name(compared.first), short_name(compared.second)
    part = report.section(f"{before} to {after}", lead="What changed from the first model to this one.")
    columns = before, after if after != before else f"{after} (2)"
    rows = [
        dict(
            zip(
                ("quantity", *columns, "change"),
                (quantity.title, row["first"], row["second"], row["change"]),
                strict=True,
            )
        )
        for quantity in QUANTITIES
        if (row := compared.summary[quantity.name])["first"] is not None
    ]
    if compared.reason is not None:
        part.text(f"{compared.reason[0].upper()}{compared.reason[1:]}; medians over all heads:", "warn")
    elif compared.heads:
        _moved_grid(part, compared)
    part.table(rows, caption="Medians over all heads.")


def _moved_grid(part: Section, compared: Comparison) -> None:
    layers = list(dict.fromkeys(row["layer"] for row in compared.heads))
    every = -(-len(compared.heads) // MOST)
    layers = layers[::every]
    heads = range(max(row["head"] for row in compared.heads) + 1)
    found = {(row["layer"], row["head"]): row for row in compared.heads}
    measures = {
        "W moved": ("interaction_moved", "Frobenius norm of the change of W over that of W."),
        "V moved": ("value_moved", "Frobenius norm of the change of the value map over that of the map."),
        "numbers moved": (
            "standardised",
            "Mean change of all numbers, each in units of its spread over the first model's heads.",
        ),
    }
    part.heatmap(
        {
            title: Measure(
                [[as_float(found.get((layer, head), {}).get(name)) for head in heads] for layer in layers], words=words
            )
            for title, (name, words) in measures.items()
            if name in compared.heads[0]
        },
        rows=layers,
        columns=heads,
        caption="How far each head moved." + (f" One layer of {every} is shown." if every > 1 else ""),
        alt="A grid of layers by heads, coloured by how far they moved",
        detail=lambda row, column: {
            quantity.title: found.get((layers[row], column), {}).get("changes", {}).get(quantity.name)
            for quantity in QUANTITIES
        },
    )
    top = compared.most_moved[:12]
    if not top:
        part.text("No head moved.")
        return
    part.table(
        [
            {
                "layer": row["name"],
                "head": row["head"],
                "moved": row["moved"],
                "label before": row["label"][0],
                "label after": row["label"][1],
            }
            for row in top
        ],
        caption="The heads that moved most.",
    )
