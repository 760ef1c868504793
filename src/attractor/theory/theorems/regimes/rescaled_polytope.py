r"""Rescaled tokens :math:`z_i = e^{-ct}x_i` under V = c I tend to a convex polytope.

For rows of weights that sum to one, :math:`\dot z_i = c(\sum_jw_{ij}z_j - z_i)` points into the convex hull of the tokens, so hulls
are nested, :math:`\operatorname{conv}z(t)\subset\operatorname{conv}z(s)` for t > s. That the limits are corners of the intersection of the
hulls, other points of its boundary, or zero is the theorem of the paper for a positive definite interaction.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Rescaled
from attractor.solvers import Trajectory, flow
from attractor.theory.checking import smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import INTERACTION_POSITIVE, ONE_HEAD, STANDARD_SETTING
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each

HORIZON = 12.0
DIRECTIONS = 24
EVALUATIONS = 5000  # those that violate a hypothesis can become stiff
SYMBOLS = "our Q, K, V and z are its Q, K, V and z; W = Q'K"


def integrate_rescaled(case: Case) -> Trajectory:
    """Return the run of the rescaled tokens."""
    options = {"merge": False, "stop": (), "rtol": 1e-9, "atol": 1e-11, "max_evaluations": EVALUATIONS}
    return flow(Rescaled(case.attention), case.initial_tokens, until=case.horizon, save=40, **options)


def distance_to_boundary(points: Tensor) -> Tensor:
    """Return the distance of each point (n, d) to the boundary of the convex hull of all, (n,); zero if the hull is flat."""
    from scipy.spatial import ConvexHull, QhullError

    array = points.double().numpy()
    if array.shape[1] == 1:
        return torch.from_numpy(np.minimum(array[:, 0] - array.min(), array.max() - array[:, 0]))
    try:
        faces = ConvexHull(array).equations
    except QhullError:  # all points in one hyperplane
        return torch.zeros(len(array), dtype=torch.float64)
    return torch.from_numpy(np.clip(-(array @ faces[:, :-1].T + faces[:, -1]).max(1), 0.0, None))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    points = run.points
    frame = torch.from_numpy(np.random.default_rng(0).standard_normal((points.shape[-1], DIRECTIONS)))
    reach = (points @ (frame / frame.norm(dim=0))).amax(-2)
    size = torch.cdist(points[0], points[0]).max()
    last = points[-1]
    away = torch.minimum(distance_to_boundary(last), last.norm(dim=-1)) / size  # one corner may be left
    return (
        Measurement("convex hulls are nested", smallest_increase(-reach, size), 1e-7),
        Measurement("tokens end at the boundary of the hull, or at zero", -float(away.max()), 0.02, asymptotic=True),
    )


def draw_case(rng: Rng, sign: float = 1.0, bend: float = 0.0) -> Case:
    n, d = rng.sizes(((7, 2), (9, 2), (9, 3)))
    interaction = rng.definite(d, sign) if sign else rng.indefinite(d)
    value = float(rng.uniform(0.7, 1.3)) * torch.eye(d, dtype=torch.float64)
    value = value + bend * torch.from_numpy(rng.standard_normal((d, d)))
    return Case(rng.law(interaction, value), rng.tokens(n, d), horizon=HORIZON)


def _multiple_margin(case: Case) -> Margin:
    value = case.matrices.value
    scalar = value.diagonal().mean()
    away = value - scalar * torch.eye(len(value), dtype=value.dtype)
    if float(scalar) <= 0:
        return Margin.boolean(False, f"the trace of V is {float(value.trace()):.3g}")
    return Margin.zero(float(away.norm() / value.norm()))


def gather(cases: Sequence[Case]) -> Sequence[Trajectory]:
    return gather_each(integrate_rescaled)(cases)


THEOREM = Theorem(
    key="regimes.polytope",
    title="Rescaled tokens tend to a polytope",
    statement=r"Let \(V = c I\) with \(c > 0\) and \(\operatorname{sym} W \succ 0\), one head. The convex hulls of "
    r"\(z_i(t) = e^{-ct}x_i(t)\) are nested, and every \(z_i\) tends to zero or to a point of the boundary of a convex polytope.",
    citation=Citation(
        "geshkovski2023emergence",
        "Theorem 3.1 (in the authors' code the folder movies/Th31, and Theorem 3.2 in a comment)",
        SYMBOLS,
        "3.1",
    ),
    status=Status.PAPER,
    hypotheses=(
        *STANDARD_SETTING,
        ONE_HEAD,
        Hypothesis("identity values", r"V = c I,\ c > 0", _multiple_margin),
        INTERACTION_POSITIVE,
    ),
    fate="identity",
    conclude=conclude,
    sample=draw_case,
    violate={
        "identity values": lambda rng: draw_case(rng, bend=0.5),
        "interaction positive": lambda rng: draw_case(rng, sign=-1.0),
    },
    gather=gather,
    proof="Velocities of rescaled tokens point into their hull; the limits are the theorem of the paper.",
)
