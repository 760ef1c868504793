r"""T1: negative symmetric metric, positive interaction: every token tends to zero.

:math:`U = -\tfrac12\sum_l m_l x_l^\top A x_l` decreases: :math:`\dot U = -\sum_{h,l} m_l \sum_i P^h_{li}s^h_{li} \le -\bar x^\top
\big(\sum_h W_h\big)\bar x`, since a softmax mean of scores is at least their plain mean. Equality forces zero; LaSalle.
"""

from dataclasses import replace

import torch

from attractor.laws import Rotary
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
    METRIC_NEGATIVE,
    STANDARD_SETTING,
    SYMMETRIC_METRIC,
    cite_regimes,
)
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, reverse_velocity
from attractor.theory.timescales import fall_algebraically

HORIZON = 100.0
LATE = {"save": geometric_times(HORIZON)}
SHORT = {"save": geometric_times(10.0), **STOP_FAR_AWAY}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept, metric = select_valid_rows(run), case.matrices.metric
    points = run.points[kept]
    energy = (run.masses * ((points @ metric) * points).sum(-1)).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    slope = fit_power(run.times[kept], largest_norms(run)) if len(points) > 2 else 0.0
    return (
        Measurement("the metric energy never grows", smallest_increase(energy, size), 1e-8),
        Measurement("norms keep falling, as a power of time at least", -slope - 0.5, 0.25, asymptotic=True),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    metric, state = rng.definite(d, -1.0), rng.tokens(n, d)
    if rng.random() < 0.3:
        return Case(rng.shared_metric_law(metric, 2), state, horizon=HORIZON, options=LATE)
    law = rng.metric_law(metric, rng.definite(d) + rng.skew(d))
    return Case(law, state, horizon=HORIZON, options=LATE)


def sample_rotation(rng: Rng) -> Case:
    """The published statement without symmetry: W = R(a), A = -R(-a) with a beyond 45 degrees."""
    angle = float(rng.uniform(0.26, 0.45)) * torch.pi
    cosine, sine = torch.tensor([angle], dtype=torch.float64).cos(), torch.tensor([angle], dtype=torch.float64).sin()
    turn = torch.stack((torch.cat((cosine, -sine)), torch.cat((sine, cosine))))
    law = rng.metric_law(-turn.mT, turn)
    return Case(law, rng.tokens(4, 2), horizon=10.0, options=SHORT)


def sample_masked(rng: Rng) -> Case:
    case = sample(rng)
    return replace(case, law=replace(case.attention, mask="causal"))


def sample_rotary(rng: Rng) -> Case:
    law = rng.metric_law(rng.definite(4, -1.0), rng.definite(4), positions=Rotary(10.0))
    return Case(law, rng.tokens(6, 4), horizon=HORIZON, options=LATE)


def reverse_briefly(case: Case) -> Case:
    """Reverse the velocity and shorten the run, because reversed tokens diverge."""
    return replace(reverse_velocity(case), horizon=5.0, options={})


THEOREM = Theorem(
    key="regimes.T1",
    title="Collapse, symmetric metric",
    statement=r"If \(A = A^\top \prec 0\) with \(W_h = A V_h\) for every head and \(\operatorname{sym}\sum_h W_h \succ 0\), "
    r"then \(x_l(t) \to 0\) for every token and every start.",
    citation=cite_regimes("convergence theorem, stated there for the symmetric part of A"),
    status=Status.HERE,
    hypotheses=(*STANDARD_SETTING, *SYMMETRIC_METRIC, METRIC_NEGATIVE, INTERACTION_POSITIVE),
    fate="collapse",
    time_scale=fall_algebraically,
    rate=r"\|x\| \sim t^{-1/2}; \text{ only the mean decays exponentially}",
    conclude=conclude,
    sample=sample,
    violate={
        "metric symmetric": sample_rotation,
        "metric negative": metric_sampler(Rng.indefinite, Rng.definite, 10.0, SHORT),
        "interaction positive": metric_sampler(draw_negative, draw_negative, 10.0, SHORT),
        "full attention": sample_masked,
        "no positions": sample_rotary,
    },
    break_case=reverse_briefly,
    proof="The metric energy is a Lyapunov function: a softmax mean of scores is at least their plain mean.",
)
