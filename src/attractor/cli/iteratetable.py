"""An iteration for people."""

from __future__ import annotations

from typing import Any

from attractor.cli.printing import number, print_rows

COLUMNS = {
    "metric": "consensus_metric",
    "least": "cosine_min",
    "cosine": "cosine",
    "norm": "token_norm",
    "rank": "effective_rank",
}
WIDTH = 11
WORDS = 160  # characters of a decoded text


def print_iteration(report: dict[str, Any]) -> None:
    """The law first, then the curves at chosen passes, and the words."""
    law, protocol = report["law"], report["protocol"]
    name = {"none": "No law", "neither": "Neither law", "reached": "Consensus"}.get(
        law["name"], law["name"].capitalize()
    )
    print_rows(f"{name}: {law['message']}.", _how(report))
    several = " (means over prompts)" if len(report["prompts"]) > 1 else ""
    print_rows(f"tokens after pass k{several}", _curves(report))
    if law["fits"]:
        print_rows("fits of log metric", _fits(law))
    for k, texts in report["words"].items():
        print_rows(
            f"words after pass {k}", {name: _cut(text) for name, text in zip(_labels(report), texts, strict=True)}
        )
    rows = {"seed": f"{protocol['seed']}, {protocol['dtype']}", "seconds": f"{report['seconds']:.3g}"}
    if len(report["prompts"]) > 1:
        rows["laws"] = ", ".join(each["name"] for each in report["laws"])
    rows |= {f"note {index + 1}": note for index, note in enumerate(report["notes"])}
    print_rows("", rows)


def _how(report: dict[str, Any]) -> dict[str, str]:
    protocol = report["protocol"]
    parts = ["with feed-forward" if protocol["feedforward"] else "without feed-forward"]
    parts.append("final norm between passes" if protocol["final_norm"] else "no final norm between passes")
    if protocol["redraw"]:
        parts.append("weights drawn anew before every pass")
    elif protocol["random"]:
        parts.append("random weights")
    tokens = ", ".join(map(str, report["lengths"][:8])) + (", ..." if len(report["lengths"]) > 8 else "")
    return {
        "model": f"{report['model']}, {report['layers']} blocks",
        "passes": f"{protocol['passes']}, {', '.join(parts)}",
        "prompts": f"{len(report['prompts'])} with {tokens} tokens",
    }


def _curves(report: dict[str, Any]) -> dict[str, str]:
    rows = {"k": "".join(f"{name:>{WIDTH}}" for name in COLUMNS)}
    for k in _shown(report["protocol"]["passes"]):
        means = (sum(row[k] for row in report["curves"][name]) / len(report["prompts"]) for name in COLUMNS.values())
        rows[str(k)] = "".join(f"{number(float(f'{mean:.4g}')):>{WIDTH}}" for mean in means)
    return rows


def _shown(passes: int) -> list[int]:
    """0, 1, 2, 5, 10, ... and the last pass."""
    round_ones = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    return [0, *(k for k in round_ones if k < passes), passes]


def _fits(law: dict[str, Any]) -> dict[str, str]:
    formulas = {"exponential": "metric = c exp(-r k)", "power": "metric = c k^-r"}
    return {
        name: f"{formulas[name]:<22} r {fit['rate']:.4g} (halves {fit['halves'][0]:.3g}, {fit['halves'][1]:.3g}), "
        f"residual {fit['residual']:.3g}, AIC {fit['criterion']:.4g}"
        for name, fit in law["fits"].items()
    }


def _labels(report: dict[str, Any]) -> list[str]:
    return [f"prompt {index}" for index in range(len(report["prompts"]))]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WORDS else line[: WORDS - 1] + "…"
