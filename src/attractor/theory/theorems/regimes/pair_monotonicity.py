r"""T0: the metric form of every difference of tokens never decreases.

:math:`\tfrac12\dot q = \delta^\top(\nabla\varphi(x_l) - \nabla\varphi(x_k)) \ge 0`, because one convex function
:math:`\varphi(x) = \sum_h\log\sum_i m_i e^{x^\top W_h x_i + b_i}` drives all tokens.
"""

from dataclasses import replace

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory.checking import STOP_FAR_AWAY, draw_negative, metric_sampler, select_valid_rows, smallest_increase
from attractor.theory.hypotheses import FLAT, FULL, NO_POSITIONS, SOFTMAX, SYMMETRIC_METRIC, TOKENS, cite_regimes
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.weights import extremes


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points, metric = run.points[select_valid_rows(run)], case.matrices.metric
    differences = points.unsqueeze(-2) - points.unsqueeze(-3)  # (S, n, n, d)
    forms = ((differences @ metric) * differences).sum(-1)
    size = torch.linalg.matrix_norm(metric, 2) * points.norm(dim=-1).amax(-1).square()
    return (Measurement("pair forms never decrease", smallest_increase(forms, size[:, None, None]), 1e-8),)


def choose_fate(case: Case) -> str:
    low, high = extremes(case.matrices.metric)
    return "separation" if low > 0 else "contraction" if high < 0 else "monotone"


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    metric = (rng.definite(d), rng.definite(d, -1.0), rng.indefinite(d))[int(rng.integers(3))]
    state = rng.tokens(n, d, 0.7)
    if rng.random() < 0.3:
        return Case(rng.shared_metric_law(metric, 2), state, horizon=2.0, options=STOP_FAR_AWAY)
    # any interaction at all, and any bias of the keys
    interaction = torch.from_numpy(0.7 * rng.standard_normal((d, d)))
    law = rng.metric_law(metric, interaction)
    return Case(
        replace(law, query_bias=torch.from_numpy(rng.standard_normal(d))), state, horizon=2.0, options=STOP_FAR_AWAY
    )


def sample_rotary(rng: Rng) -> Case:
    law = rng.metric_law(rng.definite(4, -1.0), rng.definite(4), positions=Rotary(10.0))
    return Case(law, rng.tokens(5, 4), horizon=2.0, options=STOP_FAR_AWAY)


THEOREM = Theorem(
    key="regimes.T0",
    title="Pair monotonicity",
    statement=r"If \(A = A^\top\) with \(W_h = A V_h\) for every head, then for every pair of tokens "
    r"\(t \mapsto (x_l - x_k)^\top A\,(x_l - x_k)\) never decreases, whatever the inertia of \(A\), the interaction and the biases.",
    citation=cite_regimes("the mechanism behind both of its theorems"),
    status=Status.HERE,
    hypotheses=(SOFTMAX, FLAT, TOKENS, FULL, NO_POSITIONS, *SYMMETRIC_METRIC),
    fate=choose_fate,
    quantity="(x_l - x_k)' A (x_l - x_k) of every pair of tokens",
    conclude=conclude,
    sample=sample,
    violate={
        "metric symmetric": metric_sampler(
            lambda rng, d: rng.definite(d, -1.0) + rng.skew(d, 2.0),
            lambda rng, d: rng.definite(d) + rng.skew(d, 2.0),
            2.0,
        ),
        "full attention": metric_sampler(draw_negative, Rng.definite, 2.0, mask="causal"),
        "no positions": sample_rotary,
    },
    proof="A x_l' is the gradient of one convex function at x_l, and gradients of convex functions are monotone.",
)
