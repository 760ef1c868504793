r"""T3: softmax attention with V = I: the covariance is known in closed form, and so is the time of its blow-up.

:math:`\frac{d}{dt}\Sigma^{-1} = -2S`, so :math:`\Sigma_t^{-1} + 2tS` is conserved; with :math:`M =
\Sigma_0^{1/2}S\Sigma_0^{1/2}` the covariance blows up at :math:`T^* = 1/(2\lambda_{\max}(M))` along
:math:`\Sigma_0^{1/2}u_{\max}` if that is positive. With S not negative and :math:`\Sigma_0 \succ 0` it always does.
"""

import math

import numpy as np
import torch

from attractor.meanfield import BlowUp, find_blow_up, identity_value_blow_up
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import FULL_RANK, IDENTITY_VALUE, SOFTMAX_GAUSSIAN, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale
from attractor.weights import extremes


def locate_blow_up(case: Case) -> BlowUp:
    return find_blow_up(case.law, case.gaussian, until=100.0)


def conclude(case: Case, seen: BlowUp) -> tuple[Measurement, ...]:
    time, direction = identity_value_blow_up(case.matrices.transposed.numpy(), case.gaussian.covariance.numpy())
    along = 0.0
    if direction is not None and seen.direction is not None:
        along = abs(float(np.dot(direction, np.asarray(seen.direction))))
    return (
        Measurement("it blows up when promised", -abs(float(seen.time / time) - 1.0), 1e-7),
        Measurement("and where", along - 1.0, 1e-6),
    )


def sample(rng: Rng) -> Case:
    d = int(rng.integers(1, 5))
    form = rng.definite(d) if d == 1 or rng.random() < 0.5 else rng.indefinite(d)
    law = rng.softmax_law(form + rng.skew(d, 0.3), torch.eye(d, dtype=torch.float64))
    return Case(law, rng.gaussian(d))


def sample_other_value(rng: Rng) -> Case:
    law = rng.softmax_law(rng.definite(3), rng.definite(3))
    return Case(law, rng.gaussian(3))


def sample_negative(rng: Rng) -> Case:
    law = rng.softmax_law(rng.definite(3, -1.0), torch.eye(3, dtype=torch.float64))
    return Case(law, rng.gaussian(3))


def time_scale(case: Case) -> TimeScale:
    time, _ = identity_value_blow_up(case.matrices.transposed.numpy(), case.gaussian.covariance.double().numpy())
    return TimeScale("the covariance becomes infinite", math.log(time), "exact", "like 1/(T - t)")


THEOREM = Theorem(
    key="meanfield.T3",
    title="Blow-up for the identity value",
    statement=r"Softmax attention with \(V = I\): \(\Sigma_t^{-1} + 2tS\) is conserved. If \(\Sigma_0 \succ 0\) and "
    r"\(S\) has a positive eigenvalue, then \(\Sigma\) blows up at "
    r"\(T^* = 1/(2\lambda_{\max}(\Sigma_0^{1/2}S\Sigma_0^{1/2}))\), in one direction generically.",
    citation=cite("finite-time blow-up of Gaussian covariances"),
    status=Status.HERE,
    hypotheses=(
        *SOFTMAX_GAUSSIAN,
        FULL_RANK,
        IDENTITY_VALUE,
        Hypothesis(
            "interaction not negative",
            r"S \not\preceq 0",
            lambda case: Margin.positive(extremes(case.matrices.transposed)[1]),
        ),
    ),
    fate="blow-up",
    time_scale=time_scale,
    rate=r"\Sigma_t = \Sigma_0^{1/2}(I - 2tM)^{-1}\Sigma_0^{1/2}",
    conclude=conclude,
    sample=sample,
    violate={"identity value": sample_other_value, "interaction not negative": sample_negative},
    gather=gather_each(locate_blow_up),
    proof="The inverse of the covariance moves at the constant rate -2S.",
)
