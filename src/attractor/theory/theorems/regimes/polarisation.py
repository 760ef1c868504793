r"""T4: positive metric, definite interaction of either sign: tokens that are not all equal are unbounded.

By T0 no pair form decreases. On the limit set of a bounded orbit all are constant, which forces
:math:`\delta^\top W_h x_i` to be the same for all i, hence :math:`\delta^\top(\sum_h W_h)\delta = 0`: no difference is left.
"""

from __future__ import annotations

import torch

from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.theory import hypotheses as given
from attractor.theory.checking import RUNAWAY, alive, largest_norms, smallest_increase
from attractor.theory.conditions import Hypothesis, Margin, nonzero, strictly
from attractor.theory.sampling import Draw, cloud, definite, indefinite, metric_law, shared_metric_law, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.weights import extremes

HORIZON = 25.0


def gaps(points: torch.Tensor) -> torch.Tensor:
    """Distances of all pairs, (..., n, n)."""
    return (points.unsqueeze(-2) - points.unsqueeze(-3)).norm(dim=-1)


def distinct(case: Case) -> Margin:
    points = case.entered.points
    return nonzero(float(gaps(points).max() / points.norm(dim=-1).max().clamp_min(1e-300)))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[alive(run)], case.matrices.metric
    differences = points.unsqueeze(-2) - points.unsqueeze(-3)
    forms = ((differences @ metric) * differences).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    norms = largest_norms(run)
    return (
        Measurement("pair forms never decrease", smallest_increase(forms, size[:, None, None]), 1e-8),
        Measurement("norms pass ten times the start", float((norms[-1] / norms[0]).log10()) - 1.0, asymptotic=True),
    )


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    sign = 1.0 if draw.random() < 0.3 else -1.0
    if draw.random() < 0.2:
        return Case(
            shared_metric_law(draw, definite(draw, d), 2, sign), cloud(draw, n, d), horizon=HORIZON, options=RUNAWAY
        )
    law = metric_law(draw, definite(draw, d), sign * definite(draw, d) + skew(draw, d, 0.3))
    return Case(law, cloud(draw, n, d), horizon=HORIZON, options=RUNAWAY)


def together(draw: Draw) -> Case:
    """A consensus state follows the value alone, which is stable here."""
    n, d = sizes(draw)
    law = metric_law(draw, definite(draw, d), definite(draw, d, -1.0))
    return Case(law, Tokens(cloud(draw, 1, d).points.expand(n, d).clone()), horizon=HORIZON, options=RUNAWAY)


def shrinking(draw: Draw) -> Case:
    n, d = sizes(draw)
    return Case(
        metric_law(draw, definite(draw, d, -1.0), definite(draw, d)),
        cloud(draw, n, d),
        horizon=HORIZON,
        options=RUNAWAY,
    )


def undecided(draw: Draw) -> Case:
    n, d = sizes(draw)
    return Case(
        metric_law(draw, definite(draw, d), indefinite(draw, d)), cloud(draw, n, d), horizon=HORIZON, options=RUNAWAY
    )


def either_sign(case: Case) -> Margin:
    low, high = extremes(case.matrices.interaction)
    return strictly(max(low, -high))


THEOREM = Theorem(
    key="regimes.T4",
    title="Polarisation",
    statement=r"If \(A = A^\top \succ 0\) with \(W_h = A V_h\) for every head, \(\operatorname{sym}\sum_h W_h\) is definite of either sign "
    r"and the tokens are not all equal, then they are unbounded.",
    citation=Citation(
        "pham2025dynamical",
        "where its divergence theorem needs tokens that are initially separated",
        "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1",
    ),
    status=Status.HERE,
    hypotheses=(
        *given.PLAIN,
        given.TOKENS,
        given.METRIC,
        given.METRIC_SYMMETRIC,
        given.METRIC_POSITIVE,
        Hypothesis("interaction definite", r"\operatorname{sym}\sum_h W_h \succ 0 \text{ or } \prec 0", either_sign),
        Hypothesis("tokens differ", r"x_l(0) \ne x_k(0) \text{ for some pair}", distinct),
    ),
    fate="divergence",
    rate=r"\text{exponential; for } \operatorname{sym} W \prec 0 \text{ distances grow while the mean may decay}",
    conclude=conclude,
    sample=sample,
    violate={"tokens differ": together, "metric positive": shrinking, "interaction definite": undecided},
    proof="Pair forms never decrease (T0); on a bounded limit set they are constant, which leaves no difference.",
)
