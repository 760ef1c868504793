"""Results of studies for people: tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attractor.cli.printing import print_rows

UNITS = {"bits_per_byte": "bits per byte", "accuracy": "accuracy"}
FOLLOWED = ("plain", "convergent", "intermediate", "divergent", "scattered-convergent")


def print_results(document: dict[str, Any]) -> None:
    """Arms, comparisons, and where they come from."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    unit = UNITS[document["measure"]]
    arms = Table("arm", "parameters", "seeds", unit, "95%", title=f"{document['study']}: arms", title_justify="left")
    for row in document["arms"]:
        interval = "" if row["interval"] is None else "{:.4f} to {:.4f}".format(*row["interval"])
        arms.add_row(row["arm"], f"{row['parameters']:,}", str(row["count"]), f"{row['mean']:.4f}", interval)
    console.print(arms)
    better = "negative is better" if document["lower_is_better"] else "positive is better"
    title = f"differences of {unit} ({better}), seed by seed"
    heads = "question", "arm", "reference", "difference", "95%", "deviations", "p", "Holm", "p flips"
    table = Table(*heads, title=title, title_justify="left")
    for row in document["comparisons"]:
        interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
        size = "" if row["deviations"] is None else f"{row['deviations']:+.1f}"
        tests = f"{row['p']:.2g}", f"{row['p_holm']:.2g}", f"{row['p_flips']:.3g}"
        table.add_row(
            row["question"], row["arm"], row["reference"], f"{row['difference']:+.4f}", interval, size, *tests
        )
    console.print(table)
    count = len(document["seeds"])
    print_rows(
        "",
        {
            "runs": str(document["runs"]),
            "left out": ", ".join(document["missing"]) or "nothing",
            "p flips": f"all flips of signs, exact; at least {2 / 2**count:.3g} with {count} seeds",
            "hardware": ", ".join(document["hardware"]),
            "made by": "; ".join(document["made_by"]),
        },
    )


def draw_differences(document: dict[str, Any], path: Path) -> Path:
    """Every pair as its improvement with its interval; right of zero the arm is better than its reference."""
    from attractor.pictures.intervals import Interval, Rows, draw_intervals

    sign, unit = -1.0 if document["lower_is_better"] else 1.0, UNITS[document["measure"]]
    intervals, names, groups = [], [], []
    for row in document["comparisons"]:
        ends = sorted((sign * row["low"], sign * row["high"]))
        intervals.append(Interval(sign * row["difference"], *ends))
        names.append(f"{row['arm']} − {row['reference']}")
        groups.append(row["question"])
    caption = (
        f"Means of differences of equal seeds, {len(document['seeds'])} seeds; bars: 95% intervals of Student's t, each for itself. "
        "Right of zero the arm is better than its reference. Colours: questions; the second panel leaves out larger differences. "
        f"Drawn by: {document['command']}"
    )
    title = f"{document['study']}: what each change is worth"
    ends = sorted(max(abs(one.low), abs(one.high)) for one in intervals) or [1.0]
    whole, near = (
        1.08 * ends[-1] or 1.0,
        1.4 * ends[len(ends) // 2] or 1.0,
    )  # more than half of the pairs are seen near zero
    panels = [Rows("all", intervals, whole), Rows("near zero", intervals, near)]
    x = f"{unit} {'saved' if sign < 0 else 'gained'}"
    return draw_intervals(names, groups, panels, title, caption, x, path, grouped=False)


def draw_depth(study: Any, rows: list[dict[str, Any]], command: str, path: Path) -> Path:
    """Norms, distances, cosines and growth along depth, means over seeds, for arms with the first arm's positions."""
    from attractor.experiments.studies.results import depth_curves
    from attractor.pictures.curves import Curve, Panel, draw_panels

    positions = study.arms[0].partition("/")[2]
    there = {row["arm"] for row in rows}
    curves = {kind: depth_curves(rows, f"{kind}/{positions}") for kind in FOLLOWED if f"{kind}/{positions}" in there}

    def panel(measure: str, label: str, named: bool = False) -> Panel:
        lines = [
            Curve(
                range(1 if measure == "growth" else 0, len(found["norm"])),
                found[measure],
                kind.partition("-")[0] if named else "",
            )
            for kind, found in curves.items()
        ]
        x = "layer" if measure == "growth" else "blocks passed"
        return Panel(tuple(lines), x, label, log_y=measure == "distance")

    panels = (
        panel("norm", "mean norm of tokens", named=True),
        panel("distance", "mean squared distance of pairs"),
        panel("cosine", "mean cosine of pairs"),
        panel("growth", "max Re λ of the value map"),
    )
    caption = (
        f"Trained models with {positions} positions, means over seeds; colours: the same in all panels; scattered: scattered-convergent. "
        f"Drawn by: {command}"
    )
    return draw_panels(panels, f"{study.name}: tokens along the depth of trained models", caption, path)
