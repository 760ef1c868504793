r"""T6: tokens at equal angles stay at equal angles, and their cosine obeys one equation.

With :math:`\langle x_i, x_j\rangle = g` for all pairs, every other token has the weight :math:`w = e^{\beta g}/(e^\beta
+ (n-1)e^{\beta g})` and :math:`\dot g = 2cw\,(1 + (n-2)g - (n-1)g^2) = 2cw(1-g)((n-1)g + 1)`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair
from attractor.theory.timescales import NEAR, TimeScale, log_integral

SIZES = ((2, 3), (3, 3), (3, 4), (4, 4))


def pair_cosines(points: Tensor) -> Tensor:
    """Cosines of all pairs, (..., pairs)."""
    gram = points @ points.mT
    rows, columns = torch.triu_indices(points.shape[-2], points.shape[-2], 1)
    return gram[..., rows, columns]


def solve_cosine(n: int, beta: float, weight: float, start: float, times: np.ndarray) -> np.ndarray:
    """Solve the equation of the cosine with SciPy, at given times."""
    from scipy.integrate import solve_ivp

    def slope(_: float, g: np.ndarray) -> np.ndarray:
        share = 1.0 / (math.exp(beta * (1.0 - float(g[0]))) + n - 1)
        return 2 * weight * share * (1 - g) * ((n - 1) * g + 1)

    return solve_ivp(slope, (0.0, times[-1]), [start], t_eval=times, rtol=1e-11, atol=1e-13, method="DOP853").y[0]


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    found, kept = to_sphere(case), select_valid_rows(run)
    pairs, times = pair_cosines(found.map_points(run.points[kept])), run.times[kept].numpy()
    wanted = solve_cosine(case.tokens.n, pair.fit_beta(case)[0], found.weight, float(pairs[0].mean()), times)
    spread = float((pairs.amax(-1) - pairs.amin(-1)).max())
    return (
        Measurement("angles stay equal", -spread, 1e-7),
        Measurement("the cosine follows its equation", -float((pairs.mean(-1).numpy() - wanted).__abs__().max()), 1e-8),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    space, eye = rng.space(d), torch.eye(d, dtype=torch.float64)
    g = float(rng.uniform(-0.8 / (n - 1), 0.8))
    gram = (1 - g) * torch.eye(n, dtype=torch.float64) + g
    points = torch.linalg.cholesky(gram) @ rng.orthogonal(d)[:n]
    law = rng.sphere_law(space, eye, [float(rng.uniform(-2.0, 3.0)) * eye])
    return Case(law, map_to_space(space, points), space, 5.0)


def sample_unequal_angles(rng: Rng) -> Case:
    space, eye = rng.space(4, 0.0), torch.eye(4, dtype=torch.float64)
    return Case(rng.sphere_law(space, eye, [1.5 * eye]), map_to_space(space, rng.unit_points(4, 4)), space, 5.0)


def _equal_margin(case: Case) -> Margin:
    pairs = pair_cosines(to_sphere(case).map_points(case.initial_tokens.points))
    return Margin.zero(float(pairs.max() - pairs.min()) if pairs.numel() else 1.0)


EQUAL_ANGLES = Hypothesis("equal angles", r"\langle x_i, x_j\rangle_W = g", _equal_margin)


def log_time_to(beta: float, n: int, weight: float, start: float, end: float) -> float:
    """Return the logarithm of the time in which the common angle falls from ``start`` to ``end``."""

    def log_integrand(u: np.ndarray) -> np.ndarray:
        turned = 2 * np.sin(u / 2) ** 2  # 1 - g
        speed = 2 * weight * turned * np.maximum(n - (n - 1) * turned, 1e-300) / np.sin(u)
        return np.logaddexp(beta * turned, math.log(n - 1)) - np.log(speed)

    return log_integral(log_integrand, end, start)


def time_scale(case: Case) -> TimeScale | None:
    found, points = to_sphere(case), to_sphere(case).map_points(case.initial_tokens.points)
    n, cosine = len(points), float(pair_cosines(points).mean().clamp(-1.0, 1.0))
    if (n - 1) * cosine + 1 < 1e-9 or math.acos(cosine) <= NEAR:  # a regular simplex rests
        return None
    log_time = log_time_to(pair.fit_beta(case)[0], n, found.weight, math.acos(cosine), NEAR)
    return TimeScale(f"the common angle reaches {NEAR:g}", log_time, "exact")


THEOREM = Theorem(
    key="consensus.T6-equiangular",
    title="Tokens at equal angles",
    statement=r"If \(V = c I,\ P = \beta W\) and all pairs have the same cosine \(g\), they keep a common one, with "
    r"\(\dot g = \frac{2c\,e^{\beta g}(1-g)((n-1)g+1)}{e^\beta + (n-1)e^{\beta g}}\).",
    citation=pair.CITATION,
    status=Status.HERE,
    hypotheses=(
        *FULL_HEAD,
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        EQUAL_ANGLES,
    ),
    fate="monotone",
    quantity="the common cosine of all pairs of tokens",
    time_scale=time_scale,
    conclude=conclude,
    sample=sample,
    violate={"equal angles": sample_unequal_angles},
    proof="The symmetric group acts; the derivative of one inner product is 2 c w (1 + (n-2) g - (n-1) g^2).",
)
