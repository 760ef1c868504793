"""Tokens along the depth of a model in training, and the regimes of its layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError
from attractor.nn import TransformerBlock, extreme_form, value_abscissa
from attractor.observables import cosine, effective_rank, pairwise_distance, token_norm
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
    growth : largest real part among the eigenvalues of every layer's value map, None if it is not finite.
    effective_rank : mean effective rank of the tokens of a sample; (layers + 1,).
    entropy : mean over heads of the entropy of attention weights, relative to the largest possible one; one for each attention layer
        in the order in which they run.
    form_low, form_high : smallest and largest eigenvalue of the symmetric part of V'W, the mean over heads divided by its Frobenius norm: a
        positive smallest or a negative largest one is the margin of a definite layer.
    strength, strength_low, strength_high : mean, smallest and largest strength of the refinement of every layer.
    gradient : norm of the gradient of every block, before clipping (training runs).
    """

    norm: tuple[float, ...]
    distance: tuple[float, ...]
    cosine: tuple[float, ...]
    regimes: tuple[str, ...] | None = None
    head_regimes: tuple[tuple[str, ...], ...] | None = None
    growth: tuple[float | None, ...] | None = None
    effective_rank: tuple[float | None, ...] | None = None
    entropy: tuple[float | None, ...] | None = None
    form_low: tuple[float | None, ...] | None = None
    form_high: tuple[float | None, ...] | None = None
    strength: tuple[float | None, ...] | None = None
    strength_low: tuple[float | None, ...] | None = None
    strength_high: tuple[float | None, ...] | None = None
    gradient: tuple[float | None, ...] | None = None

    def numbers(self) -> dict[str, tuple[float | None, ...]]:
        """Return the measurements that are numbers, by name."""
        return {name: value for name, value in self.row().items() if name not in ("regimes", "head_regimes")}

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


@torch.no_grad()
def trace_run(model: Model, given: Tensor, labels: bool = True) -> Dynamics:
    """Follow tokens, attention weights and strengths; with ``labels`` also spectra and regimes, which cost eigenvalues of every layer."""
    found = trace_regimes(model, given) if labels else trace_tokens(model, given)
    states = [Tokens(state.double().cpu()) for state in model.states(given)]
    ranks = tuple(_finite(float(effective_rank(state).mean())) for state in states)
    found = replace(found, effective_rank=ranks, entropy=_trace_entropy(model, given), **_strengths(model))
    return replace(found, **_spectra(model)) if labels else found


LONGEST = 256  # tokens of a sample whose attention weights are computed


def _trace_entropy(model: Model, given: Tensor) -> tuple[float | None, ...]:
    """The relative entropy of the attention weights of the first sample, for every layer that runs."""
    reads: list[tuple[Any, Tensor]] = []

    def keep(layer: Any, arguments: tuple[Any, ...], output: Any) -> None:
        reads.append((layer, arguments[0][0, :LONGEST].detach().double().cpu()))

    blocks: Any = model.backbone.blocks
    handles = [block.attention.register_forward_hook(keep) for block in blocks]
    try:
        model.states(given[:1])
    finally:
        for handle in handles:
            handle.remove()
    return tuple(_entropy(layer, x) for layer, x in reads)


def _entropy(layer: Any, x: Tensor) -> float | None:
    try:
        weights = copy.deepcopy(layer).cpu().law(torch.float64).weights(Tokens(x))
    except AttractorError:  # weights that are not finite; the loss reports them
        return None
    n = x.shape[-2]
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
    seen = (
        torch.arange(1, n + 1, dtype=torch.float64) if layer.causal else torch.full((n,), float(n), dtype=torch.float64)
    )
    entropies = -torch.xlogy(shares, shares).sum(-1)[..., 1:] / seen[1:].log()
    return _finite(float(entropies.mean()))


def _strengths(model: Model) -> dict[str, tuple[float | None, ...]]:
    """Mean, smallest and largest strength of the refinement of every block; nothing without refinements."""
    blocks: Any = model.backbone.blocks
    found = [block.attention.refinement for block in blocks]
    if any(one is None for one in found):
        return {}
    values = [one.strength.detach().double().cpu() for one in found]
    return {
        "strength": tuple(_finite(float(value.mean())) for value in values),
        "strength_low": tuple(_finite(float(value.min())) for value in values),
        "strength_high": tuple(_finite(float(value.max())) for value in values),
    }


def _spectra(model: Model) -> dict[str, tuple[float | None, ...]]:
    """Growth rate of the value map and extreme eigenvalues of sym(V'W) of every block."""
    blocks: Any = model.backbone.blocks
    found: dict[str, list[float | None]] = {"growth": [], "form_low": [], "form_high": []}
    for block in blocks:
        weights, _ = copy.deepcopy(block.attention).cpu().export(torch.float64)
        finite = all(
            bool(part.isfinite().all()) for part in (weights.query, weights.key, weights.value, weights.output)
        )
        values = (value_abscissa(weights), extreme_form(weights, 1.0), extreme_form(weights, -1.0)) if finite else ()
        for index, name in enumerate(found):
            found[name].append(_finite(float(values[index])) if values else None)
    return {name: tuple(values) for name, values in found.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


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
