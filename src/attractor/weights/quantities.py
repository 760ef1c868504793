"""The numbers that describe a head, as columns over many heads; all depend on the weights alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attractor.weights.classification import metric_asymmetries
from attractor.weights.factors import SmallMatrices

Half = Literal["scores", "moves", "both"]


@dataclass(frozen=True)
class Quantity:
    """One number of a head: the name of its column, a title, its meaning, and the half of a head that it depends on: the scores
    (query and key), the moves (value and output) or both. It is proportional to the norm that ``scale`` names."""

    name: str
    title: str
    meaning: str
    half: Half
    scale: Literal["interaction", "value", "none"] = "none"
    signed: bool = True


QUANTITIES = (
    Quantity(
        "interaction_index",
        "definiteness of W",
        "trace of the symmetric part of W = scale Q'K over the sum of the sizes of its eigenvalues: 1 if tokens attend to what is "
        "like them in every direction, -1 if to their opposites, near 0 if to both alike",
        "scores",
    ),
    Quantity(
        "interaction_low",
        "lowest eigenvalue of W",
        "lowest eigenvalue of the symmetric part of W: how strongly tokens attend to their opposites somewhere",
        "scores",
        "interaction",
    ),
    Quantity(
        "interaction_high",
        "highest eigenvalue of W",
        "highest eigenvalue of the symmetric part of W: how strongly they attend to their like somewhere",
        "scores",
        "interaction",
    ),
    Quantity(
        "interaction_asymmetry",
        "asymmetry of W",
        "share of the skew part of W: 0 if scores are mutual; 0.71 for a random matrix, 1 if purely skew",
        "scores",
        signed=False,
    ),
    Quantity(
        "metric_index",
        "definiteness of V'W",
        "the same index of V'W in all d dimensions: what the head does to the cloud around each token, positive if it spreads",
        "both",
    ),
    Quantity(
        "reduced_interaction_index",
        "definiteness of W on its range",
        "the index of W on the range of the output, where the head is a dynamical system by itself",
        "both",
    ),
    Quantity(
        "reduced_interaction_asymmetry",
        "asymmetry of W on its range",
        "the share of its skew part there: theorems of collapse need this or the metric's asymmetry to be 0",
        "both",
        signed=False,
    ),
    Quantity(
        "reduced_metric_index",
        "definiteness of the metric",
        "the index of V'W on that range, which is congruent to the metric A = W V^-1: 1 divergent, -1 convergent if W is positive",
        "both",
    ),
    Quantity(
        "reduced_metric_asymmetry",
        "asymmetry of V'W on its range",
        "the share of the skew part of V'W on the range of the output",
        "both",
        signed=False,
    ),
    Quantity(
        "metric_asymmetry",
        "asymmetry of the metric",
        "the share of the skew part of A = W V^-1 itself",
        "both",
        signed=False,
    ),
    Quantity(
        "growing",
        "growing share",
        "share of positive directions of the metric form: 1/2 for a random head",
        "both",
        signed=False,
    ),
    Quantity(
        "value_abscissa",
        "value, largest real part",
        "largest real part of an eigenvalue of O V: positive if some direction of a consensus, or of the first token of a decoder, grows",
        "moves",
        "value",
    ),
    Quantity(
        "value_lowest", "value, smallest real part", "smallest real part of an eigenvalue of O V", "moves", "value"
    ),
    Quantity(
        "value_radius",
        "discrete radius",
        "largest |1 + eigenvalue| of O V: the factor by which one layer of size one stretches a direction of a consensus",
        "moves",
        "value",
        signed=False,
    ),
)
NAMES = tuple(quantity.name for quantity in QUANTITIES)


def compute_quantities(
    grams: SmallMatrices, halves: Collection[Half] = ("scores", "moves", "both")
) -> dict[str, Tensor]:
    """Compute the quantities of every head of a group that depend on these halves, (n,) each; NaN where one is undefined."""
    found: dict[str, Tensor] = {}
    if "scores" in halves:
        found |= measure_scores(grams)
    if "moves" in halves:
        found |= measure_values(torch.linalg.eigvals(grams.reduced_value))
    if "both" in halves:
        found |= measure_pairs(grams)
    return found


def measure_scores(grams: SmallMatrices) -> dict[str, Tensor]:
    """Compute the quantities of queries and keys."""
    index, low, high, _ = _form(grams.interaction)
    if grams.interaction.shape[-1] < grams.dim:
        low, high = low.clamp_max(0.0), high.clamp_min(0.0)
    asymmetry = _asymmetry(grams.interaction)
    return dict(zip(NAMES[:4], (index, low, high, asymmetry), strict=True))


def measure_values(eigenvalues: Tensor) -> dict[str, Tensor]:
    """Compute the quantities of values from their eigenvalues (n, r)."""
    real = eigenvalues.real
    radius = (1 + eigenvalues).abs().amax(-1)
    return {"value_abscissa": real.amax(-1), "value_lowest": real.amin(-1), "value_radius": radius}


def measure_pairs(grams: SmallMatrices) -> dict[str, Tensor]:
    """Compute the quantities of both halves."""
    small_index = _form(grams.reduced_interaction)[0]
    metric_index, *_, growing = _form(grams.reduced_metric)
    asymmetries = [float("nan") if one is None else one for one in metric_asymmetries(grams)]
    return {
        "metric_index": _form(grams.metric)[0],
        "reduced_interaction_index": small_index,
        "reduced_interaction_asymmetry": _asymmetry(grams.reduced_interaction),
        "reduced_metric_index": metric_index,
        "reduced_metric_asymmetry": _asymmetry(grams.reduced_metric),
        "metric_asymmetry": torch.tensor(asymmetries, dtype=torch.float64),
        "growing": growing,
    }


def _form(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return index, extremes and share of positive eigenvalues of symmetric parts."""
    values = torch.linalg.eigvalsh((matrices + matrices.mT) / 2)
    index = values.sum(-1) / values.abs().sum(-1).clamp_min(1e-300)
    return index, values[:, 0], values[:, -1], (values > 0).double().mean(-1)


def _asymmetry(matrices: Tensor) -> Tensor:
    skew, whole = (torch.linalg.vector_norm(part, dim=(-2, -1)) for part in (matrices - matrices.mT, matrices))
    return skew / 2 / whole.clamp_min(1e-300)
