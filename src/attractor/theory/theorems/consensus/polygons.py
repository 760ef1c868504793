r"""Regular polygons on the circle attract where the interaction is repulsive enough and their number of corners is odd.

At :math:`\theta_j = 2\pi j/n` all pulls cancel. With :math:`w_j \propto e^{\beta\cos u_j}`, :math:`u_j = 2\pi j/n`, the linearisation is
the circulant matrix of :math:`c_j = w_j(\cos u_j - \beta\sin^2u_j)` minus its row sums (the derivative of the normalization is multiplied
by :math:`\sum_jw_j\sin u_j = 0`), so its eigenvalues are :math:`\lambda_k = c\sum_jc_j(\cos ku_j - 1)`. :math:`\lambda_0 = 0` belongs to
rotations. For the triangle :math:`\lambda_1 = \lambda_2 < 0` exactly if :math:`\beta < -2/3`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, linearize, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, integrate
from attractor.theory.theorems.consensus import pair
from attractor.theory.timescales import TimeScale

HORIZON = 60.0
PERTURBATION = 1e-3


def predict_eigenvalues(beta: float, n: int, weight: float = 1.0) -> np.ndarray:
    """Return lambda_0 = 0 and lambda_1 to lambda_{n-1}."""
    turns = 2 * np.pi * np.arange(n) / n
    weights = np.exp(beta * np.cos(turns) - (beta * np.cos(turns)).max())
    slopes = weights / weights.sum() * (np.cos(turns) - beta * np.sin(turns) ** 2)
    return weight * (np.cos(np.outer(np.arange(n), turns)) - 1) @ slopes


def predict_abscissa(case: Case) -> float:
    """Return the largest eigenvalue but that of rotations."""
    beta, _ = pair.fit_beta(case)
    return float(predict_eigenvalues(beta, case.tokens.n, to_sphere(case).weight)[1:].max())


def measure_irregularity(points: Tensor) -> float:
    """Return the largest deviation of the angles between neighbours from 2 pi / n, over that."""
    angles = torch.atan2(points[:, 1], points[:, 0]).sort().values
    gaps = torch.cat((angles[1:], angles[:1] + 2 * torch.pi)) - angles
    return float((gaps * len(points) / (2 * torch.pi) - 1).abs().max())


def gather(cases: Sequence[Case]) -> list[tuple[Tensor, Tensor]]:
    """Return the spectrum at the polygon, and runs from starts next to it."""
    runs = integrate([perturb(case) for case in cases])
    return [
        (linearize(case, to_sphere(case).map_points(case.tokens.points)), run.points)
        for case, run in zip(cases, runs, strict=True)
    ]


def perturb(case: Case) -> Case:
    points = case.tokens.points
    push = torch.from_numpy(np.random.default_rng(7).standard_normal(tuple(points.shape)))
    return replace(case, state=Tokens(case.space.retract(points + PERTURBATION * push)))


def conclude(case: Case, evidence: tuple[Tensor, Tensor]) -> tuple[Measurement, ...]:
    spectrum, points = evidence
    beta, _ = pair.fit_beta(case)
    predicted = np.sort(predict_eigenvalues(beta, case.tokens.n, to_sphere(case).weight))
    missed = float(np.abs(np.sort(spectrum.real.numpy()) - predicted).max()) + float(spectrum.imag.abs().max())
    rough = [measure_irregularity(to_sphere(case).map_points(points[row])) for row in (0, -1)]
    return (
        Measurement("the linearisation is as predicted", -missed, 1e-6),
        Measurement("a small push dies out", -rough[1] / rough[0], 0.5, asymptotic=True),
    )


def draw_case(rng: Rng, n: int, beta: float) -> Case:
    space, eye = rng.space(2), torch.eye(2, dtype=torch.float64)
    angles = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n + float(rng.uniform(0, 1))
    points = torch.stack((angles.cos(), angles.sin()), dim=-1)
    return Case(
        rng.sphere_law(space, eye, [beta * eye]), map_to_space(space, points), space, HORIZON, {"save": [0.0, HORIZON]}
    )


def sample(rng: Rng) -> Case:
    corners = (3, 5)[int(rng.integers(2))]
    return draw_case(rng, corners, float(rng.uniform(-4.0, {3: -0.9, 5: -2.6}[corners])))


def _regular_margin(case: Case) -> Margin:
    points = to_sphere(case).map_points(case.initial_tokens.points)
    if points.shape[1] != 2 or len(points) < 3:
        return Margin.boolean(False, f"{len(points)} tokens in {points.shape[1]} dimensions")
    return Margin.zero(measure_irregularity(points))


def _attracting_margin(case: Case) -> Margin:
    return Margin.positive(-predict_abscissa(case) / max(to_sphere(case).weight, 1e-300))


THEOREM = Theorem(
    key="consensus.polygons",
    title="Regular polygons on the circle",
    statement=r"Let \(d = 2\), \(V = c I\) with \(c > 0\) and \(P = \beta W\). The regular polygon of \(n\) tokens is an equilibrium, "
    r"exponentially stable up to rotations if \(\lambda_k = c\sum_j w_j(\cos u_j - \beta\sin^2 u_j)(\cos ku_j - 1) < 0\) for \(0 < k < "
    r"n\), where \(u_j = 2\pi j/n\) and \(w_j \propto e^{\beta\cos u_j}\), and unstable if some \(\lambda_k > 0\). The triangle is "
    r"stable exactly for \(\beta < -2/3\).",
    citation=Citation(
        "polyanskiy2025synchronization",
        "no global synchronization for beta < -2/3, which is the threshold of the triangle",
        "beta is its beta, V = c I with its c = 1",
    ),
    status=Status.HERE,
    hypotheses=(
        *FULL_HEAD,
        Hypothesis("regular polygon", r"\theta_j = 2\pi j/n", _regular_margin, structural=True),
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        Hypothesis("the polygon attracts", r"\lambda_k < 0", _attracting_margin),
    ),
    fate="equilibrium",
    time_scale=lambda case: TimeScale(
        rate=f"small deviations of the angles fall like e^({predict_abscissa(case):.4g} t)"
    ),
    rate=r"\max_{0<k<n}\lambda_k",
    conclude=conclude,
    sample=sample,
    violate={"the polygon attracts": lambda rng: draw_case(rng, 3, float(rng.uniform(-0.5, 2.0)))},
    gather=gather,
    proof="The linearisation at a regular polygon is circulant.",
)
