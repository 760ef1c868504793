r"""T3: under a causal mask with values c I every token tends to the first, which never moves.

:math:`\dot x_1 = 0`. With :math:`u_i = \langle x_i, x_1\rangle` and total weights :math:`a_{ij}` of sum c, token j
between 1 and i contributes :math:`a_{ij}\langle x_1 - u_ix_i, x_j\rangle = a_{ij}(1 - u_i^2) + a_{ij}\langle x_1 -
u_ix_i, x_j - x_1\rangle`, so :math:`\dot u_i \ge (c - a_{ii})(1 - u_i^2) - \sqrt{1 - u_i^2}\sum_{1<j<i}a_{ij}|x_j -
x_1|`: once the tokens before it have arrived, token i follows, unless it sits on the stable set of :math:`-x_1`, a null
set. Near consensus the linearisation is triangular with diagonal :math:`c(1/i - 1)`; token 2 is slowest.
"""

import math

import torch

from attractor.solvers import Trajectory, velocity
from attractor.spaces import angle
from attractor.states import Tokens
from attractor.theory.checking import select_valid_rows
from attractor.theory.hypotheses import SOFTMAX, TOKENS
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import (
    ATTRACTION,
    CAUSAL_IN_ORDER,
    EQUAL_MASSES,
    IDENTITY_VALUES,
    SPHERE_SETTING,
    fit_decay_rate,
    list_laws,
    max_distance,
    to_sphere,
)
from attractor.theory.starts import GENERIC_START
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair
from attractor.theory.timescales import NEAR, TimeScale, add_logs, log_merging_time

HORIZON = 60.0
SIZES = ((3, 3), (4, 3), (4, 4))
CITATION = Citation(
    "abella2024asymptotic",
    "the causal theorem for U = I; also Theorem 4.1 of arXiv 2411.04990 for a fixed P",
    "P = scale Q'K is its P, V is its U; heads are summed, so its rates are those of total weight one",
)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    found, kept = to_sphere(case), select_valid_rows(run)
    points, times = found.map_points(run.points[kept]), run.times[kept]
    drift = float((points[:, 0] - points[0, 0]).norm(dim=-1).max())
    slack = min(_inequality(case, row) for row in run.points[kept][:: max(1, kept.stop // 10)])
    apart = max_distance(points)
    rate = fit_decay_rate(times, apart)
    return (
        Measurement("the first token stays", -drift, 1e-12),
        Measurement("tokens are pulled to the first as promised", slack, 1e-12),
        Measurement("all tokens reach the first", -float(apart[-1]), 1e-3, asymptotic=True),
        Measurement("angles fall like e^{-ct/2}", -abs(rate / found.weight + 0.5), 0.06, asymptotic=True),
    )


def _inequality(case: Case, points: torch.Tensor) -> float:
    """Smallest excess of du_i/dt over its lower bound."""
    found, state = to_sphere(case), Tokens.unchecked(points, case.tokens.masses)
    law = list_laws(case)[0]
    scalars = found.values.diagonal(dim1=-2, dim2=-1).mean(-1)
    weights = (scalars[:, None, None] * law.weights(state)).sum(-3)
    at, motion = found.map_points(points), found.map_points(velocity(case.law, state, case.space))
    heights, rates = at @ at[0], motion @ at[0]
    free = (1 - heights.square()).clamp_min(0.0)
    others = weights.clone()
    others[:, 0] = 0.0
    others.fill_diagonal_(0.0)
    pulled = others @ (at - at[0]).norm(dim=-1)
    bound = (found.weight - weights.diagonal()) * free - free.sqrt() * pulled
    return float((rates - bound)[1:].min()) if len(points) > 1 else 0.0


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    space, value = rng.space(d), torch.eye(d, dtype=torch.float64)
    law = rng.sphere_heads(space, value, 0.5, mask="causal")
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, HORIZON)


def sample_unmasked(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    space, value = rng.space(d, 0.0), torch.eye(d, dtype=torch.float64)
    return Case(rng.sphere_heads(space, value, 0.5), map_to_space(space, rng.unit_points(n, d)), space, HORIZON)


def sample_other_value(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    space, value = rng.space(d, 0.0), torch.diag(torch.from_numpy(rng.uniform(0.2, 1.5, d)))
    return Case(
        rng.sphere_heads(space, value, 0.5, mask="causal"), map_to_space(space, rng.unit_points(n, d)), space, HORIZON
    )


def time_scale(case: Case) -> TimeScale:
    """Two tokens obey the equation of a pair at half the speed; the others are estimated by their weight on the first, once the earlier
    ones have arrived there."""
    found, points = to_sphere(case), to_sphere(case).map_points(case.initial_tokens.points.double())
    rate = f"in the end distances fall like e^(-{found.weight / 2:.4g} t)"
    apart = float(max_distance(points))
    law = list_laws(case)[0]
    plain = law.positions is None and law.query_bias is None and len(list_laws(case)) == 1
    if len(points) < 2 or apart <= NEAR or not plain:
        return TimeScale(rate=rate)
    beta, misfit = pair.fit_beta(case)
    if len(points) == 2 and misfit < 1e-9 and law.heads == 1:
        log_time = log_merging_time(beta, float(angle(points[0], points[1])), NEAR, found.weight / 2)
        return TimeScale(f"the second token is within {NEAR:g} of the first", log_time, "exact", rate)
    scores = points @ found.interactions @ points.mT  # (h, n, n)
    others = torch.arange(1, len(points)).log() if len(points) > 1 else torch.zeros(0)
    first = scores[:, 1:, 0] + others
    own = scores.diagonal(dim1=-2, dim2=-1)[:, 1:]
    shares = found.values.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(0.0).log()[:, None]
    pulls = torch.logsumexp(
        shares + first - torch.logaddexp(first, own), 0
    )  # of the log of the weight on the first, times c
    last = math.log(2 * math.log(apart / NEAR) / found.weight)
    return TimeScale(
        f"tokens are within {NEAR:g} of the first", add_logs(-float(pulls.min()), last), "order of magnitude", rate
    )


THEOREM = Theorem(
    key="consensus.T3",
    title="Causal, identity value",
    statement=r"If \(V_h = c_h I\) with \(c_h \ge 0\), \(c = \sum_h c_h > 0\) and the mask is causal, then \(x_1\) never moves and "
    r"\(x_i(t) \to x_1(0)\) for every \(i\), from almost every start and for every \(P_h\); no hemisphere is needed.",
    citation=CITATION,
    status=Status.PAPER,
    hypotheses=(
        TOKENS,
        *SPHERE_SETTING,
        CAUSAL_IN_ORDER,
        EQUAL_MASSES,
        SOFTMAX,
        IDENTITY_VALUES,
        ATTRACTION,
        GENERIC_START,
    ),
    fate="consensus",
    time_scale=time_scale,
    rate=r"|x_i - x_1| \sim e^{-ct/2}, \text{ whatever } P, n, d",
    conclude=conclude,
    sample=sample,
    violate={"causal mask": sample_unmasked, "identity values": sample_other_value},
    proof="Induction over tokens: the inequality is input-to-state stability of token i with the earlier ones as input.",
)
