r"""T2: symmetric positive interaction, negative metric (not necessarily symmetric): every token tends to zero.

:math:`E = \tfrac12\sum_{l,i} m_l m_i e^{x_l^\top W x_i}` has :math:`\partial E/\partial x_l = m_l Z_l A\dot x_l`, so
:math:`\dot E = \sum_l m_l Z_l\,\dot x_l^\top \operatorname{sym}(A)\,\dot x_l \le 0`; E is coercive and zero is the only equilibrium.
"""

from dataclasses import replace

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import (
    STOP_FAR_AWAY,
    draw_negative,
    fit_power,
    geometric_times,
    largest_norms,
    metric_sampler,
    select_valid_rows,
    smallest_increase,
)
from attractor.theory.hypotheses import (
    INTERACTION_POSITIVE,
    INTERACTION_SYMMETRIC,
    METRIC,
    METRIC_NEGATIVE,
    ONE_HEAD,
    STANDARD_SETTING,
    cite_regimes,
)
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, reverse_velocity
from attractor.theory.timescales import fall_algebraically

HORIZON = 100.0
LATE = {"save": geometric_times(HORIZON)}
SHORT = {"save": geometric_times(6.0), **STOP_FAR_AWAY}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    points, log_masses = run.points[kept], run.masses.log()
    scores = points @ case.matrices.interaction @ points.mT + log_masses + log_masses.unsqueeze(-1)
    energy = torch.logsumexp(scores.flatten(-2), -1)
    slope = fit_power(run.times[kept], largest_norms(run)) if len(points) > 2 else 0.0
    return (
        Measurement(
            "the exponential energy never grows", smallest_increase(-energy, 1 + scores.abs().amax((-2, -1))), 1e-9
        ),
        Measurement("norms keep falling, as a power of time at least", -slope - 0.5, 0.25, asymptotic=True),
    )


THEOREM = Theorem(
    key="regimes.T2",
    title="Collapse, symmetric interaction",
    statement=r"If one head has \(W = W^\top \succ 0\) and \(\operatorname{sym} A \prec 0\), where \(W = A V\), then \(x_l(t) \to 0\) "
    r"for every token and every start.",
    citation=cite_regimes("convergence theorem, stated there for the symmetric part of W"),
    status=Status.HERE,
    hypotheses=(*STANDARD_SETTING, ONE_HEAD, METRIC, INTERACTION_SYMMETRIC, METRIC_NEGATIVE, INTERACTION_POSITIVE),
    fate="collapse",
    time_scale=fall_algebraically,
    rate=r"\|x\| \sim t^{-1/2}; \text{ only the mean decays exponentially}",
    conclude=conclude,
    sample=metric_sampler(lambda rng, d: rng.definite(d, -1.0) + rng.skew(d), Rng.definite, HORIZON, LATE),
    violate={
        "interaction symmetric": metric_sampler(
            lambda rng, d: rng.definite(d, -1.0) + rng.skew(d, 1.5),
            lambda rng, d: rng.definite(d) + rng.skew(d, 1.5),
            6.0,
            SHORT,
        ),
        "metric negative": metric_sampler(Rng.indefinite, Rng.definite, 6.0, SHORT),
        "interaction positive": metric_sampler(draw_negative, draw_negative, 6.0, SHORT),
    },
    break_case=lambda case: replace(reverse_velocity(case), horizon=5.0, options={}),
    proof="The exponential energy is coercive and a Lyapunov function; zero is the only equilibrium.",
)
