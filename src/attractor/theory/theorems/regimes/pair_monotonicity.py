r"""T0: the metric form of every difference of tokens never decreases.

:math:`\tfrac12\dot q = \delta^\top(\nabla\varphi(x_l) - \nabla\varphi(x_k)) \ge 0`, because one convex function
:math:`\varphi(x) = \sum_h\log\sum_i m_i e^{x^\top W_h x_i + b_i}` drives all tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory import hypotheses as given
from attractor.theory.checking import RUNAWAY, alive, smallest_increase
from attractor.theory.sampling import Draw, cloud, definite, indefinite, metric_law, shared_metric_law, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.weights import extremes


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[alive(run)], case.matrices.metric
    differences = points.unsqueeze(-2) - points.unsqueeze(-3)  # (S, n, n, d)
    forms = ((differences @ metric) * differences).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    return (Measurement("pair forms never decrease", smallest_increase(forms, size[:, None, None]), 1e-8),)


def fate(case: Case) -> str:
    low, high = extremes(case.matrices.metric)
    return "separation" if low > 0 else "contraction" if high < 0 else "monotone"


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    metric = (definite(draw, d), definite(draw, d, -1.0), indefinite(draw, d))[int(draw.integers(3))]
    state = cloud(draw, n, d, 0.7)
    if draw.random() < 0.3:
        return Case(shared_metric_law(draw, metric, 2), state, horizon=2.0, options=RUNAWAY)
    # any interaction at all, and any bias of the keys
    interaction = torch.from_numpy(0.7 * draw.standard_normal((d, d)))
    law = metric_law(draw, metric, interaction)
    return Case(replace(law, query_bias=torch.from_numpy(draw.standard_normal(d))), state, horizon=2.0, options=RUNAWAY)


def lopsided(draw: Draw) -> Case:
    n, d = sizes(draw)
    metric = definite(draw, d, -1.0) + skew(draw, d, 2.0)
    interaction = definite(draw, d) + skew(draw, d, 2.0)
    return Case(metric_law(draw, metric, interaction), cloud(draw, n, d), horizon=2.0, options=RUNAWAY)


def masked(draw: Draw) -> Case:
    n, d = sizes(draw)
    law = metric_law(draw, definite(draw, d, -1.0), definite(draw, d), mask="causal")
    return Case(law, cloud(draw, n, d), horizon=2.0, options=RUNAWAY)


def turned(draw: Draw) -> Case:
    law = metric_law(draw, definite(draw, 4, -1.0), definite(draw, 4), positions=Rotary(10.0))
    return Case(law, cloud(draw, 5, 4), horizon=2.0, options=RUNAWAY)


THEOREM = Theorem(
    key="regimes.T0",
    title="Pair monotonicity",
    statement=r"If \(A = A^\top\) with \(W_h = A V_h\) for every head, then for every pair of tokens "
    r"\(t \mapsto (x_l - x_k)^\top A\,(x_l - x_k)\) never decreases, whatever the inertia of \(A\), the interaction and the biases.",
    citation=Citation(
        "pham2025dynamical",
        "the mechanism behind both of its theorems",
        "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1",
    ),
    status=Status.HERE,
    hypotheses=(
        given.SOFTMAX,
        given.FLAT,
        given.TOKENS,
        given.FULL,
        given.PLACELESS,
        given.METRIC,
        given.METRIC_SYMMETRIC,
    ),
    fate=fate,
    conclude=conclude,
    sample=sample,
    violate={"metric symmetric": lopsided, "full attention": masked, "no positions": turned},
    proof="A x_l' is the gradient of one convex function at x_l, and gradients of convex functions are monotone.",
)
