r"""T4: under a causal mask a symmetric value with a simple positive top eigenvalue attracts all tokens of a hemisphere to
its eigenvector.

:math:`\dot c_i = \lambda_1\sum_ja_{ij}c_j - (x_i^\top U\tilde b_i)c_i` with :math:`c_i = \langle v_1, x_i\rangle`.
Where some :math:`c_i = 0` and the others are not negative, :math:`\dot c_i \ge 0` exactly because :math:`\lambda_1 \ge
0`: without that the hemisphere leaks. Token 1 follows Oja's flow to :math:`v_1`; once the earlier tokens are there,
:math:`\dot c_i = (1-a_{ii})\lambda_1(1-c_i^2) + a_{ii}c_i(\lambda_1 - x_i^\top Ux_i) + o(1)`, both terms not negative
and the first positive for :math:`\lambda_1 > 0`. The linearisation at :math:`v_1` is triangular with blocks
:math:`U_\perp/i - \lambda_1`.
"""

from collections.abc import Sequence

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import SOFTMAX, TOKENS
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import (
    CAUSAL_IN_ORDER,
    COMMON_VALUE,
    EQUAL_MASSES,
    SAME_SIGN,
    SPHERE_SETTING,
    VALUE_SYMMETRIC,
    fit_decay_rate,
    linearize,
    max_distance,
    to_sphere,
)
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, integrate
from attractor.theory.theorems.consensus import common_value
from attractor.theory.timescales import NEAR, TimeScale, fall_exponentially

HORIZON = 40.0
SIZES = ((3, 3), (4, 3), (4, 4))
CITATION = Citation(
    "abella2024asymptotic",
    "the causal theorem for symmetric U, stated there without the sign of the top eigenvalue",
    "P = scale Q'K is its P, V is its U; U = W^{1/2} V W^{-1/2} is the value on the unit sphere",
)


def value_eigenvalues(case: Case) -> torch.Tensor:
    """Eigenvalues of the total value, largest first."""
    value = to_sphere(case).total
    return torch.linalg.eigvalsh((value + value.mT) / 2).flip(0)


def top_eigenvalues(case: Case) -> tuple[float, float]:
    """lambda_1 and lambda_2; the latter is minus infinity in one dimension."""
    values = [*value_eigenvalues(case).tolist(), float("-inf")]
    return values[0], values[1]


def predict_rate(case: Case) -> float:
    """lambda_1 - max_{k >= 2, i <= n} lambda_k / i."""
    values, places = value_eigenvalues(case), torch.arange(1, case.tokens.n + 1, dtype=torch.float64)
    return float(values[0] - (values[1:, None] / places).max())


def gather(cases: Sequence[Case]) -> list[tuple[Trajectory, float]]:
    """Runs, and the largest real part of the linearisation where all tokens are at the eigenvector."""
    return [
        (run, float(linearize(case, common_value.find_dominant(case).vector.expand(case.tokens.n, -1)).real.max()))
        for case, run in zip(cases, integrate(cases), strict=True)
    ]


def conclude(case: Case, evidence: tuple[Trajectory, float]) -> tuple[Measurement, ...]:
    run, slowest = evidence
    kept = select_valid_rows(run)
    points, times = to_sphere(case).map_points(run.points[kept]), run.times[kept]
    lowest = common_value.signed_heights(case, run.points[kept]).amin()
    pole = common_value.find_dominant(case).vector
    distance = torch.minimum(max_distance(points, pole), max_distance(points, -pole))
    rate = fit_decay_rate(times, distance, 1e-8, 1e-4)
    return (
        Measurement("no token leaves the hemisphere", float(lowest), 1e-12),
        Measurement("all tokens reach the eigenvector", -float(distance[-1]), 1e-3, asymptotic=True),
        Measurement("the linearisation has the exponent", -abs(slowest / predict_rate(case) + 1), 1e-8),
        # modes that are close in rate, or excited a little, make a run faster at first; none is slower
        Measurement("the approach is as fast", -rate / predict_rate(case) - 1, 0.1, asymptotic=True),
    )


def draw_case(rng: Rng, values: tuple[float, float] | None) -> Case:
    """Cases whose other eigenvalues lie between the bounds, below a top eigenvalue of 1; None: all negative."""
    n, d = rng.sizes(SIZES)
    space, basis = rng.space(d), rng.orthogonal(d)
    if values is None:
        chosen = [-1.0, *rng.uniform(-3.0, -1.4, d - 1)]
    else:
        chosen = [1.0, *rng.uniform(*values, d - 1)]
    value = basis @ torch.diag(torch.tensor(chosen, dtype=torch.float64)) @ basis.mT
    law = rng.sphere_heads(space, value, 0.5, mask="causal")
    return Case(law, map_to_space(space, rng.hemisphere(n, d, basis[:, 0], 0.15)), space, HORIZON)


def sample_both_sides(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    space, basis = rng.space(d, 0.0), rng.orthogonal(d)
    value = basis @ torch.diag(torch.tensor([1.0, *rng.uniform(-1.0, 0.5, d - 1)], dtype=torch.float64)) @ basis.mT
    points = rng.hemisphere(n, d, basis[:, 0], 0.15)
    points[1::2] *= -1.0
    return Case(rng.sphere_heads(space, value, 1.0, mask="causal"), map_to_space(space, points), space, HORIZON)


def sample_unmasked(rng: Rng) -> Case:
    """Full attention with a strong negative eigenvalue."""
    basis = rng.orthogonal(3)
    value = basis @ torch.diag(torch.tensor([1.0, -5.0, -5.0], dtype=torch.float64)) @ basis.mT
    space = rng.space(3, 0.0)
    return Case(
        rng.sphere_heads(space, value, 1.5), map_to_space(space, rng.hemisphere(5, 3, basis[:, 0])), space, HORIZON
    )


def time_scale(case: Case) -> TimeScale | None:
    if case.tokens.dim == 1:  # points of one dimension do not move
        return None
    heights = common_value.signed_heights(case, case.initial_tokens.points)
    return fall_exponentially(
        "distances from the eigenvector", predict_rate(case), float((1 / heights.min()).abs()) / NEAR
    )


def _simple_margin(case: Case) -> Margin:
    values = value_eigenvalues(case)
    if len(values) == 1:
        return Margin.boolean(True, "one dimension, one eigenvalue")
    return Margin.positive(float((values[0] - values[1]) / values.abs().max().clamp_min(1e-300)))


SIMPLE = Hypothesis("top eigenvalue simple", r"\lambda_1 > \lambda_2", _simple_margin)
THEOREM = Theorem(
    key="consensus.T4",
    title="Causal, symmetric value",
    statement=r"If the mask is causal, \(V_h = c_h V\) with \(W V\) symmetric, the top eigenvalue \(\lambda_1\) of \(U = \sum_h "
    r"V_h\) is simple and \(\lambda_1 > 0\), and all tokens lie on one side of \(v_1^\perp\), then no token leaves that side and "
    r"all tend to \(\pm v_1\), whatever \(P_h\). Without \(\lambda_1 > 0\) this is false.",
    citation=CITATION,
    status=Status.HERE,
    hypotheses=(
        TOKENS,
        *SPHERE_SETTING,
        CAUSAL_IN_ORDER,
        EQUAL_MASSES,
        SOFTMAX,
        COMMON_VALUE,
        VALUE_SYMMETRIC,
        SAME_SIGN,
        SIMPLE,
        common_value.POSITIVE,
        common_value.ONE_SIDE,
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i \mp v_1| \sim e^{-(\lambda_1 - \max_{k\ge2,\,i\le n}\lambda_k/i)\,t}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, (-1.5, 0.5)),
    violate={
        "top eigenvalue positive": lambda rng: draw_case(rng, None),
        "one side": sample_both_sides,
        "causal mask": sample_unmasked,
    },
    gather=gather,
    proof="The field points inward on the edge of the hemisphere because lambda_1 >= 0; induction over tokens.",
)
