r"""Discrete layers with a symmetric value under a causal mask: convergence and rate, which need the step to be small
enough.

Token 1 is the power iteration of :math:`I + hU`; token i with the earlier ones at :math:`v_1` has :math:`c_i^+ \propto
(1 + ha\lambda_1)c_i + h(1-a)\lambda_1 \ge (1+h\lambda_1)c_i` against :math:`|(1 + ha\lambda_k)|` beside it, and
:math:`|1 + ha\lambda_k| \le \max(1, |1 + h\lambda_k|) < 1 + h\lambda_1`. Near :math:`v_1` the diagonal of the
linearisation is :math:`(1 + h\lambda_k/i)/(1 + h\lambda_1)`. With :math:`\lambda_{\min} = -9, h = 1` tokens leave for
the wrong axis although the flow reaches :math:`v_1`.
"""

import math
from collections.abc import Sequence

import torch

from attractor.solvers import Trajectory
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import fit_decay_rate, linearize, max_distance, to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import causal_symmetric, common_value
from attractor.theory.theorems.consensus.gradient_layers import integrate_layers, layer_options
from attractor.theory.theorems.consensus.layer_rates import step_size
from attractor.theory.timescales import TimeScale

LAYERS = {0.5: 200, 1.0: 120}


def predict_factor(case: Case) -> float:
    """max |1 + h lambda_k / i| / (1 + h lambda_1) over k >= 2 and tokens i."""
    values, h = causal_symmetric.value_eigenvalues(case), step_size(case)
    places = torch.arange(1, case.tokens.n + 1, dtype=torch.float64)
    return float((1 + h * values[1:, None] / places).abs().max() / (1 + h * values[0]))


def gather(cases: Sequence[Case]) -> list[tuple[Trajectory, float]]:
    """Runs, and the spectral radius of a layer where all tokens are at the eigenvector."""
    return [(run, spectral_radius(case)) for case, run in zip(cases, integrate_layers(cases), strict=True)]


def spectral_radius(case: Case) -> float:
    """Return the spectral radius of one layer where all tokens are at the eigenvector."""
    pole = common_value.find_dominant(case).vector
    return float(linearize(case, pole.expand(case.tokens.n, -1), step_size(case)).abs().max())


def conclude(case: Case, evidence: tuple[Trajectory, float]) -> tuple[Measurement, ...]:
    run, largest = evidence
    points, pole = to_sphere(case).map_points(run.points), common_value.find_dominant(case).vector
    distance = torch.minimum(max_distance(points, pole), max_distance(points, -pole))
    rate = fit_decay_rate(run.times, distance, 1e-11, 1e-5)
    return (
        Measurement(
            "no token leaves the hemisphere", float(common_value.signed_heights(case, run.points).amin()), 1e-12
        ),
        Measurement("all tokens reach the eigenvector", -float(distance[-1]), 1e-3, asymptotic=True),
        Measurement("the linearisation has the factor", -abs(largest / predict_factor(case) - 1), 1e-8),
        Measurement(
            "the approach is as fast", rate * step_size(case) / math.log(predict_factor(case)) - 1, 0.1, asymptotic=True
        ),
    )


def draw_case(rng: Rng, low: float, high: float) -> Case:
    n, d = rng.sizes(causal_symmetric.SIZES)
    space, basis = rng.space(d), rng.orthogonal(d)
    value = basis @ torch.diag(torch.tensor([1.0, *rng.uniform(low, high, d - 1)], dtype=torch.float64)) @ basis.mT
    step = list(LAYERS)[int(rng.integers(len(LAYERS)))]
    law = rng.sphere_heads(space, value, 0.5, mask="causal")
    state = map_to_space(space, rng.hemisphere(n, d, basis[:, 0], 0.15))
    return Case(law, state, space, LAYERS[step] * step, layer_options(step, LAYERS[step]))


def _small_step_margin(case: Case) -> Margin:
    values, h = causal_symmetric.value_eigenvalues(case), step_size(case)
    return Margin.positive(float(1 + h * values[0]) - max((1 + h * values[1:]).abs().tolist(), default=0.0))


def time_scale(case: Case) -> TimeScale | None:
    if case.tokens.dim == 1:
        return None
    return TimeScale(rate=f"near the eigenvector each layer multiplies distances by {predict_factor(case):.4g}")


THEOREM = Theorem(
    key="consensus.T4-layers",
    title="Causal, symmetric value, layer by layer",
    statement=r"Under the hypotheses of T4, discrete layers \(x \mapsto N(x + h\,b(x))\) with \(|1 + h\lambda_k| < 1 + h\lambda_1\) "
    r"for all \(k \ge 2\) bring all tokens to \(\pm v_1\), at the factor \(\max_{k\ge2,\,i}|1 + h\lambda_k/i|/(1 + h\lambda_1)\) "
    r"a layer, whatever \(P\).",
    citation=causal_symmetric.CITATION,
    status=Status.HERE,
    hypotheses=(
        *causal_symmetric.THEOREM.hypotheses,
        Hypothesis("small step", r"|1 + h\lambda_k| < 1 + h\lambda_1", _small_step_margin),
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i \mp v_1| \sim \Big(\max_{k\ge2,\,i}\frac{|1 + h\lambda_k/i|}{1 + h\lambda_1}\Big)^k",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, -1.2, 0.4),
    violate={"small step": lambda rng: draw_case(rng, -20.0, -9.0)},
    gather=gather,
    proof="Power iteration for token 1, then induction: the height grows by 1 + h lambda_1 at least, the rest by less.",
)
