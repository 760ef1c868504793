r"""Global clustering: with V = c I and P = beta I almost every start reaches consensus on spheres of dimension two or more.

The flow is the gradient flow of E (T1), whose critical points other than consensus are strict saddles for :math:`d \ge
3` [geshkovski2023mathematical] [criscitiello2024synchronization], so they attract a null set only. On the circle this
needs small :math:`|\beta|`. The time is exponential in :math:`\beta`.
"""

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import geometric_times, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, FULL_HEAD, IDENTITY_VALUES, max_distance, to_sphere
from attractor.theory.starts import GENERIC_POSITION, compute_logits, measure_rest
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair
from attractor.theory.timescales import NEAR, TimeScale, estimate_gathering

HORIZON = 600.0
GATHERED = 512  # tokens whose gathering is estimated
BALANCED = 0.1  # a start where a smaller share of the pulls is left is near an equilibrium
OPTIONS = {"save": geometric_times(HORIZON)}


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    apart = max_distance(to_sphere(case).map_points(run.points[select_valid_rows(run)]))
    return (Measurement("all tokens agree in the end", -float(apart[-1]), 1e-3, asymptotic=True),)


def _spatial_margin(case: Case) -> Margin:
    """The tokens span more than a plane: those of a plane stay in it, as on a circle."""
    points = to_sphere(case).map_points(case.initial_tokens.points)
    if min(points.shape) < 3:
        return Margin.boolean(True, f"{len(points)} tokens in {points.shape[1]} dimensions")
    return Margin.nonzero(measure_thickness(points), 1e-9)


def measure_thickness(points: torch.Tensor) -> float:
    """Return the third singular value of the points over the first: zero for points of one plane through the origin."""
    values = torch.linalg.svdvals(points.double())
    return float(values[2] / values[0]) if len(values) > 2 else 0.0


def sample(rng: Rng) -> Case:
    d = int(rng.integers(3, 5))
    space, eye = rng.space(d), torch.eye(d, dtype=torch.float64)
    law = rng.sphere_law(space, eye, [float(rng.uniform(0.0, 2.5)) * eye])
    return Case(law, map_to_space(space, rng.unit_points(8, d)), space, HORIZON, OPTIONS)


def sample_circle(rng: Rng) -> Case:
    """Regular polygons on the circle under a repulsive interaction, where they attract."""
    eye = torch.eye(2, dtype=torch.float64)
    turns = 2 * torch.pi * torch.arange(5, dtype=torch.float64) / 5 + torch.from_numpy(0.1 * rng.standard_normal(5))
    points = torch.stack((turns.cos(), turns.sin()), dim=-1)
    space = rng.space(2, 0.0)
    return Case(rng.sphere_law(space, eye, [0.0 * eye]), map_to_space(space, points), space, HORIZON, OPTIONS)


def sample_repulsive(rng: Rng) -> Case:
    case = sample(rng)
    eye = torch.eye(case.attention.dim, dtype=torch.float64)
    return Case(rng.sphere_law(case.space, eye, [-3.0 * eye]), case.state, case.space, HORIZON, OPTIONS)


def time_scale(case: Case) -> TimeScale:
    """Estimate the time from the distances of the tokens, unless the pulls of the others nearly cancel."""
    found, points = to_sphere(case), to_sphere(case).map_points(case.initial_tokens.points.double())
    rate = f"near consensus distances fall like e^(-{found.weight:.4g} t)"
    if not 1 < len(points) <= GATHERED or float(max_distance(points)) <= NEAR:
        return TimeScale(rate=rate)
    logits = compute_logits(case, points)
    share = 1.0 if logits is None else measure_rest(points, logits)
    if share < BALANCED:
        words = f"no time is known, because the start is near an equilibrium: all but {share:.1g} of every pull cancels"
        return TimeScale(rate=f"{words}; {rate}")
    log_time = estimate_gathering(points, case.tokens.weights, pair.fit_beta(case)[0], found.weight)
    event = f"tokens that pass no equilibrium that repels them are within {NEAR:g}"
    return TimeScale(event, log_time, "order of magnitude", rate)


THEOREM = Theorem(
    key="consensus.clustering",
    title="Global clustering",
    statement=r"If \(d \ge 3\), \(V = c I\) with \(c > 0\), \(P = \beta W\) with \(\beta \ge 0\) and attention is full, then the "
    r"tokens tend to one point from almost every start.",
    citation=Citation(
        "criscitiello2024synchronization",
        "d >= 3 and an increasing convex function of inner products; with the gradient structure of T1 for softmax attention",
        "phi(s) = e^{beta s}; on the ellipsoid inner products are those of W",
    ),
    status=Status.PAPER,
    hypotheses=(
        *FULL_HEAD,
        Hypothesis(
            "dimension", r"d \ge 3", lambda case: Margin.boolean(case.tokens.dim >= 3, f"d = {case.tokens.dim}")
        ),
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        Hypothesis("attractive interaction", r"\beta \ge 0", lambda case: Margin.nonnegative(pair.fit_beta(case)[0])),
        GENERIC_POSITION,
        Hypothesis("more than a plane", r"\operatorname{rank}(x_1, \dots, x_n) \ge \min(n, 3)", _spatial_margin),
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"\text{time } e^{O(\beta)}, \text{ then } e^{-ct}",
    conclude=conclude,
    sample=sample,
    violate={"dimension": sample_circle, "attractive interaction": sample_repulsive},
    proof="Critical points of E other than consensus are strict saddles; the centre-stable manifold theorem.",
)
