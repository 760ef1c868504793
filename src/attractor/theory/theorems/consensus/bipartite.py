r"""T4, the bipartite state under a causal mask: two tokens stay at opposite poles where attention is sharp enough.

At :math:`x_1 = -v_1, x_2 = v_1` token 2 gives itself the weight :math:`\sigma(2p)`, :math:`p = v_1^\top Pv_1`. A
tangent perturbation changes weights only to multiples of :math:`v_1`, which the projection removes, so
:math:`\dot\varepsilon_1 = (U_\perp - \lambda_1)\varepsilon_1` and :math:`\dot\varepsilon_2 = (\sigma U_\perp -
\lambda_1(2\sigma - 1))\varepsilon_2 + (1-\sigma)U_\perp\varepsilon_1`: stable exactly if :math:`\sigma(2p) >
\lambda_1/(2\lambda_1 - \lambda_2)`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import CAUSAL_HEAD, VALUE_SYMMETRIC, linearize, to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem, integrate
from attractor.theory.theorems.consensus import causal_symmetric, common_value
from attractor.theory.timescales import TimeScale

HORIZON = 80.0
PERTURBATION = 1e-4


def pole_heights(case: Case) -> Tensor:
    """Heights of the tokens over the hyperplane of v_1."""
    return to_sphere(case).map_points(case.initial_tokens.points) @ common_value.find_dominant(case).vector


def sharpness(case: Case) -> float:
    """p = v_1' P v_1 of one head."""
    vector = common_value.find_dominant(case).vector
    return float(vector @ to_sphere(case).interactions[0] @ vector)


def predict_abscissa(case: Case) -> float:
    """Largest real part of the linearisation: (U_perp - lambda_1) and (s U_perp - lambda_1 (2 s - 1))."""
    values, own = (
        causal_symmetric.value_eigenvalues(case),
        torch.sigmoid(torch.tensor(2 * sharpness(case), dtype=torch.float64)),
    )
    return float(max(values[1] - values[0], own * values[1] - values[0] * (2 * own - 1)))


def abscissa(case: Case) -> float:
    """Return the largest real part of the linearised velocity in tangent directions."""
    return float(linearize(case, to_sphere(case).map_points(case.tokens.points)).real.max())


def perturb(case: Case, size: float = PERTURBATION) -> Case:
    """Return the case with its start perturbed in a fixed random direction."""
    points = case.tokens.points
    push = torch.from_numpy(np.random.default_rng(7).standard_normal(tuple(points.shape)))
    return replace(case, state=Tokens(case.space.retract(points + size * push)))


def gather(cases: Sequence[Case]) -> list[tuple[float, Tensor]]:
    runs = integrate([perturb(case) for case in cases])
    return [(abscissa(case), run.points) for case, run in zip(cases, runs, strict=True)]


def conclude(case: Case, evidence: tuple[float, Tensor]) -> tuple[Measurement, ...]:
    measured, points = evidence
    return compare_linearisation(case, measured, predict_abscissa(case), points)


def compare_linearisation(case: Case, measured: float, promised: float, points: Tensor) -> tuple[Measurement, ...]:
    size = float(causal_symmetric.value_eigenvalues(case).abs().max())
    away = (points - case.tokens.points).norm(dim=-1).amax(-1)
    return (
        Measurement("the linearisation is as predicted", -abs(measured - promised) / size, 1e-8),
        Measurement("a small push dies out", -float(away[-1] / away[0]), 0.5, asymptotic=True),
    )


def draw_case(rng: Rng, sign: float, gap: tuple[float, float] = (0.15, 1.0)) -> Case:
    """Draw a case with p above (sign 1) or below its threshold, by a distance from ``gap``."""
    space, basis = rng.space(3), rng.orthogonal(3)
    second = float(rng.uniform(-0.5, 0.6))
    value = basis @ torch.diag(torch.tensor([1.0, second, -1.0], dtype=torch.float64)) @ basis.mT
    level = 1.0 / (2.0 - second)
    p = 0.5 * float(torch.logit(torch.tensor(level, dtype=torch.float64))) + sign * float(rng.uniform(*gap))
    law = rng.sphere_law(space, value, [draw_interaction(rng, basis[:, 0], p)], mask="causal")
    points = torch.stack((-basis[:, 0], basis[:, 0]))
    return Case(law, map_to_space(space, points), space, HORIZON, {"save": [0.0, HORIZON]})


def draw_interaction(rng: Rng, vector: Tensor, p: float) -> Tensor:
    """Draw an interaction without symmetry with v' P v = p."""
    matrix = rng.matrix(len(vector), 0.5)
    return matrix + (p - float(vector @ matrix @ vector)) * vector[:, None] * vector


def _opposite_margin(case: Case) -> Margin:
    heights = pole_heights(case)
    if case.tokens.n != 2:
        return Margin.boolean(False, f"{case.tokens.n} tokens, the statement is about two")
    return Margin.zero(float((heights.abs() - 1).abs().max() + (heights.sum()).abs()))


def _sharp_margin(case: Case) -> Margin:
    first, second = causal_symmetric.top_eigenvalues(case)
    own = torch.sigmoid(torch.tensor(2 * sharpness(case), dtype=torch.float64))
    return Margin.positive(float(own - first / (2 * first - second)))


def time_scale(case: Case) -> TimeScale | None:
    return (
        TimeScale(rate=f"small deviations fall like e^({predict_abscissa(case):.4g} t)")
        if case.tokens.dim > 1
        else None
    )


THEOREM = Theorem(
    key="consensus.T4-bipartite-causal",
    title="Opposite poles under a causal mask",
    statement=r"Let \(U = U^\top\) with \(\lambda_1 > 0\) simple and \(p = v_1^\top P v_1\). Under a causal mask the state \(x_1 = "
    r"-v_1,\ x_2 = v_1\) is exponentially stable if \(\sigma(2p) > \lambda_1/(2\lambda_1 - \lambda_2)\), and unstable if \(<\).",
    citation=causal_symmetric.CITATION,
    status=Status.HERE,
    hypotheses=(
        *CAUSAL_HEAD,
        VALUE_SYMMETRIC,
        causal_symmetric.SIMPLE,
        common_value.POSITIVE,
        Hypothesis("opposite poles", r"x_1 = -v_1,\ x_2 = v_1", _opposite_margin, structural=True),
        Hypothesis("sharp attention", r"\sigma(2p) > \lambda_1/(2\lambda_1 - \lambda_2)", _sharp_margin),
    ),
    fate="bipartite",
    time_scale=time_scale,
    rate=r"\max\{\lambda_2 - \lambda_1,\ \sigma\lambda_2 - (2\sigma-1)\lambda_1\}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, 1.0),
    violate={"sharp attention": lambda rng: draw_case(rng, -1.0)},
    gather=gather,
    proof="Weights change by multiples of v_1 only, which the projection removes; the rest is a triangular linearisation.",
)
