"""A trace for people."""

from __future__ import annotations

from typing import Any

from attractor.cli.printing import number, print_rows

COLUMNS = {
    "norm": "token_norm",
    "distance": "pairwise_distance",
    "cosine": "cosine",
    "least": "cosine_min",
    "rank": "effective_rank",
    "sharpness": "sharpness",
    "clusters": "clusters",
    "energy": "energy",
    "first": "first_norm",
}
WIDTH = 11


def print_traces(report: dict[str, Any]) -> None:
    """The stream along depth, with and without the first token, and what every block did."""
    model, count = report["model"], report["texts"]
    tokens = sum(report["lengths"])
    without = f", without {' and '.join(report['without'])}" if report["without"] else ""
    unit = report["reads"] if count > 1 else report["reads"][:-1]
    title = f"{model['name']}: {model['layers']} layers, {count} {unit}, {tokens} tokens{without}"
    notes = {f"note {index + 1}": note for index, note in enumerate(report["notes"])}
    notes |= {f"left out {index + 1}": _skipped(one) for index, one in enumerate(report["skipped"])}
    print_rows(title, notes)
    mean = f" (means over {report['reads']})" if count > 1 else ""
    print_rows(f"the residual stream{mean}", _stream(report, ""))
    print_rows(f"without the first token of a {report['reads'][:-1]}", _stream(report, "_without_first"))
    print_rows("what every block moved, and its heads on average", _blocks(report))


def _skipped(one: dict[str, Any]) -> str:
    count = one["tokens"]
    return f"{one['text']}: {count or 'no'} token{'' if count == 1 else 's'}, and a trace follows two at least"


def _stream(report: dict[str, Any], suffix: str) -> dict[str, str]:
    shown = {label: name + suffix for label, name in COLUMNS.items() if name + suffix in report["curves"]}
    rows = {"block": "".join(f"{label:>{WIDTH}}" for label in shown)}
    columns = [report["curves"][name]["mean"] for name in shown.values()]
    for depth, values in enumerate(zip(*columns, strict=True)):
        label = "input" if depth == 0 else str(depth - 1)
        rows[label] = "".join(f"{_cell(value):>{WIDTH}}" for value in values)
    return rows


def _blocks(report: dict[str, Any]) -> dict[str, str]:
    names = {"attention": "attention", "feedforward": "feedforward"}
    heads = {"entropy": "attention_entropy", "self": "self_weight", "to first": "first_weight"}
    heads |= {"expansion": "expansion", "log energy": "log_energy"}
    columns = {label: report["blocks"][name]["mean"] for label, name in names.items()}
    columns |= {
        label: [_mean(row) for row in report["heads"][name]] for label, name in heads.items() if report["heads"]
    }
    rows = {"block": "".join(f"{name:>{WIDTH + 1}}" for name in columns)}
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        rows[str(index)] = "".join(f"{_cell(value):>{WIDTH + 1}}" for value in values)
    return rows


def _mean(row: list[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> str:
    return "n/a" if value is None else number(float(f"{value:.4g}"))
