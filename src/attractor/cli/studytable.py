"""Results of studies for people: tables and pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attractor.cli.printing import print_rows

UNITS = {"bits_per_byte": "bits per byte", "accuracy": "accuracy"}
MANY = 6  # pairs that are named one by one
WIDEST = 160
FOLLOWED = ("plain", "convergent", "intermediate", "divergent", "scattered-convergent")


def print_results(document: dict[str, Any]) -> None:
    """Arms, comparisons by question, and where they come from."""
    unit = UNITS[document["measure"]]
    asked = {row[side] for row in document["comparisons"] for side in ("arm", "reference")}
    rows = []
    for row in document["arms"]:
        if row["arm"] in asked or row["lost"] or not asked:
            interval = "" if row["interval"] is None else "{:.4f} to {:.4f}".format(*row["interval"])
            mean = "none" if row["mean"] is None else f"{row['mean']:.4f}"
            lost = str(row["lost"]) if row["lost"] else ""
            rows.append((row["arm"], f"{row['parameters']:,}", str(row["count"]), lost, mean, interval))
    print_table(f"{document['study']}: arms", ("arm", "parameters", "seeds", "lost", unit, "95%"), rows)
    better = "negative is better" if document["lower_is_better"] else "positive is better"
    heads = "arm", "reference", "difference", "95%", "deviations", "p", "Holm", "p flips"
    for question in dict.fromkeys(row["question"] for row in document["comparisons"]):
        pairs = [_cells(row) for row in document["comparisons"] if row["question"] == question]
        print_table(f"{question}: differences of {unit} ({better}), seed by seed", heads, pairs)
    count, missing = len(document["seeds"]), document["missing"]
    print_rows("", _facts(document, count, missing))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A comparison as a line; beside an arm stands how many of its runs ended in no number."""
    names = [
        row[side] + (f" ({row[lost]} lost)" if row[lost] else "")
        for side, lost in (("arm", "lost"), ("reference", "reference_lost"))
    ]
    interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
    size = "" if row["deviations"] is None else f"{row['deviations']:+.1f}"
    flips = "" if row["p_flips"] is None else f"{row['p_flips']:.3g}"
    return *names, f"{row['difference']:+.4f}", interval, size, f"{row['p']:.2g}", f"{row['p_holm']:.2g}", flips


def _facts(document: dict[str, Any], count: int, missing: list[str]) -> dict[str, str]:
    named = ", ".join(missing) if len(missing) <= MANY else f"{len(missing)} pairs of arms; --json names them"
    places = {"runs": str(document["runs"]), "not run": named or "nothing"}
    if document["lost"]:
        places["lost"] = f"{document['lost']} runs ended in no finite number; means and differences are of the others"
    if document["untested"]:
        why = "too few seeds are left, or those that are left speak for a side that lost runs"
        places["not tested"] = f"{'; '.join(document['untested'])}: {why}"
    return places | {
        "p flips": f"all flips of signs, exact; at least {2 / 2**count:.3g} with {count} seeds",
        "hardware": ", ".join(document["hardware"]),
        "made by": "; ".join(document["made_by"]),
    }


def print_table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table whose numbers are never cut, however narrow the terminal."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="cyan", title=title, title_justify="left", title_style="bold")
    for index, head in enumerate(heads):
        drawn.add_column(head, no_wrap=True, justify="left" if index == 0 or head == "reference" else "right")
    for row in rows:
        drawn.add_row(*row)
    console = Console(highlight=False)
    Console(highlight=False, width=max(console.width, WIDEST)).print(drawn, soft_wrap=True)


def draw_differences(document: dict[str, Any], path: Path) -> Path:
    """Every pair as its improvement with its interval; right of zero the arm is better than its reference."""
    from attractor.pictures.intervals import Interval, Rows, draw_intervals

    sign, unit = -1.0 if document["lower_is_better"] else 1.0, UNITS[document["measure"]]
    intervals, names, groups = [], [], []
    for row in document["comparisons"]:
        ends = sorted((sign * row["low"], sign * row["high"]))
        intervals.append(Interval(sign * row["difference"], *ends))
        lost = row["lost"] + row["reference_lost"]
        names.append(f"{row['arm']} − {row['reference']}" + (f" ({lost} lost)" if lost else ""))
        groups.append(row["question"])
    caption = (
        f"Means of differences of equal seeds, {len(document['seeds'])} seeds; bars: 95% intervals of Student's t, each for itself. "
        "Right of zero the arm is better than its reference. "
        f"{lost_words(document)}Colours: questions; the second panel leaves out larger differences. "
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


def lost_words(document: dict[str, Any]) -> str:
    """What a picture says of runs that are in no difference."""
    if not document["lost"]:
        return ""
    return f"{document['lost']} runs ended in no number; pairs that would speak for what lost them are not drawn. "


def draw_depth(study: Any, rows: list[dict[str, Any]], command: str, path: Path) -> Path:
    """Norms, distances, cosines and growth along depth, means over seeds, for arms with the first arm's positions."""
    from attractor.experiments.studies.results import depth_curves
    from attractor.pictures.curves import Curve, Panel, draw_panels

    positions = study.arms[0].partition("/")[2]
    there = {row["arm"] for row in rows if row["dynamics"] is not None}
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
