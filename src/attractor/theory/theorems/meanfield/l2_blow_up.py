r"""T9: L2 attention with a singular key can blow up in finite time.

With :math:`K = e_1^\top`, :math:`Q = (1, 1)`, :math:`V = e_2(1, 1)` the variance :math:`s = \Sigma_{11}` rests and
:math:`w = \Sigma_{12}` obeys :math:`\dot w = c(s + w)^2`, :math:`c = 2/(1 + 2s)`, so :math:`T^* = 1/(c(s + w_0))`.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Attention
from attractor.solvers import Trajectory, flow
from attractor.states import Gaussian
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import TOLERANCES, cite, gaussian_setting
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale

QUERY, KEY, VALUE = [[1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]
SHARES = (0.5, 0.9, 0.99)  # of the blow-up time at which we look


def example_law() -> Attention:
    query, key, value = (torch.tensor(rows, dtype=torch.float64) for rows in (QUERY, KEY, VALUE))
    return Attention(query, key, value, kernel="l2")


def blow_up_time(case: Case) -> float:
    covariance = case.gaussian.covariance
    s, w = float(covariance[0, 0]), float(covariance[0, 1])
    return (1.0 + 2.0 * s) / (2.0 * (s + w))


def integrate_to_blow_up(case: Case) -> Trajectory:
    times = [0.0, *(share * abs(blow_up_time(case)) for share in SHARES)]
    return flow(case.law, case.gaussian, save=times, stop=(), **TOLERANCES)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    covariance, end = case.gaussian.covariance, blow_up_time(case)
    s, w = float(covariance[0, 0]), float(covariance[0, 1])
    exact = (s + w) / (1.0 - run.times / end) - s
    missed = ((run.covariances[:, 0, 1] - exact).abs() / (exact.abs() + s)).max()
    rest = ((run.covariances[:, 0, 0] - s).abs() / (s + run.covariances[:, 0, 1].abs())).max()
    grown = float((run.covariances[-1, 0, 1] + s) / (w + s))
    return (
        Measurement("the covariance is the closed form", -float(missed), 1e-6),
        Measurement("it has grown a hundredfold at 0.99 of the time", grown / 100.0 - 1.0, 1e-4, asymptotic=True),
        Measurement("the first variance rests", -float(rest), 1e-8),  # the run is accurate to 1e-10 a step,
    )


def sample(rng: Rng) -> Case:
    s, correlation, other = float(rng.uniform(0.3, 2.0)), float(rng.uniform(-0.4, 0.8)), float(rng.uniform(0.5, 2.0))
    w = correlation * np.sqrt(s * other)
    covariance = torch.tensor([[s, w], [w, other]], dtype=torch.float64)
    return Case(example_law(), Gaussian(torch.zeros(2, dtype=torch.float64), covariance))


def sample_decaying(rng: Rng) -> Case:
    """Draw s + w < 0, for which the solution exists for all times."""
    s = float(rng.uniform(0.2, 0.6))
    w = -s - 0.2
    covariance = torch.tensor([[s, w], [w, w * w / s + 0.5]], dtype=torch.float64)
    return Case(example_law(), Gaussian(torch.zeros(2, dtype=torch.float64), covariance))


def _example_margin(case: Case) -> Margin:
    law, wanted = case.attention, example_law()
    if law.query.shape[-2:] != wanted.query.shape or law.value_map.shape != wanted.value_map.shape or law.scale != 1.0:
        return Margin.boolean(False, "another law than that of the example")
    return Margin.zero(
        float(sum((getattr(law, name) - getattr(wanted, name)).abs().max() for name in ("query", "key", "value_map")))
    )


def _ahead_margin(case: Case) -> Margin:
    covariance = case.gaussian.covariance
    return Margin.positive(float((covariance[0, 0] + covariance[0, 1]) / covariance[0, 0]))


def time_scale(case: Case) -> TimeScale:
    return TimeScale("the covariance becomes infinite", math.log(blow_up_time(case)), "exact", "like 1/(T - t)")


THEOREM = Theorem(
    key="meanfield.T9",
    title="L2 blow-up with a singular key",
    statement=r"L2 attention with \(K = e_1^\top,\ Q = (1, 1),\ V = e_2(1, 1)\): \(s = \Sigma_{11}\) rests and \(w = \Sigma_{12}\) "
    r"blows up at \(T^* = \frac{1 + 2s}{2(s + w_0)}\) if \(s + w_0 > 0\).",
    citation=cite("counter-example to global existence for L2 without an invertible key"),
    status=Status.HERE,
    hypotheses=(
        *gaussian_setting("l2"),
        Hypothesis("the example", r"K = e_1^\top,\ Q = (1,1),\ V = e_2(1,1)", _example_margin, structural=True),
        Hypothesis("growing", r"s + w_0 > 0", _ahead_margin),
    ),
    fate="blow-up",
    time_scale=time_scale,
    rate=r"s + w_t = (s + w_0)/(1 - t/T^*)",
    conclude=conclude,
    sample=sample,
    violate={"growing": sample_decaying},
    gather=gather_each(integrate_to_blow_up),
    break_case=lambda case: replace(case, law=replace(case.attention, value=0.9 * case.attention.value)),
    proof="One Riccati equation.",
)
