"""The whole experiment: weights, measurements and their rank correlations, model by model and together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.experiments.practice.growth import OUTCOMES, measure
from attractor.experiments.practice.ranks import RESAMPLES, Ranks, Sample
from attractor.experiments.practice.subjects import Subject, known, subjects
from attractor.experiments.practice.weights import PREDICTORS, promise

ASKED = ("value_abscissa", "value_radius")
AGAINST = ("interaction_index", "reduced_interaction", "metric_index", "reduced_metric")
FEWEST = 5  # layers: with fewer a rank correlation says nothing


def run(
    names: Sequence[str] = (),
    *,
    texts: tuple[str, ...] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Every model by name; a document ready for JSON."""
    tell = progress or (lambda line: None)
    found = subjects(tuple(names) or known(), texts)
    models = []
    for subject in found:
        tell(f"{subject.name}: {len(subject.checkpoint.layers)} layers, {len(subject.inputs)} inputs")
        models.append(_model(subject, seed))
    pooled = first_of_each_lineage(models)
    return {
        "seed": seed,
        "resamples": resamples,
        "outcomes": OUTCOMES,
        "predictors": {name: {"group": group, "words": words} for name, (group, words) in PREDICTORS.items()},
        "models": models,
        "correlations": [row for model in models for row in correlations([model], model["name"], seed, resamples)],
        "pooled_over": [model["name"] for model in pooled],
        "pooled": correlations(pooled, "all", seed, resamples),
        "differences": differences(pooled, seed, resamples),
    }


def first_of_each_lineage(models: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Models trained from the same weights are no independent evidence: one of each."""
    seen: dict[str, dict[str, Any]] = {}
    for model in models:
        if len(model["layers"]["size"]) >= FEWEST:
            seen.setdefault(model["lineage"], model)
    return list(seen.values())


def _model(subject: Subject, seed: int) -> dict[str, Any]:
    opened = subject.checkpoint
    if "interaction" in opened.layers[0].undefined:
        raise InputError(f"{subject.name} has no bilinear scores: {opened.layers[0].undefined['interaction']}")
    said, seen = promise(opened, seed), measure(subject)
    sides = np.array(seen.separated)
    return {
        "name": subject.name,
        "lineage": subject.lineage,
        "family": opened.family.name,
        "placement": opened.layers[0].placement,
        "dim": opened.dim,
        "inputs": len(subject.inputs),
        "tokens": list(seen.tokens),
        "notes": list(opened.notes),
        "heads": {**said.heads, "tokens on one side, share of heads and inputs": float(sides.mean())},
        "random_heads": said.random,
        "layers": {**said.predictors, **seen.outcomes},
    }


def samples(models: list[dict[str, Any]], outcome: str) -> list[Sample]:
    """The models for which the outcome is defined and that have layers enough."""
    good = [m["layers"] for m in models if m["layers"][outcome][0] is not None and len(m["layers"][outcome]) >= FEWEST]
    return [
        Sample(np.array(layers[outcome], dtype=np.float64), np.array([layers[name] for name in PREDICTORS]))
        for layers in good
    ]


def correlations(models: list[dict[str, Any]], name: str, seed: int, resamples: int) -> list[dict[str, Any]]:
    rows = []
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        layers = sum(sample.layers for sample in chosen)
        for index, predictor in enumerate(PREDICTORS):
            row = {"model": name, "layers": layers, "outcome": outcome, "predictor": predictor}
            rows.append({**row, **ranks.correlation(index).row()})
    return rows


def differences(models: list[dict[str, Any]], seed: int, resamples: int) -> list[dict[str, Any]]:
    """Whether the value says more than W and A do."""
    rows, names = [], list(PREDICTORS)
    for outcome in OUTCOMES:
        chosen = samples(models, outcome)
        if not chosen:
            continue
        ranks = Ranks(chosen, seed, resamples)
        for one in ASKED:
            for other in AGAINST:
                difference = ranks.difference(names.index(one), names.index(other))
                rows.append({"outcome": outcome, "predictor": one, "against": other, **difference.row()})
    return rows
