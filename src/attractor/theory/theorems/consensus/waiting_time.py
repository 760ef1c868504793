r"""The first merge: the closest two clusters wait for a time of order :math:`e^{\beta(1-\cos\theta)}`, with explicit bounds.

Proof. Let :math:`\theta` be the angle of the closest two tokens and f the rate at which it falls when they are alone,
:math:`f = \sin\theta\,(w_{12} + w_{21})`. While cosines with others stay below c, all others together have a weight of at most
:math:`\frac{1-m_1-m_2}{\min(m_1,m_2)}e^{-\beta(1-c)}`. They pull either token by at most that, and lower :math:`w_{12}` and
:math:`w_{21}` by at most the same factor, so that :math:`|\dot\theta + f| \le R` with
:math:`R = 4\frac{1-m_1-m_2}{\min(m_1,m_2)}e^{-\beta(1-c)}`. Until the pair has merged it stays within a distance D of its arc and the
others within D of their places, D being the time multiplied by the largest speed :math:`\frac{1-m}{m}e^{-\beta(1-c)}`, m the smallest
mass, and points inside the arc within :math:`D/\cos(\theta/2)`. If all other cosines are below c even for angles smaller by 2D, they
stay so, and the time lies between the integrals of 1/(f + R) and 1/(f - R). Two tokens alone have R = 0: the time is exact, and the
first of them travels the part :math:`\int w_{12}/(w_{12}+w_{21})\,d\theta` of the angle.
"""

import math
from dataclasses import dataclass

import torch

from attractor.solvers import Trajectory, bound_merging_time
from attractor.spaces import angle
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import FULL, NO_POSITIONS, ONE_HEAD, SOFTMAX, TOKENS, UNBIASED
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, IDENTITY_VALUES, ON_SPHERE, PLAIN_VALUES, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair
from attractor.theory.timescales import NEAR, TimeScale, merge_share

ROOM = 0.02  # angle by which others may come closer meanwhile


@dataclass(frozen=True)
class ClosestPair:
    """The two closest tokens, their angle and masses, the other masses, and a bound on all other cosines."""

    first: int
    second: int
    angle: float
    masses: tuple[float, float]
    others: float
    least: float  # smallest mass
    c_next: float


def find_pair(case: Case) -> ClosestPair:
    """Return the closest pair; ``c_next`` holds as long as nothing else moves by more than ROOM."""
    points = to_sphere(case).map_points(case.initial_tokens.points).double()
    masses = (case.tokens.weights / case.tokens.weights.sum()).double()
    cosines = (points @ points.mT).clamp(-1.0, 1.0)
    cosines.fill_diagonal_(-2.0)
    first, second = sorted(divmod(int(cosines.argmax()), len(points)))
    start = float(angle(points[first], points[second]))
    rest = [row for row in range(len(points)) if row not in (first, second)]
    c_next = -1.0
    if rest:
        shares = torch.linspace(0.0, 1.0, 101, dtype=torch.float64)[:, None]
        arc = (torch.sin((1 - shares) * start) * points[first] + torch.sin(shares * start) * points[second]) / math.sin(
            start
        )
        others = points[rest]
        apart = float((others @ arc.mT).amax().clamp(-1.0, 1.0).acos()) - start / 100
        if len(rest) > 1:
            apart = min(apart, float(cosines[rest][:, rest].amax().clamp(-1.0, 1.0).acos()))
        c_next = math.cos(max(apart - 2 * ROOM, 0.0))
    pair_masses = (float(masses[first]), float(masses[second]))
    return ClosestPair(first, second, start, pair_masses, float(masses[rest].sum()), float(masses.min()), c_next)


def find_bounds(case: Case, end: float, found: ClosestPair | None = None) -> tuple[float, float]:
    """Bounds on the logarithm of the time at which the angle is ``end``."""
    found = find_pair(case) if found is None else found
    beta, speed = pair.fit_beta(case)[0], to_sphere(case).weight
    low, high = bound_merging_time(found.angle, end, found.masses, found.others, found.c_next, beta)
    return low - math.log(speed), high - math.log(speed)


def _alone_margin(case: Case) -> Margin:
    """Others move by less than ROOM until the merge, and R is below f."""
    if case.tokens.n < 2:
        return Margin.boolean(False, "one token, no pairs")
    found, beta = find_pair(case), pair.fit_beta(case)[0]
    if not NEAR < found.angle < math.pi * (1 - 1e-9):
        return Margin.boolean(False, f"the closest pair is at an angle of {found.angle:.3g}")
    if found.others == 0.0:
        return Margin.positive(1.0)
    _, high = bound_merging_time(found.angle, NEAR, found.masses, found.others, found.c_next, beta)
    if not math.isfinite(high):
        return Margin.positive(-1.0, detail="others pull as hard as the closest pair")
    log_moved = math.log((1 - found.least) / found.least) - beta * (1 - found.c_next) + high
    log_moved -= math.log(math.cos(found.angle / 2))  # of points inside the arc of the pair
    return Margin.positive(math.log(ROOM) - log_moved)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept, found, sphere = select_valid_rows(run), find_pair(case), to_sphere(case)
    points, times = sphere.map_points(run.points[kept]), run.times[kept]
    angles = angle(points[:, found.first], points[:, found.second])
    slack = []
    for row in range(1, len(times)):
        if float(angles[row]) > 2 * NEAR and float(angles[row]) < found.angle * (1 - 1e-6):
            low, high = find_bounds(case, float(angles[row]), found)
            slack += [math.log(float(times[row])) - low, high - math.log(float(times[row]))]
        elif float(angles[row]) > 2 * NEAR:  # it has not fallen by a visible part
            slack.append(find_bounds(case, found.angle * (1 - 1e-3), found)[1] - math.log(float(times[row])))
    # a run that has no saved state between the start and the merge measures nothing, and does not confirm anything
    measured = [Measurement("the time lies between the integrals", min(slack), 1e-5)] if slack else []
    if case.tokens.n == 2:
        share = merge_share(pair.fit_beta(case)[0], found.angle, found.masses)
        late = [row for row in range(len(times)) if float(angles[row]) < 0.1 * found.angle]
        travelled = [float(angle(points[0, 0], points[row, 0])) / found.angle for row in late[-1:]]
        reach = [float(angles[row]) / found.angle for row in late[-1:]]
        for part, rest in zip(travelled, reach, strict=True):
            measured.append(Measurement("the merge is where the integral says", rest - abs(part - share), 1e-6))
    return tuple(measured)


def sample(rng: Rng) -> Case:
    """Two tokens, or a pair and two tokens far from it."""
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    close, beta = float(rng.uniform(0.5, 0.7)), float(rng.uniform(10.0, 14.0))
    points = torch.tensor(
        [[1.0, 0.0, 0.0], [math.cos(close), math.sin(close), 0.0], [-0.6, -0.8, 0.0], [-0.3, 0.1, 0.95]]
    )
    points = points.double() / points.double().norm(dim=-1, keepdim=True)
    points = points[: int(rng.choice([2, 4]))] @ rng.orthogonal(3)
    case = Case(rng.sphere_law(space, eye, [beta * eye]), map_to_space(space, points), space, 1.0)
    end = min(2.0 * math.exp(find_bounds(case, NEAR)[0]), 40.0)
    return Case(case.law, case.state, space, end)


def sample_crowd(rng: Rng) -> Case:
    """A third token as close as the pair."""
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    points = torch.eye(3, dtype=torch.float64) + 0.05 * rng.unit_points(3, 3)
    points = points / points.norm(dim=-1, keepdim=True)
    return Case(rng.sphere_law(space, eye, [5.0 * eye]), map_to_space(space, points), space, 2.0)


def time_scale(case: Case) -> TimeScale:
    found, beta = find_pair(case), pair.fit_beta(case)[0]
    low, high = find_bounds(case, NEAR, found)
    exact = high - low < 1e-3
    share = merge_share(beta, found.angle, found.masses)
    event = f"tokens {found.first} and {found.second} are at an angle of {NEAR:g}"
    rate = (
        f"they merge where token {found.first} has travelled {share:.4g} of their angle (the centre of mass is at "
        f"{found.masses[1] / sum(found.masses):.4g})"
    )
    if not exact:
        rate += f"; log t lies between {low:.6g} and {high:.6g}"
    return TimeScale(event, (low + high) / 2 if exact else low, "exact" if exact else "not before", rate)


THEOREM = Theorem(
    key="consensus.waiting-time",
    title="The first merge of two clusters",
    statement=r"Let \(V = c I,\ P = \beta W\) with \(\beta > 0\), \(\theta_0\) the angle of the closest two tokens, \(m_1, m_2\) their "
    r"masses, and \(c_{next}\) a bound on all other cosines until they merge. Their angle is \(\theta\) at a time between "
    r"\(\int_\theta^{\theta_0}\frac{du}{c(f + R)}\) and \(\int_\theta^{\theta_0}\frac{du}{c(f - R)}\), with "
    r"\(f = \sin u\,(w_{12}+w_{21})\) and \(R = 4\frac{1-m_1-m_2}{\min(m_1,m_2)}e^{-\beta(1-c_{next})}\). Alone, as "
    r"\(\beta\to\infty\), \(T \sim e^{\beta(1-\cos\theta_0)}/(cM\beta\sin^2\theta_0)\) with \(M = m_1/m_2 + m_2/m_1\), and the first "
    r"travels the part \(m_2^2/(m_1^2+m_2^2)\) of the angle.",
    citation=Citation(
        "geshkovski2024dynamic",
        "metastability: times exponential in beta; the time and the point of the first merge are explicit here",
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
        Hypothesis("attractive scores", r"\beta > 0", lambda case: Margin.positive(pair.fit_beta(case)[0])),
        Hypothesis("a pair alone", r"R < f", _alone_margin),
    ),
    fate="identity",
    time_scale=time_scale,
    rate=r"T \sim e^{\beta(1-\cos\theta_0)}/(cM\beta\sin^2\theta_0)",
    conclude=conclude,
    sample=sample,
    violate={"a pair alone": sample_crowd},
    proof="Alone the angle obeys one equation; other clusters change its rate by at most R.",
)
