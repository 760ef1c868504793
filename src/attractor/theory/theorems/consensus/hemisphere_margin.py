r"""T2 for every mask, kernel and interaction: the lowest height over a hyperplane never decreases.

If :math:`m_e = \min_i\langle e, x_i\rangle \ge 0` and token i is lowest, then :math:`\langle e, \dot x_i\rangle =
\sum_ja_{ij}(\langle e, x_j\rangle - \langle x_i, x_j\rangle m_e) \ge m_e\sum_ja_{ij}(1 - \langle x_i, x_j\rangle) \ge
0` for any weights :math:`a_{ij} \ge 0`. So also :math:`\rho = \max_e m_e` never falls. (The diameter may grow while it
exceeds a right angle.)
"""

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows, smallest_increase
from attractor.theory.hypotheses import TOKENS
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, HEMISPHERE, IDENTITY_VALUES, SPHERE_SETTING, to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import hemisphere

HORIZON = 8.0
MASKS = (None, "causal", "window:2")
KERNELS = ("softmax", "l2")


def lowest_heights(case: Case, run: Trajectory) -> torch.Tensor:
    """Lowest heights over hyperplanes that all tokens start above, (S, directions)."""
    points = to_sphere(case).map_points(run.points[select_valid_rows(run)])
    start = points[0]
    # mixtures of tokens are good candidates; those that do not have all tokens on one side are left out
    mixtures = torch.cat((start.mean(0, keepdim=True), start, start[:-1] + start[1:]))
    directions = mixtures / mixtures.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    directions = directions[(start @ directions.mT).amin(0) >= 0]
    return (points @ directions.mT).amin(-2)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    _, rho = hemisphere.margins_along(case, run)
    lowest = lowest_heights(case, run)
    fall = smallest_increase(lowest) if lowest.numel() else 0.0
    return (
        Measurement("the margin never decreases", smallest_increase(rho), 1e-10),
        Measurement("heights over hyperplanes never decrease", fall, 1e-10),
    )


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, value = rng.space(d), torch.eye(d, dtype=torch.float64)
    mask, kernel = MASKS[int(rng.integers(3))], KERNELS[int(rng.integers(2))]
    positions = Rotary(10.0) if d == 4 else None
    if rng.random() < 0.1:
        law = rng.schedule(space, value, HORIZON, mask="causal")
    else:
        law = rng.sphere_heads(space, value, mask=mask, kernel=kernel, positions=positions)
    return Case(law, map_to_space(space, rng.hemisphere(n, d)), space, HORIZON)


def sample_skew_value(rng: Rng) -> Case:
    """A value with a skew part turns tokens out of the hemisphere they start in."""
    n, d = rng.sizes(SPHERE_SIZES)
    space, value = rng.space(d, 0.0), torch.eye(d, dtype=torch.float64)
    value[0, 1], value[1, 0] = 1.0, -1.0
    return Case(rng.sphere_heads(space, value), map_to_space(space, rng.hemisphere(n, d)), space, HORIZON)


THEOREM = Theorem(
    key="consensus.T2-margin",
    title="Hemispheres are never left",
    statement=r"If \(V_h = c_h I\) with \(c_h \ge 0\), then for every direction \(e\) with \(\min_i\langle e, x_i\rangle_W \ge 0\) "
    r"this minimum never decreases, and neither does \(\rho\): for every mask, every \(P_h(t)\), every kernel with weights that "
    r"are not negative.",
    citation=hemisphere.CITATION,
    status=Status.HERE,
    hypotheses=(TOKENS, *SPHERE_SETTING, IDENTITY_VALUES, ATTRACTION, HEMISPHERE),
    fate="monotone",
    quantity="the hemisphere margin: the distance of the origin from the convex hull of the tokens",
    conclude=conclude,
    sample=sample,
    violate={"identity values": sample_skew_value},
    proof="The lowest token is pulled towards tokens that are not lower, and shortened by less.",
)
