r"""T2: the weights have a finite variance exactly while the largest singular value of the tilt is below one half.

:math:`\mathbb{E}\,e^{2y^\top Ax} = \mathbb{E}\,e^{2|\Sigma^{1/2}Ax|^2} = \det(I - 4a^\top a)^{-1/2}` with :math:`a =
\Sigma^{1/2}A\Sigma^{1/2}` and x, y independent, finite iff :math:`\|a\| < \tfrac12`: the condition for the rate
:math:`n^{-1/2}` of unnormalised sums.
"""

from dataclasses import replace

import numpy as np
import torch

from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import SOFTMAX_GAUSSIAN, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

NODES = 40


def tilt_matrix(case: Case) -> torch.Tensor:
    """a = L'A L with L L' = Sigma."""
    factor = case.gaussian.factor
    return factor.mT @ case.matrices.transposed @ factor


def second_moment(case: Case) -> float:
    """E e^{2 y'Ax} by quadrature over x and y, both of dimension two."""
    line, weights = np.polynomial.hermite_e.hermegauss(NODES)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2)
    mass = np.outer(weights, weights).reshape(-1)
    return float(mass @ np.exp(2.0 * grid @ tilt_matrix(case).numpy() @ grid.T) @ mass)


def conclude(case: Case, measured: float) -> tuple[Measurement, ...]:
    a = tilt_matrix(case)
    inner = torch.linalg.eigvalsh(torch.eye(2, dtype=torch.float64) - 4 * a.mT @ a)
    exact = float(inner.prod().clamp_min(1e-300) ** -0.5) if bool((inner > 0).all()) else float("inf")
    return (Measurement("the second moment is the determinant", -abs(measured / exact - 1.0), 1e-6),)


def draw_case(rng: Rng, low: float, high: float) -> Case:
    start = rng.gaussian(2)
    top = float(rng.uniform(low, high))
    a = rng.orthogonal(2) @ torch.diag(torch.tensor([top, top * rng.uniform(0, 1)])).double() @ rng.orthogonal(2)
    inverse = torch.linalg.inv(start.factor)
    return Case(rng.softmax_law(inverse.mT @ a @ inverse, torch.eye(2, dtype=torch.float64)), start)


def _light_margin(case: Case) -> Margin:
    return Margin.positive(0.5 - float(torch.linalg.matrix_norm(tilt_matrix(case), 2)))


def _plane_margin(case: Case) -> Margin:
    return Margin.boolean(case.gaussian.dim == 2, f"d = {case.gaussian.dim}; the check is a quadrature in the plane")


THEOREM = Theorem(
    key="meanfield.T2",
    title="Light weights",
    statement=r"For independent \(x, y \sim N(0, \Sigma)\), \(\mathbb{E}\,e^{2y^\top Ax} = \det(I - 4a^\top a)^{-1/2}\) with \(a = "
    r"\Sigma^{1/2}A\Sigma^{1/2}\), finite exactly if \(\|a\| < \tfrac12\).",
    citation=cite("diagnostic for the rate of the mean-field limit"),
    status=Status.HERE,
    hypotheses=(
        *SOFTMAX_GAUSSIAN,
        Hypothesis("plane", "d = 2", _plane_margin, structural=True),
        Hypothesis("light tilt", r"\|a\| < \tfrac12", _light_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, 0.05, 0.3),
    violate={"light tilt": lambda rng: draw_case(rng, 0.55, 0.7)},
    gather=gather_each(second_moment),
    break_case=lambda case: replace(case, law=replace(case.attention, scale=0.5)),
    proof="Two Gaussian integrals.",
    time_independent=True,
)
