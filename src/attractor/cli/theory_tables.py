"""Terminal tables of theorems, predictions, checks and regimes."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

UNBROKEN = ("theorem", "head", "label", "proved by", "fate", "verdict", "hypothesis")
STYLES = {"holds": "green", "fails": "red", "undetermined": "yellow"}


def table(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """A plain table; wide terminals are not assumed, so long words fold."""
    drawn = Table(box=None, pad_edge=False, header_style="cyan")
    for column in columns:
        drawn.add_column(column, overflow="fold", no_wrap=column in UNBROKEN)
    for row in rows:
        drawn.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    console = Console(highlight=False)
    console.print(Text(title, "bold"), soft_wrap=True)
    console.print(drawn)


def short(value: float | None) -> str:
    """A margin in few digits."""
    return "" if value is None else f"{value:.3g}"


def print_prediction(report: dict[str, Any]) -> None:
    """Fates first, then the theorems behind them, contradictions, and what is missing for the nearest one."""
    console = Console(highlight=False)
    fates = [(fate, found["means"], ", ".join(found["theorems"])) for fate, found in report["fates"].items()]
    if fates:
        table("Predicted", ("fate", "which means that", "by"), fates)
    else:
        console.print(Text("No theorem predicts a fate.", "bold"))
    rows = [
        (row["theorem"], row["title"], row["status"], row["fate"] or "", short(_smallest(row)))
        for row in report["applicable"]
    ]
    if rows:
        table("Theorems that apply", ("theorem", "title", "status", "fate", "margin"), rows)
    for row in report["undetermined"]:
        names = [c["name"] for c in row["conditions"] if c["verdict"] == "undetermined"]
        console.print(f"undetermined: {row['theorem']} ({', '.join(names) or 'not all hypotheses can be examined'})")
    for one, other in report["contradictions"]:
        console.print(Text(f"contradiction: {one} and {other} exclude each other", "red"))
    nearest = report["nearest"]
    if nearest is not None:
        conditions = [
            (c["name"], Text(c["verdict"], STYLES[c["verdict"]]), short(c["margin"]), c["detail"])
            for c in nearest["conditions"]
            if c["verdict"] != "holds"
        ]
        title = f"Nearest theorem that does not apply: {nearest['theorem']}, {nearest['title']}; missing"
        table(title, ("hypothesis", "verdict", "margin", "detail"), conditions)


def _smallest(row: dict[str, Any]) -> float | None:
    """The smallest margin of a strict inequality."""
    return min((c["margin"] for c in row["conditions"] if c["margin"] is not None and c["open"]), default=None)


def print_check(report: dict[str, Any]) -> None:
    """One line for each theorem, then how sharp its hypotheses are."""
    rows = []
    for row in report["theorems"]:
        count = Text(str(row["violations"]), "red" if row["violations"] else "green")
        rows.append(
            (
                row["key"],
                row["title"],
                row["status"],
                row["instances"],
                count,
                short(row["worst"]),
                f"{row['seconds']:.1f}",
            )
        )
    table(
        "Theorems on random instances",
        ("theorem", "title", "status", "instances", "violations", "worst margin", "seconds"),
        rows,
    )
    sharp = [
        (row["key"], found["hypothesis"], f"{found['held']} of {found['instances']}")
        for row in report["theorems"]
        for found in row["sharpness"]
    ]
    if sharp:
        table("Where one hypothesis is violated, the conclusion held in", ("theorem", "hypothesis", "held"), sharp)


def print_theorems(rows: list[dict[str, Any]]) -> None:
    """The list of theorems."""
    table("Theorems", ("theorem", "title", "status", "fate", "hypotheses"), [
        (row["key"], row["title"], row["status"], row["fate"], ", ".join(row["hypotheses"])) for row in rows
    ])  # fmt: skip


def print_regimes(report: dict[str, Any]) -> None:
    """Layers and heads."""
    rows = []
    for layer in report["layers"]:
        whole = layer["layer"]
        if whole is not None:
            rows.append((_where(whole), "all", whole["label"], whole["certificate"] or "heuristic", short(whole["interaction_index"]),
                         short(whole["metric_index"]), short(whole["value_abscissa"]), short(whole["value_radius"]),
                         short(whole["residual"])))  # fmt: skip
        for head in layer["heads"]:
            rows.append((_where(head), head["head"], head["label"], head["certificate"] or "heuristic", short(head["interaction_index"]),
                         short(head["reduced_metric_index"]), short(head["value_abscissa"]), short(head["value_radius"]), ""))  # fmt: skip
    columns = ("layer", "head", "label", "proved by", "W", "V'W", "Re V", "|I+V|", "residual")
    table(
        "Regimes: index of W and of V'W (1 positive, -1 negative), largest real part of V, radius of I + V",
        columns,
        rows,
    )
    console = Console(highlight=False)
    for layer in report["layers"]:
        found = layer["layer"] or layer["heads"][0]
        console.print(f"{found['label']}: {found['why']}", soft_wrap=True)


def print_positions(report: dict[str, Any]) -> None:
    """How systems ended under each encoding."""
    rows = [
        (row["name"], *row["counts"].values(), short(row["exponent"]), short(row["distance"]))
        for row in report["encodings"]
    ]
    kinds = tuple(report["encodings"][0]["counts"])
    title = f"{report['systems']} systems that collapse without positions, at t = {report['horizon']:g}"
    table(title, ("positions", *kinds, "exponent of t", "distance to the limit"), rows)


def _where(row: dict[str, Any]) -> str:
    return "" if row["layer"] is None else str(row["layer"])
