"""Hypotheses that several theorems share."""

from __future__ import annotations

import torch

from attractor.laws import Attention, Kernel, has_kernel
from attractor.states import Tokens
from attractor.theory.conditions import BAND, Hypothesis, Margin
from attractor.theory.theorem import Case, Citation
from attractor.weights import asymmetry, extremes

REGIME_SYMBOLS = "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1"
BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")


def cite_regimes(place: str, symbols: str = REGIME_SYMBOLS) -> Citation:
    """Return the citation of a place in the paper on regimes of attention."""
    return Citation("pham2025dynamical", place, symbols)


def _softmax_margin(case: Case) -> Margin:
    if not isinstance(case.law, Attention):
        return Margin.boolean(False, f"the law is {type(case.law).__name__}")
    kernel, finite = case.law.kernel, all(bool(part.isfinite().all()) for part in _parts(case.law))
    assert isinstance(kernel, Kernel)
    if not finite or case.law.query.ndim > 3:
        return Margin.boolean(False, "parameters are not finite" if not finite else "an ensemble of laws")
    return Margin.boolean(has_kernel(case.law, "softmax"), f"the kernel is {kernel.name}")


def _parts(law: Attention) -> list[torch.Tensor]:
    return [part for name in ("query", "key", "value", "output", *BIASES) if (part := getattr(law, name)) is not None]


def _heads_margin(case: Case) -> Margin:
    return Margin.boolean(case.attention.heads == 1, f"{case.attention.heads} heads")


def _no_mask_margin(case: Case) -> Margin:
    mask = case.attention.mask
    return Margin.boolean(mask is None, "no mask" if mask is None else f"a {mask.name} mask")


def _no_positions_margin(case: Case) -> Margin:
    positions = case.attention.positions
    # added once at the input they change the start, not the dynamics
    harmless = positions is None or not positions.changes_dynamics
    return Margin.boolean(harmless, "no positions" if positions is None else f"{positions.name} positions")


def _unbiased_margin(case: Case) -> Margin:
    present = [
        name for name in BIASES if (bias := getattr(case.attention, name)) is not None and bool((bias != 0).any())
    ]
    # a key bias adds to all scores of a query the same number
    harmful = [name for name in present if name != "key_bias"]
    return Margin.boolean(not harmful, ", ".join(present) or "no biases")


def _normalised_margin(case: Case) -> Margin:
    if not isinstance(case.law, Attention) or case.law.query.ndim > 3:
        return Margin.boolean(False, f"the law is {type(case.law).__name__}")
    assert isinstance(case.law.kernel, Kernel)
    return Margin.boolean(case.law.kernel.normalised, f"the kernel is {case.law.kernel.name}")


def _no_drift_margin(case: Case) -> Margin:
    """Values are V x_j: no value or output bias, no positions added to the values."""
    law = case.attention
    added = [
        name
        for name in ("value_bias", "output_bias")
        if (bias := getattr(law, name)) is not None and bool((bias != 0).any())
    ]
    if law.positions is not None and law.positions.shifts_values:
        added.append("positions in the values")
    return Margin.boolean(not added, ", ".join(added) or "none")


def _causal_margin(case: Case) -> Margin:
    mask = case.attention.mask
    causal = mask is not None and mask.is_causal
    places = case.tokens.positions
    if causal and places is not None and len(places.unique()) < len(places):
        return Margin.boolean(False, "tokens at equal positions see each other")
    return Margin.boolean(causal, "no mask" if mask is None else f"a {mask.name} mask")


def _layers_margin(case: Case) -> Margin:
    return Margin.boolean(case.options.get("method") == "layers", str(case.options.get("method", "continuous time")))


def find_first_token(tokens: Tokens) -> int:
    """Return the index of the token at the first position."""
    return 0 if tokens.positions is None else int(tokens.positions.argmin())


def _flat_margin(case: Case) -> Margin:
    return Margin.boolean(not case.space.is_curved, f"the space is {case.space.name}")


def _tokens_margin(case: Case) -> Margin:
    if not isinstance(case.state, Tokens) or case.state.batch_shape:
        return Margin.boolean(
            False, f"{'several systems of ' if case.state is not None else ''}{type(case.state).__name__}"
        )
    masses = case.state.masses
    if masses is not None and not bool((masses > 0).all()):
        return Margin.boolean(False, "a token of mass zero, which the others do not see")
    return Margin.boolean(True, "Tokens")


SOFTMAX = Hypothesis("softmax attention", r"w_{ij} \propto e^{s_{ij}}", _softmax_margin, structural=True)
FLAT = Hypothesis("flat space", r"x_i \in \mathbb{R}^d", _flat_margin, structural=True)
TOKENS = Hypothesis("tokens", r"\mu = \sum_i m_i \delta_{x_i},\ m_i > 0", _tokens_margin, structural=True)
FULL = Hypothesis("full attention", r"w_{ij} > 0 \text{ for all } j", _no_mask_margin, structural=True)
NO_POSITIONS = Hypothesis("no positions", r"s_{ij} = x_i^\top W x_j", _no_positions_margin, structural=True)
UNBIASED = Hypothesis("no biases", r"b = 0", _unbiased_margin, structural=True)
ONE_HEAD = Hypothesis("one head", r"h = 1", _heads_margin, structural=True)
NORMALISED = Hypothesis("row-normalised weights", r"\sum_j w_{ij} = 1", _normalised_margin, structural=True)
NO_DRIFT = Hypothesis("no drift", r"\dot x_i = \sum_h \sum_j w^h_{ij} V_h x_j", _no_drift_margin, structural=True)
CAUSAL = Hypothesis("causal mask", r"w_{ij} = 0 \text{ for } j > i", _causal_margin, structural=True)
DISCRETE_LAYERS = Hypothesis("discrete layers", r"x \leftarrow x + h\,\dot x", _layers_margin, structural=True)
STANDARD_SETTING = (SOFTMAX, FLAT, FULL, NO_POSITIONS, UNBIASED, TOKENS)  # the setting of most statements


def _metric_margin(case: Case) -> Margin:
    found = case.matrices
    if found.conditioning < BAND:
        return Margin.positive(
            found.conditioning, detail="the values have no common inverse, so no one metric is determined"
        )
    return Margin.zero(found.residual, detail=f"{found.residual:.2g} of W is left by the best A")


METRIC = Hypothesis("one metric", r"W_h = A V_h \text{ for every head}", _metric_margin, structural=True)
METRIC_SYMMETRIC = Hypothesis(
    "metric symmetric",
    r"A = A^\top",
    lambda case: Margin.zero(asymmetry(case.matrices.metric), *_symmetry_tolerances(case)),
)
SYMMETRIC_METRIC = (METRIC, METRIC_SYMMETRIC)
METRIC_NEGATIVE = Hypothesis(
    "metric negative",
    r"\operatorname{sym} A \prec 0",
    lambda case: Margin.positive(-extremes(case.matrices.metric)[1], _band(case)),
)
METRIC_POSITIVE = Hypothesis(
    "metric positive",
    r"\operatorname{sym} A \succ 0",
    lambda case: Margin.positive(extremes(case.matrices.metric)[0], _band(case)),
)
INTERACTION_POSITIVE = Hypothesis(
    "interaction positive",
    r"\operatorname{sym} \sum_h W_h \succ 0",
    lambda case: Margin.positive(extremes(case.matrices.interaction)[0], _band(case)),
)
INTERACTION_SYMMETRIC = Hypothesis(
    "interaction symmetric", r"W = W^\top", lambda case: Margin.zero(asymmetry(case.matrices.interaction))
)


def _is_float32(case: Case) -> bool:
    return case.attention.query.dtype == torch.float32


def _band(case: Case) -> float:
    """Relative size below which an eigenvalue has no sign: rounding, enlarged by the conditioning of the values."""
    rounding = 1e-5 if _is_float32(case) else BAND
    return min(1.0, rounding * max(1.0, 1e-3 / max(case.matrices.conditioning, 1e-16)))


def _symmetry_tolerances(case: Case) -> tuple[float, float]:
    return (1e-5, 1e-3) if _is_float32(case) else (1e-9, 1e-6)
