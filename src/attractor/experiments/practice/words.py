"""What the experiment found, in sentences that follow from its numbers."""

from __future__ import annotations

from typing import Any

from attractor.experiments.practice.growth import OUTCOMES
from attractor.experiments.practice.weights import PREDICTORS

LEVEL = 0.05


def answers(document: dict[str, Any]) -> list[str]:
    """One sentence for each question."""
    return [_hypotheses(document), *(_growth(document, outcome) for outcome in OUTCOMES if _rows(document, outcome))]


def _hypotheses(document: dict[str, Any]) -> str:
    models = document["models"]
    count = lambda key: sum(model["heads"][key] for model in models)  # noqa: E731
    heads, causal = count("heads"), count("divergence proved by the value under a causal mask")
    random = sum(model["random_heads"]["divergence proved by the value under a causal mask"] for model in models)
    sides = max(model["heads"]["tokens on one side, share of heads and inputs"] for model in models)
    text = (
        f"of {heads} heads {count('collapse proved')} meet the hypotheses of a theorem on collapse; "
        f"{count('W positive')} have a positive and {count('W negative')} a negative definite reduced W, "
        f"{count('A negative')} a negative and {count('A positive')} a positive definite reduced metric, "
        f"{count('value stable')} a stable value"
    )
    other = count("divergence proved") - causal
    text += f"; {other} meet the hypotheses of a theorem on divergence by A and W"
    if causal:
        text += f", and {causal} that of an unstable value under a causal mask, as {random} random heads of the same shapes do"
    return (
        f"{text}. Tokens all on one side of an unstable direction: at most {sides:.2g} of heads and inputs of a model"
    )


def _growth(document: dict[str, Any], outcome: str) -> str:
    rows = _rows(document, outcome)
    found = [row for row in rows if row["family"] < LEVEL]
    strongest = max(rows, key=lambda row: abs(row["rho"]))
    told = [f"{_name(row)} rho {row['rho']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" for row in found]
    text = f"{OUTCOMES[outcome]}: "
    text += (
        f"ranked by {'; '.join(told)}"
        if told
        else f"nothing ranks the layers (the strongest, {_name(strongest)}, has rho {strongest['rho']:.2f}, "
        f"p = {strongest['family']:.2g} for all predictors together)"
    )
    parts = [row for row in document["differences"] if row["outcome"] == outcome]
    better = [row for row in parts if row["low"] > 0]
    worse = [row for row in parts if row["high"] < 0]
    return (
        f"{text}. The abscissa or radius of the value has a larger |rho| than W and A do in {len(better)} of {len(parts)} comparisons "
        f"at the 95% level, a smaller one in {len(worse)}"
    )


def _rows(document: dict[str, Any], outcome: str) -> list[dict[str, Any]]:
    return [row for row in document["pooled"] if row["outcome"] == outcome]


def _name(row: dict[str, Any]) -> str:
    return PREDICTORS[row["predictor"]][1]
