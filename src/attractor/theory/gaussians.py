"""Gaussian measures under attention: hypotheses and random cases for mean-field theorems."""

from __future__ import annotations

from typing import Any

import torch

from attractor.laws import Attention, Kernel, has_kernel
from attractor.meanfield import growth_rate
from attractor.solvers import Trajectory, flow
from attractor.states import Gaussian
from attractor.theory import hypotheses
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.theorem import Case, Citation, Measurement
from attractor.weights import asymmetry, extremes, symmetrize

TOLERANCES: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-13}
CITATION_KEY = "castin2025unified"
SYMBOLS = "its A = K'Q is the transpose of our Q'K, with the scale in it; V is its V; Sigma its covariance"


def cite(place: str) -> Citation:
    """Return the citation of a place in the mean-field paper."""
    return Citation(CITATION_KEY, place, SYMBOLS)


def require_kernel(*names: str) -> Hypothesis:
    """Return the hypothesis that the kernel is one of these."""

    def margin(case: Case) -> Margin:
        law = case.law
        if not isinstance(law, Attention) or not isinstance(law.kernel, Kernel) or law.query.ndim > 3:
            return Margin.boolean(False, f"the law is {type(law).__name__}")
        return Margin.boolean(has_kernel(law, *names), f"the kernel is {law.kernel.name}")

    label = f"{names[0]} attention" if len(names) == 1 else "kernel"
    return Hypothesis(label, r"\text{" + ", ".join(names) + "}", margin, structural=True)


def _gaussian_margin(case: Case) -> Margin:
    word = f"{type(case.state).__name__} in a space that is {case.space.name}"
    return Margin.boolean(
        isinstance(case.state, Gaussian) and not case.state.batch_shape and not case.space.is_curved, word
    )


def _no_biases_or_positions_margin(case: Case) -> Margin:
    law = case.attention
    extra = [name for name in hypotheses.BIASES if getattr(law, name) is not None]
    extra += [] if law.positions is None else ["positions"]
    return Margin.boolean(not extra, ", ".join(extra) or "no biases, no positions")


def _identity_margin(case: Case) -> Margin:
    value = case.matrices.values[0]
    eye = torch.eye(len(value), dtype=value.dtype)
    return Margin.zero(float((value - eye).norm() / eye.norm()))


def _value_definite_margin(case: Case) -> Margin:
    value = case.matrices.values[0]
    return Margin.zero(asymmetry(value)) if asymmetry(value) > 1e-9 else Margin.positive(extremes(value)[0])


GAUSSIAN = Hypothesis("Gaussian measure", r"\mu = N(\alpha, \Sigma)", _gaussian_margin, structural=True)
NO_BIASES_OR_POSITIONS = Hypothesis(
    "no biases, no positions", r"s(x, y) = \langle Qx, Ky\rangle", _no_biases_or_positions_margin, structural=True
)
IDENTITY_VALUE = Hypothesis("identity value", "V = I", _identity_margin)
DEFINITE_VALUE = Hypothesis("value positive", r"V = V^\top \succ 0", _value_definite_margin)
SYMMETRIC_POSITIVE = Hypothesis(
    "interaction positive",
    r"S = \operatorname{sym} A \succ 0",
    lambda case: Margin.positive(extremes(case.matrices.transposed)[0]),
)
SYMMETRIC_NEGATIVE = Hypothesis(
    "interaction negative",
    r"S = \operatorname{sym} A \preceq 0",
    lambda case: Margin.nonnegative(-extremes(case.matrices.transposed)[1]),
)
FULL_RANK = Hypothesis(
    "covariance invertible", r"\Sigma_0 \succ 0", lambda case: Margin.positive(extremes(case.gaussian.covariance)[0])
)


def gaussian_setting(*kernels: str) -> tuple[Hypothesis, ...]:
    """Return the hypotheses of a Gaussian under full attention with one of these kernels, without biases and positions."""
    return (require_kernel(*kernels), GAUSSIAN, hypotheses.FULL, NO_BIASES_OR_POSITIONS)


SOFTMAX_GAUSSIAN = (*gaussian_setting("softmax"), hypotheses.ONE_HEAD)


def integrate_gaussian(case: Case) -> Trajectory:
    """Return the trajectory of the Gaussian."""
    return flow(case.law, case.gaussian, until=case.horizon, **{"save": 40, "stop": (), **TOLERANCES, **case.options})


def conclude_growth(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    """Compare the norm of the covariance with the exponential bound of ``growth_rate``."""
    sizes = torch.linalg.eigvalsh(symmetrize(run.covariances))[..., -1]
    slack = sizes[0].log() + growth_rate(case.attention) * run.times - sizes.clamp_min(1e-300).log()
    return (Measurement("covariances grow at most exponentially", float(slack.min()), 1e-8),)
