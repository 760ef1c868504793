r"""Global clustering on the circle: with V = c I and P = beta I almost every start reaches consensus if beta is not below -0.16.

As on spheres (``consensus.clustering``) the flow climbs E (T1), whose critical points do not depend on the normalization of the weights.
On the circle the energy is a sum of :math:`e^{\beta\cos(\theta_i - \theta_j)}`, and convexity is not enough: for :math:`0 \le \beta \le 1`
the Taylor coefficients of the derivative decrease [criscitiello2024synchronization]; for all :math:`\beta \ge -0.16` a bound of the third
derivative in the mean is enough [polyanskiy2025synchronization]. Tokens of one plane stay in it, so the statement holds for them in any
dimension.
"""

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import geometric_times, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, max_distance, to_sphere
from attractor.theory.starts import GENERIC_POSITION
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import clustering, pair

HORIZON = 600.0
LEAST = -0.16
OPTIONS = {"save": geometric_times(HORIZON)}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    apart = max_distance(to_sphere(case).map_points(run.points[select_valid_rows(run)]))
    return (Measurement("all tokens agree in the end", -float(apart[-1]), 1e-3, asymptotic=True),)


def draw_case(rng: Rng, beta: float, points: torch.Tensor) -> Case:
    space, eye = rng.space(2), torch.eye(2, dtype=torch.float64)
    law = rng.sphere_law(space, eye, [beta * eye])
    return Case(law, map_to_space(space, points), space, HORIZON, OPTIONS)


def sample(rng: Rng) -> Case:
    """Small and larger beta, of both signs."""
    return draw_case(
        rng,
        float(rng.uniform(LEAST + 0.01, 1.0) if rng.random() < 0.5 else rng.uniform(1.0, 2.5)),
        rng.unit_points(6, 2),
    )


def sample_triangle(rng: Rng) -> Case:
    """Draw tokens near a regular triangle under a repulsive interaction, where it attracts."""
    angles = 2 * torch.pi * torch.arange(3, dtype=torch.float64) / 3 + torch.from_numpy(0.2 * rng.standard_normal(3))
    return draw_case(rng, float(rng.uniform(-3.0, -1.0)), torch.stack((angles.cos(), angles.sin()), dim=-1))


def plane_margin(case: Case) -> Margin:
    points = to_sphere(case).map_points(case.initial_tokens.points)
    if min(points.shape) < 3:
        return Margin.boolean(True, f"{len(points)} tokens in {points.shape[1]} dimensions")
    return Margin.zero(clustering.measure_thickness(points), 1e-12, 1e-9)


PLANE = Hypothesis("one plane", r"\operatorname{rank}(x_1, \dots, x_n) \le 2", plane_margin, structural=True)
THEOREM = Theorem(
    key="consensus.clustering-circle",
    title="Global clustering on the circle",
    statement=r"If \(d = 2\) or all tokens lie in one plane, \(V = c I\) with \(c > 0\), \(P = \beta W\) with \(\beta \ge -0.16\) and "
    r"attention is full, then the tokens tend to one point from almost every start (of that plane).",
    citation=Citation(
        "polyanskiy2025synchronization",
        "synchronization on the circle for beta >= -0.16; 0 <= beta <= 1 is due to criscitiello2024synchronization",
        "beta is its beta, V = c I with its c = 1; on the ellipse inner products are those of W",
    ),
    status=Status.PAPER,
    hypotheses=(
        *FULL_HEAD,
        PLANE,
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        Hypothesis(
            "hardly repulsive", r"\beta \ge -0.16", lambda case: Margin.nonnegative(pair.fit_beta(case)[0] - LEAST)
        ),
        GENERIC_POSITION,
    ),
    fate="consensus",
    time_scale=clustering.time_scale,
    rate=r"\text{time } e^{O(\beta)}, \text{ then } e^{-ct}",
    conclude=conclude,
    sample=sample,
    violate={"hardly repulsive": sample_triangle},
    proof="Critical points of E other than consensus are strict saddles; the centre-stable manifold theorem.",
)
