r"""T4, stronger: one value with a dominant eigenvector attracts all tokens of its hemisphere, for any weights.

Let :math:`Uv = \lambda v`, :math:`U^\top v = \lambda v`, :math:`\lambda > \mu = \|U|_{v^\perp}\|` (for symmetric U: the
top eigenvalue exceeds the modulus of all others), and all :math:`c_i = \langle v, x_i\rangle > 0`, with any weights
:math:`a_{ij} \ge 0` of row sum one.

Proof. Let i be lowest, :math:`m = c_i`, and :math:`\tilde b = \sum_ja_{ij}x_j = \beta v + b_\perp`; then :math:`\beta
\ge m` and :math:`|b_\perp| \le \sqrt{1-\beta^2}`. So :math:`\dot c_i = \lambda\beta - m\,x_i^\top U\tilde b` with
:math:`x_i^\top U\tilde b = \lambda\beta m + x_\perp^\top Ub_\perp \le \lambda\beta m + \mu\sqrt{(1-m^2)(1-\beta^2)}`,
hence :math:`\dot c_i \ge \lambda\beta(1 - m^2) - \mu m\sqrt{(1-m^2)(1-\beta^2)}`, which increases with :math:`\beta`;
at :math:`\beta = m` it is :math:`(\lambda - \mu)\,m(1 - m^2)`. Therefore :math:`\dot m \ge (\lambda-\mu)m(1-m^2)`: the
tangent of the largest angle to v falls at least like :math:`e^{-(\lambda-\mu)t}`. This is sharper than :math:`m(\lambda
- \sqrt{\lambda^2m^2 + \mu^2(1-m^2)})`, since the root is concave in :math:`m^2`.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attractor.solvers import Trajectory
from attractor.theory.checking import select_valid_rows, smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import TOKENS
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import COMMON_VALUE, SAME_SIGN, SPHERE_SETTING, compute_odds, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import NEAR, TimeScale, fall_exponentially

HORIZON = 12.0


@dataclass(frozen=True, eq=False)
class Dominant:
    """The eigenvalue of U with the largest real part, its eigenvector v, the norm of U on the complement of v (``others``), and
    the distance of v from an eigenvector of U and of its transpose (``residual``)."""

    value: float
    vector: Tensor
    others: float
    residual: float


def find_dominant(case: Case) -> Dominant:
    """Find the dominant eigenvector of the total value on the unit sphere."""
    value = to_sphere(case).total
    values, vectors = torch.linalg.eig(value)
    top = int(values.real.argmax())
    vector = vectors[:, top].real
    vector = vector / vector.norm().clamp_min(1e-300)
    largest = float(vector @ value @ vector)
    size = torch.linalg.matrix_norm(value, 2).clamp_min(1e-300)
    missed = max(float((part @ vector - largest * vector).norm() / size) for part in (value, value.mT))
    beside = torch.eye(len(value), dtype=value.dtype) - vector[:, None] * vector
    return Dominant(largest, vector, float(torch.linalg.matrix_norm(beside @ value @ beside, 2)), missed)


def signed_heights(case: Case, points: Tensor) -> Tensor:
    """Return <v, x> with the sign of v chosen so that the first token is positive."""
    found = to_sphere(case).map_points(points) @ find_dominant(case).vector
    first = found.reshape(-1)[0]
    return found * (-1.0 if float(first) < 0 else 1.0)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept, top = select_valid_rows(run), find_dominant(case)
    lowest, times = signed_heights(case, run.points[kept]).amin(-1), run.times[kept]
    away = (lowest > 0) & (lowest < 1 - 1e-8)
    promised = compute_odds(lowest[away]).log() - 2 * (top.value - top.others) * times[away]
    return (
        Measurement("the lowest height never decreases", smallest_increase(lowest), 1e-10),
        Measurement("it stays positive", float(lowest.min()), 0.0),
        Measurement("its odds grow as fast as promised", smallest_increase(promised), 1e-6),
    )


def draw_value(
    rng: Rng, d: int, low: float = -0.9, high: float = 0.9, symmetric: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw U = lambda v v' + U', U' on the complement of v with norm below lambda; return U and v."""
    basis, top = rng.orthogonal(d), float(rng.uniform(0.7, 1.5))
    inner = torch.diag(torch.from_numpy(rng.uniform(low, high, d - 1)))
    if not symmetric:
        inner = rng.orthogonal(d - 1) @ inner @ rng.orthogonal(d - 1)
    whole = torch.block_diag(torch.ones(1, 1, dtype=torch.float64), inner)
    return top * basis @ whole @ basis.mT, basis[:, 0]


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space = rng.space(d)
    value, pole = draw_value(rng, d, symmetric=bool(rng.integers(2)))
    mask = (None, "causal")[int(rng.integers(2))]
    if rng.random() < 0.1:
        law = rng.schedule(space, value, HORIZON, mask=mask)
    else:
        law = rng.sphere_heads(space, value, mask=mask)
    return Case(law, map_to_space(space, rng.hemisphere(n, d, pole)), space, HORIZON)


def sample_strong_negative(rng: Rng) -> Case:
    """|lambda_min| above lambda_1."""
    basis = rng.orthogonal(3)
    value = basis @ torch.diag(torch.tensor([1.0, -5.0, -5.0], dtype=torch.float64)) @ basis.mT
    space = rng.space(3, 0.0)
    return Case(
        rng.sphere_heads(space, value, 1.5), map_to_space(space, rng.hemisphere(5, 3, basis[:, 0])), space, HORIZON
    )


def sample_both_sides(rng: Rng) -> Case:
    case = sample(rng)
    signs = torch.from_numpy(np.where(np.arange(case.tokens.n) % 2, -1.0, 1.0))
    return replace(case, state=replace(case.tokens, points=case.tokens.points * signs[:, None]))


def time_scale(case: Case) -> TimeScale:
    """The bound of the theorem: the tangent of the largest angle falls at least like e^(-(lambda - mu) t)."""
    top, height = find_dominant(case), float(signed_heights(case, case.initial_tokens.points).min())
    ratio = (max(1 - height**2, 0.0)) ** 0.5 / max(height, 1e-300) / NEAR
    return fall_exponentially("tangents of angles to the eigenvector", top.value - top.others, ratio, "at the latest")


def _one_side_margin(case: Case) -> Margin:
    found = signed_heights(case, case.initial_tokens.points)
    return Margin.positive(float(found.min()))


SPLIT = Hypothesis(
    "value splits",
    r"U v = \lambda v,\ U^\top v = \lambda v",
    lambda case: Margin.zero(find_dominant(case).residual),
    structural=True,
)
POSITIVE = Hypothesis(
    "top eigenvalue positive",
    r"\lambda_1 > 0",
    lambda case: Margin.positive(
        find_dominant(case).value / max(abs(find_dominant(case).value), find_dominant(case).others, 1e-300)
    ),
)
DOMINANT = Hypothesis(
    "top eigenvalue dominates",
    r"\lambda > \mu = \|U|_{v^\perp}\|",
    lambda case: Margin.positive(
        (find_dominant(case).value - find_dominant(case).others) / max(find_dominant(case).others, 1e-3)
    ),
)
ONE_SIDE = Hypothesis(
    "one side", r"\langle v, x_i(0)\rangle > 0 \text{ for all } i \text{ (or all } < 0)", _one_side_margin
)
CITATION = Citation(
    "abella2024asymptotic",
    "extends its causal theorem for symmetric U to several heads, full attention and P(t)",
    "P = scale Q'K is its P, V is its U, v its top eigenvector; U = W^{1/2} V W^{-1/2} is the value on the unit sphere",
)

THEOREM = Theorem(
    key="consensus.T4-common",
    title="Common dominant value",
    statement=r"Let all heads share one value, \(V_h = c_h V\), whose picture \(U\) on the unit sphere splits as \(\lambda\) on "
    r"\(v\) and an operator of norm \(\mu < \lambda\) on \(v^\perp\). If all \(\langle v, x_i(0)\rangle > 0\), then \(m = "
    r"\min_i\langle v, x_i\rangle\) obeys \(\dot m \ge (\lambda - \mu)\,m\,(1 - m^2)\): all tokens tend to \(v\), for every mask, "
    r"every \(P_h(t)\), every averaging kernel.",
    citation=CITATION,
    status=Status.HERE,
    hypotheses=(TOKENS, *SPHERE_SETTING, COMMON_VALUE, SPLIT, SAME_SIGN, POSITIVE, DOMINANT, ONE_SIDE),
    fate="consensus",
    time_scale=time_scale,
    rate=r"\tan\angle(x_i, v) \le e^{-(\lambda-\mu)t}\max_j\tan\angle(x_j(0), v)",
    conclude=conclude,
    sample=sample,
    violate={"top eigenvalue dominates": sample_strong_negative, "one side": sample_both_sides},
    proof="At the lowest token the pull along v is at least lambda beta, the loss at most lambda beta m + mu "
    "sqrt((1-m^2)(1-beta^2)), beta >= m.",
)
