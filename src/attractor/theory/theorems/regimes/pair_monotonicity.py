r"""T0: the metric form of every difference of tokens never decreases.

:math:`\tfrac12\dot q = \delta^\top(\nabla\varphi(x_l) - \nabla\varphi(x_k)) \ge 0`, because one convex function
:math:`\varphi(x) = \sum_h\log\sum_i m_i e^{x^\top W_h x_i + b_i}` drives all tokens.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory import hypotheses
from attractor.theory.checking import STOP_FAR_AWAY, select_valid_rows, smallest_increase
from attractor.theory.sampling import (
    Rng,
    draw_definite,
    draw_indefinite,
    draw_metric_law,
    draw_shared_metric_law,
    draw_size,
    draw_skew,
    draw_tokens,
)
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.weights import extremes


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[select_valid_rows(run)], case.matrices.metric
    differences = points.unsqueeze(-2) - points.unsqueeze(-3)  # (S, n, n, d)
    forms = ((differences @ metric) * differences).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    return (Measurement("pair forms never decrease", smallest_increase(forms, size[:, None, None]), 1e-8),)


def fate(case: Case) -> str:
    low, high = extremes(case.matrices.metric)
    return "separation" if low > 0 else "contraction" if high < 0 else "monotone"


def sample(rng: Rng) -> Case:
    n, d = draw_size(rng)
    metric = (draw_definite(rng, d), draw_definite(rng, d, -1.0), draw_indefinite(rng, d))[int(rng.integers(3))]
    state = draw_tokens(rng, n, d, 0.7)
    if rng.random() < 0.3:
        return Case(draw_shared_metric_law(rng, metric, 2), state, horizon=2.0, options=STOP_FAR_AWAY)
    # any interaction at all, and any bias of the keys
    interaction = torch.from_numpy(0.7 * rng.standard_normal((d, d)))
    law = draw_metric_law(rng, metric, interaction)
    return Case(
        replace(law, query_bias=torch.from_numpy(rng.standard_normal(d))), state, horizon=2.0, options=STOP_FAR_AWAY
    )


def lopsided(rng: Rng) -> Case:
    n, d = draw_size(rng)
    metric = draw_definite(rng, d, -1.0) + draw_skew(rng, d, 2.0)
    interaction = draw_definite(rng, d) + draw_skew(rng, d, 2.0)
    return Case(draw_metric_law(rng, metric, interaction), draw_tokens(rng, n, d), horizon=2.0, options=STOP_FAR_AWAY)


def masked(rng: Rng) -> Case:
    n, d = draw_size(rng)
    law = draw_metric_law(rng, draw_definite(rng, d, -1.0), draw_definite(rng, d), mask="causal")
    return Case(law, draw_tokens(rng, n, d), horizon=2.0, options=STOP_FAR_AWAY)


def turned(rng: Rng) -> Case:
    law = draw_metric_law(rng, draw_definite(rng, 4, -1.0), draw_definite(rng, 4), positions=Rotary(10.0))
    return Case(law, draw_tokens(rng, 5, 4), horizon=2.0, options=STOP_FAR_AWAY)


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
        hypotheses.SOFTMAX,
        hypotheses.FLAT,
        hypotheses.TOKENS,
        hypotheses.FULL,
        hypotheses.NO_POSITIONS,
        hypotheses.METRIC,
        hypotheses.METRIC_SYMMETRIC,
    ),
    fate=fate,
    conclude=conclude,
    sample=sample,
    violate={"metric symmetric": lopsided, "full attention": masked, "no positions": turned},
    proof="A x_l' is the gradient of one convex function at x_l, and gradients of convex functions are monotone.",
)
