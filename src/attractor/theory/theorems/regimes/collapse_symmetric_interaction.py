r"""T2: symmetric positive interaction, negative metric (not necessarily symmetric): every token tends to zero.

:math:`E = \tfrac12\sum_{l,i} m_l m_i e^{x_l^\top W x_i}` has :math:`\partial E/\partial x_l = m_l Z_l A\dot x_l`, so
:math:`\dot E = \sum_l m_l Z_l\,\dot x_l^\top \operatorname{sym}(A)\,\dot x_l \le 0`; E is coercive and zero is the only equilibrium.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attractor.solvers import Trajectory
from attractor.theory import hypotheses as given
from attractor.theory.checking import RUNAWAY, alive, decades, largest_norms, power, smallest_increase
from attractor.theory.sampling import Draw, cloud, definite, indefinite, metric_law, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, negated

HORIZON = 100.0
LATE = {"save": decades(HORIZON)}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = alive(run)
    points, log_masses = run.points[kept], run.masses.log()
    scores = points @ case.matrices.interaction @ points.mT + log_masses + log_masses.unsqueeze(-1)
    energy = torch.logsumexp(scores.flatten(-2), -1)
    slope = power(run.times[kept], largest_norms(run)) if len(points) > 2 else 0.0
    return (
        Measurement(
            "the exponential energy never grows", smallest_increase(-energy, 1 + scores.abs().amax((-2, -1))), 1e-9
        ),
        Measurement("norms keep falling, as a power of time at least", -slope - 0.5, 0.25, asymptotic=True),
    )


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    law = metric_law(draw, definite(draw, d, -1.0) + skew(draw, d), definite(draw, d))
    return Case(law, cloud(draw, n, d), horizon=HORIZON, options=LATE)


def briefly(draw: Draw, metric: torch.Tensor, interaction: torch.Tensor, n: int) -> Case:
    law = metric_law(draw, metric, interaction)
    return Case(law, cloud(draw, n, len(metric)), horizon=6.0, options={"save": decades(6.0), **RUNAWAY})


def lopsided(draw: Draw) -> Case:
    n, d = sizes(draw)
    return briefly(draw, definite(draw, d, -1.0) + skew(draw, d, 1.5), definite(draw, d) + skew(draw, d, 1.5), n)


def growing(draw: Draw) -> Case:
    n, d = sizes(draw)
    return briefly(draw, indefinite(draw, d), definite(draw, d), n)


def repelling(draw: Draw) -> Case:
    n, d = sizes(draw)
    return briefly(draw, definite(draw, d, -1.0), definite(draw, d, -1.0), n)


THEOREM = Theorem(
    key="regimes.T2",
    title="Collapse, symmetric interaction",
    statement=r"If one head has \(W = W^\top \succ 0\) and \(\operatorname{sym} A \prec 0\), where \(W = A V\), then \(x_l(t) \to 0\) "
    r"for every token and every start.",
    citation=Citation(
        "pham2025dynamical",
        "convergence theorem, stated there for the symmetric part of W",
        "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1",
    ),
    status=Status.HERE,
    hypotheses=(
        *given.PLAIN,
        given.TOKENS,
        given.ONE_HEAD,
        given.METRIC,
        given.INTERACTION_SYMMETRIC,
        given.METRIC_NEGATIVE,
        given.INTERACTION_POSITIVE,
    ),
    fate="collapse",
    rate=r"\|x\| \sim t^{-1/2}; \text{ only the mean decays exponentially}",
    conclude=conclude,
    sample=sample,
    violate={"interaction symmetric": lopsided, "metric negative": growing, "interaction positive": repelling},
    broken=lambda case: replace(negated(case), horizon=5.0, options={}),
    proof="The exponential energy is coercive and a Lyapunov function; zero is the only equilibrium.",
)
