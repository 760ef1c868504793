"""Hypotheses that several theorems share, each a constant or a function that makes one."""

from __future__ import annotations

import torch

from attractor.laws import Attention, Kernel, has_kernel
from attractor.states import Tokens
from attractor.theory.conditions import BAND, Hypothesis, Margin, decided, strictly, vanishing
from attractor.theory.theorem import Case
from attractor.weights import asymmetry, extremes

BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")


def _law(case: Case) -> Margin:
    if not isinstance(case.law, Attention):
        return decided(False, f"the law is {type(case.law).__name__}")
    kernel, finite = case.law.kernel, all(bool(part.isfinite().all()) for part in _parts(case.law))
    assert isinstance(kernel, Kernel)
    if not finite or case.law.query.ndim > 3:
        return decided(False, "parameters are not finite" if not finite else "an ensemble of laws")
    return decided(has_kernel(case.law, "softmax"), f"the kernel is {kernel.name}")


def _parts(law: Attention) -> list[torch.Tensor]:
    return [part for name in ("query", "key", "value", "output", *BIASES) if (part := getattr(law, name)) is not None]


def _heads(case: Case) -> Margin:
    return decided(case.attention.heads == 1, f"{case.attention.heads} heads")


def _everything_visible(case: Case) -> Margin:
    mask = case.attention.mask
    return decided(mask is None, "no mask" if mask is None else f"a {mask.name} mask")


def _no_positions(case: Case) -> Margin:
    positions = case.attention.positions
    # added once at the input they change the start, not the dynamics
    inert = positions is None or not positions.changes_dynamics
    return decided(inert, "no positions" if positions is None else f"{positions.name} positions")


def _unbiased(case: Case) -> Margin:
    given = [name for name in BIASES if (bias := getattr(case.attention, name)) is not None and bool((bias != 0).any())]
    # a key bias adds to all scores of a query the same number
    harmful = [name for name in given if name != "key_bias"]
    return decided(not harmful, ", ".join(given) or "no biases")


def _normalised(case: Case) -> Margin:
    if not isinstance(case.law, Attention) or case.law.query.ndim > 3:
        return decided(False, f"the law is {type(case.law).__name__}")
    assert isinstance(case.law.kernel, Kernel)
    return decided(case.law.kernel.normalised, f"the kernel is {case.law.kernel.name}")


def _undriven(case: Case) -> Margin:
    """Values are V x_j and nothing else: no biases of values, no positions in them."""
    law = case.attention
    added = [
        name
        for name in ("value_bias", "output_bias")
        if (bias := getattr(law, name)) is not None and bool((bias != 0).any())
    ]
    if law.positions is not None and law.positions.shifts_values:
        added.append("positions in the values")
    return decided(not added, ", ".join(added) or "none")


def _causal(case: Case) -> Margin:
    mask = case.attention.mask
    causal = mask is not None and mask.is_causal
    places = case.tokens.positions
    if causal and places is not None and len(places.unique()) < len(places):
        return decided(False, "tokens at equal positions see each other")
    return decided(causal, "no mask" if mask is None else f"a {mask.name} mask")


def _layers(case: Case) -> Margin:
    return decided(case.options.get("method") == "layers", str(case.options.get("method", "continuous time")))


def first(tokens: Tokens) -> int:
    """The token that stands first in its sequence."""
    return 0 if tokens.positions is None else int(tokens.positions.argmin())


def _flat(case: Case) -> Margin:
    return decided(not case.space.curved, f"the space is {case.space.name}")


def _tokens(case: Case) -> Margin:
    if not isinstance(case.state, Tokens) or case.state.batch_shape:
        return decided(False, f"{'several systems of ' if case.state is not None else ''}{type(case.state).__name__}")
    masses = case.state.masses
    if masses is not None and not bool((masses > 0).all()):
        return decided(False, "a token of mass zero, which the others do not see")
    return decided(True, "Tokens")


SOFTMAX = Hypothesis("softmax attention", r"w_{ij} \propto e^{s_{ij}}", _law, structural=True)
FLAT = Hypothesis("flat space", r"x_i \in \mathbb{R}^d", _flat, structural=True)
TOKENS = Hypothesis("tokens", r"\mu = \sum_i m_i \delta_{x_i},\ m_i > 0", _tokens, structural=True)
FULL = Hypothesis("full attention", r"w_{ij} > 0 \text{ for all } j", _everything_visible, structural=True)
PLACELESS = Hypothesis("no positions", r"s_{ij} = x_i^\top W x_j", _no_positions, structural=True)
UNBIASED = Hypothesis("no biases", r"b = 0", _unbiased, structural=True)
ONE_HEAD = Hypothesis("one head", r"h = 1", _heads, structural=True)
NORMALISED = Hypothesis("row-normalised weights", r"\sum_j w_{ij} = 1", _normalised, structural=True)
UNDRIVEN = Hypothesis("no drift", r"\dot x_i = \sum_h \sum_j w^h_{ij} V_h x_j", _undriven, structural=True)
CAUSAL = Hypothesis("causal mask", r"w_{ij} = 0 \text{ for } j > i", _causal, structural=True)
LAYERS = Hypothesis("discrete layers", r"x \leftarrow x + h\,\dot x", _layers, structural=True)
PLAIN = (SOFTMAX, FLAT, FULL, PLACELESS, UNBIASED)  # the setting of most statements


def _metric(case: Case) -> Margin:
    found = case.matrices
    if found.spread < BAND:
        return strictly(found.spread, detail="the values have no common inverse, so no one metric is determined")
    return vanishing(found.residual, detail=f"{found.residual:.2g} of W is left by the best A")


METRIC = Hypothesis("one metric", r"W_h = A V_h \text{ for every head}", _metric, structural=True)
METRIC_SYMMETRIC = Hypothesis(
    "metric symmetric", r"A = A^\top", lambda case: vanishing(asymmetry(case.matrices.metric), *_blurred(case))
)
METRIC_NEGATIVE = Hypothesis(
    "metric negative",
    r"\operatorname{sym} A \prec 0",
    lambda case: strictly(-extremes(case.matrices.metric)[1], _band(case)),
)
METRIC_POSITIVE = Hypothesis(
    "metric positive",
    r"\operatorname{sym} A \succ 0",
    lambda case: strictly(extremes(case.matrices.metric)[0], _band(case)),
)
INTERACTION_POSITIVE = Hypothesis(
    "interaction positive",
    r"\operatorname{sym} \sum_h W_h \succ 0",
    lambda case: strictly(extremes(case.matrices.interaction)[0], _band(case)),
)
INTERACTION_SYMMETRIC = Hypothesis(
    "interaction symmetric", r"W = W^\top", lambda case: vanishing(asymmetry(case.matrices.interaction))
)


def _single(case: Case) -> bool:
    return case.attention.query.dtype == torch.float32


def _band(case: Case) -> float:
    """Where eigenvalues have no sign: rounding, enlarged by what an inverse of the values costs."""
    rounding = 1e-5 if _single(case) else BAND
    return min(1.0, rounding * max(1.0, 1e-3 / max(case.matrices.spread, 1e-16)))


def _blurred(case: Case) -> tuple[float, float]:
    return (1e-5, 1e-3) if _single(case) else (1e-9, 1e-6)
