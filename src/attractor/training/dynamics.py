"""Tokens along the depth of a model in training, and the regimes of its layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError
from attractor.nn import TransformerBlock
from attractor.observables import cosine, pairwise_distance, token_norm
from attractor.states import Tokens
from attractor.training.models import LanguageModel, VisionModel
from attractor.weights import regime

Model = LanguageModel | VisionModel
OBSERVED = {"norm": token_norm, "distance": pairwise_distance, "cosine": cosine}


@dataclass(frozen=True)
class Dynamics:
    """Means over the tokens of a few validation samples, before every block and after the last one.

    Attributes
    ----------
    norm, distance, cosine : mean norm, squared pairwise distance and pairwise cosine; (layers + 1,) each.
    regimes : label of every layer (training runs).
    head_regimes : labels of the heads of every layer (training runs).
    growth : largest real part among the eigenvalues of every layer's value map, None if it is not finite (studies).
    """

    norm: tuple[float, ...]
    distance: tuple[float, ...]
    cosine: tuple[float, ...]
    regimes: tuple[str, ...] | None = None
    head_regimes: tuple[tuple[str, ...], ...] | None = None
    growth: tuple[float | None, ...] | None = None

    def row(self) -> dict[str, Any]:
        """Return the fields that are set, for JSON."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Dynamics:
        """Read what ``row`` wrote."""
        known = {field.name for field in fields(cls)}
        found: dict[str, Any] = {name: tuple(values) for name, values in row.items() if name in known}
        if "head_regimes" in found:
            found["head_regimes"] = tuple(tuple(heads) for heads in found["head_regimes"])
        for name in OBSERVED:
            found[name] = tuple(float("nan") if value is None else value for value in found[name])
        return cls(**found)


@torch.no_grad()
def trace_tokens(model: Model, given: Tensor) -> Dynamics:
    """Follow the tokens of a batch through a model."""
    states = [Tokens(state.double().cpu()) for state in model.states(given)]
    norm, distance, cosine = (tuple(float(f(state).mean()) for state in states) for f in OBSERVED.values())
    return Dynamics(norm, distance, cosine)


def trace_regimes(model: Model, given: Tensor) -> Dynamics:
    """Follow tokens, and classify every layer's attention without the norm before it: centring leaves one direction unsigned."""
    layers: list[str] = []
    heads: list[tuple[str, ...]] = []
    for block in model.backbone.blocks:
        assert isinstance(block, TransformerBlock)
        try:
            found = regime(copy.deepcopy(block.attention).cpu())
            layers.append(found.label)
            heads.append(tuple(head.label.name for head in found.heads))
        except AttractorError:  # weights that are not finite; the loss reports them
            layers.append("undefined")
            heads.append(())
    return replace(trace_tokens(model, given), regimes=tuple(layers), head_regimes=tuple(heads))


@torch.no_grad()
def trace_growth(model: Model, given: Tensor, digits: int = 6) -> Dynamics:
    """Follow tokens of a trained model, with the growth rate of every layer's value map; numbers are rounded."""
    model.eval()
    found = trace_tokens(model, given)
    rounded: dict[str, Any] = {name: tuple(round(value, digits) for value in getattr(found, name)) for name in OBSERVED}
    growth: list[float | None] = []
    for block in model.backbone.blocks:
        assert isinstance(block, TransformerBlock)
        total = block.attention.weights(torch.float64).value_map().sum(0)
        finite = bool(total.isfinite().all())
        growth.append(round(float(torch.linalg.eigvals(total).real.max()), digits) if finite else None)
    return Dynamics(**rounded, growth=tuple(growth))
