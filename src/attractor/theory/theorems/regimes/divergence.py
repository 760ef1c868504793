r"""T3: a positive direction of the metric and a positive interaction: tokens with positive metric energy are unbounded.

:math:`U_A = \tfrac12\sum_l m_l x_l^\top A x_l` never decreases, as in T1, and zero is the only equilibrium: a bounded orbit
would tend to it, where the energy is zero.
"""

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import (
    STOP_FAR_AWAY,
    draw_negative,
    largest_norms,
    metric_sampler,
    select_valid_rows,
    smallest_increase,
)
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import INTERACTION_POSITIVE, STANDARD_SETTING, SYMMETRIC_METRIC, cite_regimes
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem

HORIZON = 25.0


def metric_energy(points: torch.Tensor, masses: torch.Tensor, metric: torch.Tensor) -> torch.Tensor:
    return (masses * ((points @ metric) * points).sum(-1)).sum(-1)


def _positive_energy_margin(case: Case) -> Margin:
    points, metric = case.initial_tokens.points.double(), case.matrices.metric
    size = torch.linalg.matrix_norm(metric, 2) * (case.tokens.weights * points.square().sum(-1)).sum(-1)
    return Margin.positive(float(metric_energy(points, case.tokens.weights, metric) / size.clamp_min(1e-300)))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[select_valid_rows(run)], case.matrices.metric
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    norms = largest_norms(run)
    return (
        Measurement(
            "the metric energy never falls", smallest_increase(metric_energy(points, run.masses, metric), size), 1e-8
        ),
        Measurement("norms pass ten times the start", float((norms[-1] / norms[0]).log10()) - 1.0, asymptotic=True),
    )


def draw_case(rng: Rng, metric: torch.Tensor, n: int) -> Case:
    law = rng.metric_law(metric, rng.definite(len(metric)) + rng.skew(len(metric)))
    return Case(law, rng.tokens(n, len(metric)), horizon=HORIZON, options=STOP_FAR_AWAY)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    metric = rng.definite(d) if rng.random() < 0.5 else rng.indefinite(d)
    if rng.random() < 0.2:
        return Case(rng.shared_metric_law(metric, 2), rng.tokens(n, d), horizon=HORIZON, options=STOP_FAR_AWAY)
    return draw_case(rng, metric, n)


def sample_low_energy(rng: Rng) -> Case:
    """Draw an indefinite metric; starts of negative energy are kept, for which no theorem is known."""
    n, d = rng.sizes()
    return draw_case(rng, rng.indefinite(d), n)


THEOREM = Theorem(
    key="regimes.T3",
    title="Divergence",
    statement=r"If \(A = A^\top\) with \(W_h = A V_h\) for every head, \(\operatorname{sym}\sum_h W_h \succ 0\) and "
    r"\(\sum_l m_l\,x_l(0)^\top A\,x_l(0) > 0\), then the tokens are unbounded; for \(A \succ 0\) this is every start but zero.",
    citation=cite_regimes("divergence theorem, by way of the metric instead of a positive eigenvalue of V"),
    status=Status.HERE,
    hypotheses=(
        *STANDARD_SETTING,
        *SYMMETRIC_METRIC,
        INTERACTION_POSITIVE,
        Hypothesis("positive metric energy", r"\sum_l m_l\,x_l(0)^\top A\,x_l(0) > 0", _positive_energy_margin),
    ),
    fate="divergence",
    rate=r"\text{exponential, from the eigenvalues of } V \text{ with positive real part (T5)}",
    conclude=conclude,
    sample=sample,
    violate={
        "metric symmetric": metric_sampler(
            lambda rng, d: rng.indefinite(d) + rng.skew(d, 1.5), lambda rng, d: rng.definite(d) + rng.skew(d, 1.5), 4.0
        ),
        "interaction positive": metric_sampler(Rng.indefinite, draw_negative, 4.0),
        "positive metric energy": sample_low_energy,
    },
    proof="The metric energy never decreases and zero, where it vanishes, is the only equilibrium.",
)
