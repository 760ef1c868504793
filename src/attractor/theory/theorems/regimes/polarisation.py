r"""T4: positive metric, definite interaction of either sign: tokens that are not all equal are unbounded.

By T0 no pair form decreases. On the limit set of a bounded orbit all are constant, which forces
:math:`\delta^\top W_h x_i` to be the same for all i, hence :math:`\delta^\top(\sum_h W_h)\delta = 0`: no difference is left.
"""

import torch

from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.theory.checking import (
    STOP_FAR_AWAY,
    draw_negative,
    largest_norms,
    metric_sampler,
    select_valid_rows,
    smallest_increase,
)
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import METRIC_POSITIVE, STANDARD_SETTING, SYMMETRIC_METRIC, cite_regimes
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.weights import extremes

HORIZON = 25.0


def pair_distances(points: torch.Tensor) -> torch.Tensor:
    """Distances of all pairs, (..., n, n)."""
    return (points.unsqueeze(-2) - points.unsqueeze(-3)).norm(dim=-1)


def _distinct_margin(case: Case) -> Margin:
    points = case.initial_tokens.points
    return Margin.nonzero(float(pair_distances(points).max() / points.norm(dim=-1).max().clamp_min(1e-300)))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[select_valid_rows(run)], case.matrices.metric
    differences = points.unsqueeze(-2) - points.unsqueeze(-3)
    forms = ((differences @ metric) * differences).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    norms = largest_norms(run)
    return (
        Measurement("pair forms never decrease", smallest_increase(forms, size[:, None, None]), 1e-8),
        Measurement("norms pass ten times the start", float((norms[-1] / norms[0]).log10()) - 1.0, asymptotic=True),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    sign = 1.0 if rng.random() < 0.3 else -1.0
    if rng.random() < 0.2:
        return Case(
            rng.shared_metric_law(rng.definite(d), 2, sign), rng.tokens(n, d), horizon=HORIZON, options=STOP_FAR_AWAY
        )
    law = rng.metric_law(rng.definite(d), sign * rng.definite(d) + rng.skew(d, 0.3))
    return Case(law, rng.tokens(n, d), horizon=HORIZON, options=STOP_FAR_AWAY)


def sample_equal_tokens(rng: Rng) -> Case:
    """Draw equal tokens under a stable value, which decay."""
    n, d = rng.sizes()
    law = rng.metric_law(rng.definite(d), rng.definite(d, -1.0))
    return Case(law, Tokens(rng.tokens(1, d).points.expand(n, d).clone()), horizon=HORIZON, options=STOP_FAR_AWAY)


def _either_sign_margin(case: Case) -> Margin:
    low, high = extremes(case.matrices.interaction)
    return Margin.positive(max(low, -high))


THEOREM = Theorem(
    key="regimes.T4",
    title="Polarisation",
    statement=r"If \(A = A^\top \succ 0\) with \(W_h = A V_h\) for every head, \(\operatorname{sym}\sum_h W_h\) is definite of either sign "
    r"and the tokens are not all equal, then they are unbounded.",
    citation=cite_regimes("where its divergence theorem needs tokens that are initially separated"),
    status=Status.HERE,
    hypotheses=(
        *STANDARD_SETTING,
        *SYMMETRIC_METRIC,
        METRIC_POSITIVE,
        Hypothesis(
            "interaction definite", r"\operatorname{sym}\sum_h W_h \succ 0 \text{ or } \prec 0", _either_sign_margin
        ),
        Hypothesis("tokens differ", r"x_l(0) \ne x_k(0) \text{ for some pair}", _distinct_margin),
    ),
    fate="divergence",
    rate=r"\text{exponential; for } \operatorname{sym} W \prec 0 \text{ distances grow while the mean may decay}",
    conclude=conclude,
    sample=sample,
    violate={
        "tokens differ": sample_equal_tokens,
        "metric positive": metric_sampler(draw_negative, Rng.definite, HORIZON),
        "interaction definite": metric_sampler(Rng.definite, Rng.indefinite, HORIZON),
    },
    proof="Pair forms never decrease (T0); on a bounded limit set they are constant, which leaves no difference.",
)
