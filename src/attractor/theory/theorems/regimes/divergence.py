r"""T3: a positive direction of the metric and a positive interaction: tokens with positive metric energy are unbounded.

:math:`U_A = \tfrac12\sum_l m_l x_l^\top A x_l` never decreases, as in T1, and zero is the only equilibrium: a bounded orbit
would tend to it, where the energy is zero.
"""

from __future__ import annotations

import torch

from attractor.solvers import Trajectory
from attractor.theory import hypotheses as given
from attractor.theory.checking import RUNAWAY, alive, largest_norms, smallest_increase
from attractor.theory.conditions import Hypothesis, Margin, strictly
from attractor.theory.sampling import Draw, cloud, definite, indefinite, metric_law, shared_metric_law, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem

HORIZON = 25.0


def energy(points: torch.Tensor, masses: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
    return (masses * ((points @ metric) * points).sum(-1)).sum(-1)


def positive_energy(case: Case) -> Margin:
    points, metric = case.entered.points.double(), case.matrices.metric
    size = torch.linalg.matrix_norm(metric, 2) * (case.tokens.weights * points.square().sum(-1)).sum(-1)
    return strictly(float(energy(points, case.tokens.weights, metric) / size.clamp_min(1e-300)))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[alive(run)], case.matrices.metric
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    norms = largest_norms(run)
    return (
        Measurement("the metric energy never falls", smallest_increase(energy(points, run.masses, metric), size), 1e-8),
        Measurement("norms pass ten times the start", float((norms[-1] / norms[0]).log10()) - 1.0, asymptotic=True),
    )


def problem(draw: Draw, metric: torch.Tensor, n: int) -> Case:
    law = metric_law(draw, metric, definite(draw, len(metric)) + skew(draw, len(metric)))
    return Case(law, cloud(draw, n, len(metric)), horizon=HORIZON, options=RUNAWAY)


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    metric = definite(draw, d) if draw.random() < 0.5 else indefinite(draw, d)
    if draw.random() < 0.2:
        return Case(shared_metric_law(draw, metric, 2), cloud(draw, n, d), horizon=HORIZON, options=RUNAWAY)
    return problem(draw, metric, n)


def low_start(draw: Draw) -> Case:
    """Indefinite metric, negative energy: no theorem, but tokens were never seen to stay."""
    n, d = sizes(draw)
    return problem(draw, indefinite(draw, d), n)


def lopsided(draw: Draw) -> Case:
    n, d = sizes(draw)
    law = metric_law(draw, indefinite(draw, d) + skew(draw, d, 1.5), definite(draw, d) + skew(draw, d, 1.5))
    return Case(law, cloud(draw, n, d), horizon=4.0, options=RUNAWAY)


def repelling(draw: Draw) -> Case:
    n, d = sizes(draw)
    return Case(
        metric_law(draw, indefinite(draw, d), definite(draw, d, -1.0)), cloud(draw, n, d), horizon=4.0, options=RUNAWAY
    )


THEOREM = Theorem(
    key="regimes.T3",
    title="Divergence",
    statement=r"If \(A = A^\top\) with \(W_h = A V_h\) for every head, \(\operatorname{sym}\sum_h W_h \succ 0\) and "
    r"\(\sum_l m_l\,x_l(0)^\top A\,x_l(0) > 0\), then the tokens are unbounded; for \(A \succ 0\) this is every start but zero.",
    citation=Citation(
        "pham2025dynamical",
        "divergence theorem, by way of the metric instead of a positive eigenvalue of V",
        "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1",
    ),
    status=Status.HERE,
    hypotheses=(
        *given.PLAIN,
        given.TOKENS,
        given.METRIC,
        given.METRIC_SYMMETRIC,
        given.INTERACTION_POSITIVE,
        Hypothesis("positive metric energy", r"\sum_l m_l\,x_l(0)^\top A\,x_l(0) > 0", positive_energy),
    ),
    fate="divergence",
    rate=r"\text{exponential, from the eigenvalues of } V \text{ with positive real part (T5)}",
    conclude=conclude,
    sample=sample,
    violate={
        "metric symmetric": lopsided,
        "interaction positive": repelling,
        "positive metric energy": low_start,
    },
    proof="The metric energy never decreases and zero, where it vanishes, is the only equilibrium.",
)
