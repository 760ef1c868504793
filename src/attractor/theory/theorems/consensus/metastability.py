r"""Metastability: separated tokens stay separated for a time that is exponential in beta.

Proof. While all pairs keep angles of at least :math:`\theta'`, the weight that token i gives to others is at most
:math:`\sum_{j\ne i}m_je^{\beta(\cos\theta'-1)}/m_i \le M e^{-\beta(1-\cos\theta')}`, :math:`M = (1-m)/m` with m the
smallest mass, so it moves at most at that speed times c and an angle falls at most at twice that. Starting from angles
of at least :math:`\theta_0`, none is below :math:`\theta'` before :math:`t = (\theta_0 -
\theta')\,e^{\beta(1-\cos\theta')}/(2cM)`.
"""

import math
from dataclasses import replace

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import FULL, NO_POSITIONS, ONE_HEAD, SOFTMAX, TOKENS, UNBIASED
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, IDENTITY_VALUES, ON_SPHERE, PLAIN_VALUES, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair
from attractor.theory.theorems.consensus.equiangular import pair_cosines
from attractor.theory.timescales import TimeScale

PART = 0.5  # theta' as a part of theta_0


def smallest_angle(case: Case, points: torch.Tensor) -> torch.Tensor:
    """Smallest angle of a pair, (...)."""
    return pair_cosines(to_sphere(case).map_points(points)).clamp(-1.0, 1.0).amax(-1).acos()


def predict_time(case: Case) -> float:
    """Return the time before which no angle is below half of the smallest initial one."""
    return math.exp(min(predict_log_time(case), 700.0))


def predict_log_time(case: Case) -> float:
    """Return the logarithm of that time."""
    start = float(smallest_angle(case, case.initial_tokens.points))
    masses = case.tokens.weights / case.tokens.weights.sum()
    crowd = float((1 - masses.min()) / masses.min())
    barrier = pair.fit_beta(case)[0] * (1 - math.cos(PART * start))
    return barrier + math.log((1 - PART) * start / (2 * to_sphere(case).weight * crowd))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    angles, times = smallest_angle(case, run.points[kept]), run.times[kept]
    early = times <= predict_time(case)
    return (Measurement("no pair comes near in time", float(angles[early].min() - PART * angles[0]), 1e-9),)


def sample(rng: Rng) -> Case:
    """Tokens near the corners of a cross, so that all pairs are well apart."""
    space, eye = rng.space(3), torch.eye(3, dtype=torch.float64)
    points = torch.cat((eye, -eye))[: int(rng.choice([3, 5]))] + 0.1 * rng.unit_points(1, 3)
    points = points / points.norm(dim=-1, keepdim=True)
    beta = float(rng.uniform(4.0, 20.0))
    case = Case(rng.sphere_law(space, eye, [beta * eye]), map_to_space(space, points), space, 1.0)
    return Case(case.law, case.state, space, min(predict_time(case), 50.0))


def sample_repulsive(rng: Rng) -> Case:
    """No barrier: a repulsive score makes the weights of others large."""
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    points = draw_orthogonal_points(rng)
    return Case(rng.sphere_law(space, eye, [-6.0 * eye]), map_to_space(space, points), space, 2.0)


def draw_orthogonal_points(rng: Rng) -> torch.Tensor:
    points = torch.eye(3, dtype=torch.float64) + 0.3 * rng.unit_points(3, 3)
    return points / points.norm(dim=-1, keepdim=True)


def disable_attention(case: Case) -> Case:
    """Set all scores to zero."""
    return replace(case, law=replace(case.attention, scale=0.0))


def _barrier_margin(case: Case) -> Margin:
    if case.tokens.n == 1:
        return Margin.boolean(False, "one token, no pairs")
    return Margin.positive(pair.fit_beta(case)[0] * float(smallest_angle(case, case.initial_tokens.points)))


def time_scale(case: Case) -> TimeScale:
    angle = float(smallest_angle(case, case.initial_tokens.points))
    event = f"no pair of tokens is closer than half of the smallest angle now ({PART * angle:.3g})"
    return TimeScale(event, predict_log_time(case), "not before")


THEOREM = Theorem(
    key="consensus.metastability",
    title="Separated tokens wait exponentially long",
    statement=r"Let \(V = c I,\ P = \beta W\) with \(\beta > 0\) and all pairs at angles of at least \(\theta_0\). "
    r"Then no pair is closer than \(\theta_0/2\) before "
    r"\(t = \frac{\theta_0}{4cM}\,e^{\beta(1-\cos(\theta_0/2))}\), \(M = (1-m)/m\) with \(m\) the smallest mass.",
    citation=Citation(
        "geshkovski2024dynamic",
        "metastability: clusters persist for times exponential in beta; this is an explicit bound for single tokens",
        "beta is its beta; V = c I with its c = 1",
    ),
    status=Status.HERE,
    hypotheses=(
        SOFTMAX,
        TOKENS,
        ON_SPHERE,
        PLAIN_VALUES,
        FULL,
        NO_POSITIONS,
        UNBIASED,
        ONE_HEAD,
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        Hypothesis("separated tokens", r"\beta\,\theta_0 > 0", _barrier_margin),
    ),
    fate="metastable",
    time_scale=time_scale,
    rate=r"t \ge \tfrac{\theta_0}{4cM}e^{\beta(1-\cos(\theta_0/2))}",
    conclude=conclude,
    sample=sample,
    violate={"separated tokens": sample_repulsive},
    break_case=disable_attention,
    proof="While pairs are apart, the weight of all others together is below M exp(-beta (1 - cos theta')).",
)
