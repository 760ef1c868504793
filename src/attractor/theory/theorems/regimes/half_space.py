r"""T6: tokens on one side of a hyperplane that the values stretch run away from it, under any row-normalised attention.

If :math:`V_h^\top u = \lambda_h u` with :math:`\lambda_h \ge 0`, then :math:`u\cdot\dot x_l = \sum_h\lambda_h\sum_i w^h_{li}\,u\cdot x_i`
lies between :math:`\lambda\min_i u\cdot x_i` and :math:`\lambda\max_i u\cdot x_i`, :math:`\lambda = \sum_h\lambda_h`.
"""

from dataclasses import replace
from typing import Any

import torch

from attractor.laws import Attention, Rotary
from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.theory.checking import STOP_FAR_AWAY, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import FLAT, NO_DRIFT, NORMALISED, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import FACTOR, TimeScale, grow_exponentially
from attractor.weights import Bounds, enclose_eigenvalue, rounding_error


def find_directions(case: Case) -> list[tuple[float, torch.Tensor]]:
    """Return rates and unit directions that all values stretch, oriented towards the tokens, best separated first."""
    values, tokens = case.matrices.values, case.initial_tokens.points.double()
    found, vectors = torch.linalg.eig(case.matrices.value.mT)
    size = torch.linalg.matrix_norm(case.matrices.value, 2)
    kept: list[tuple[float, torch.Tensor]] = []
    for rate, vector in zip(found, vectors.mT, strict=True):
        if abs(float(rate.imag)) > 1e-12 * float(size):
            continue
        u = vector.real / vector.real.norm()
        rates = (values.mT @ u) @ u  # (h,)
        missed = (values.mT @ u - rates[:, None] * u).norm()
        if float(missed) <= 1e-9 * float(size) and bool((rates >= -1e-12 * size).all()) and float(rate.real) > 0:
            kept.append((float(rate.real), u if float((tokens @ u).sum()) >= 0 else -u))
    return sorted(kept, key=lambda pair: -float((tokens @ pair[1]).min()))


def _stretched_margin(case: Case) -> Margin:
    value = case.matrices.value
    size = float(torch.linalg.matrix_norm(value, 2))
    rates = [rate for rate, _ in find_directions(case)]
    if not rates:
        return Margin.positive(-1.0, detail="no direction")
    # an eigenvalue within rounding of a rate may have another sign: near a Jordan block it is far from where it was computed
    error = rounding_error(value, case.matrices.value_size)
    found = [Bounds(rate, enclose_eigenvalue(value.numpy(), complex(rate), error).low) for rate in rates]
    return Margin.bounded(max(found, key=lambda bounds: (bounds.low, bounds.value)), size)


def _one_side_margin(case: Case) -> Margin:
    points = case.initial_tokens.points.double()
    sides = [float((points @ u).min()) for _, u in find_directions(case)]
    return Margin.positive(max(sides, default=-1.0) / max(float(points.norm(dim=-1).max()), 1e-300))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    rate, u = (find_directions(case) or [(1.0, torch.eye(case.tokens.dim, dtype=torch.float64)[0])])[0]
    heights, growth = run.points[kept] @ u, rate * run.times[kept]
    low, high = heights.amin(-1), heights.amax(-1)
    slack = ((low / low[0]).clamp_min(1e-300).log() - growth).min()
    excess = (growth - (high / high[0]).clamp_min(1e-300).log()).min()
    return (
        Measurement("heights grow at least like e^(rate t)", float(slack), 1e-7),
        Measurement("heights grow at most like e^(rate t)", float(excess), 1e-7),
    )


def draw_values(rng: Rng, d: int, heads: int, rate: float) -> torch.Tensor:
    """Draw values whose transposes share an eigenvector, in a random basis."""
    frame, values = rng.orthogonal(d), torch.from_numpy(0.5 * rng.standard_normal((heads, d, d)))
    values[:, 0, :] = 0.0
    values[:, 0, 0] = torch.from_numpy(rate * rng.uniform(0.2, 1.0, heads))
    return frame.mT @ values @ frame


def draw_case(rng: Rng, rate: float, split: bool = False) -> Case:
    n, d = rng.sizes(((5, 4),))
    heads = int(rng.integers(1, 3))
    options: dict[str, Any] = ({}, {"mask": "causal"}, {"positions": Rotary(10.0)}, {"kernel": "l2"})[
        int(rng.integers(4))
    ]
    query, key = (torch.from_numpy(0.7 * rng.standard_normal((heads, 4, d))) for _ in range(2))
    law = Attention(query, key, draw_values(rng, d, heads, rate), **options)
    case = Case(law, rng.tokens(n, d), horizon=3.0, options=STOP_FAR_AWAY)
    for found, u in find_directions(case)[:1]:
        if found > 0 and not split:
            heights = case.tokens.points @ u
            lifted = case.tokens.points + (heights.abs() + 0.1 - heights)[:, None] * u
            case = replace(case, state=Tokens(lifted))
    return case


def time_scale(case: Case) -> TimeScale:
    points, (rate, u) = case.initial_tokens.points.double(), find_directions(case)[0]
    ratio = FACTOR * float(points.norm(dim=-1).max()) / float((points @ u).min())
    return grow_exponentially("every token", rate, ratio, "at the latest")


THEOREM = Theorem(
    key="regimes.T6",
    title="Half-space divergence",
    statement=r"If \(V_h^\top u = \lambda_h u\) with \(\lambda_h \ge 0\) for every head, \(\lambda = \sum_h \lambda_h > 0\) and "
    r"\(u\cdot x_i(0) > 0\) for every token, then \(e^{\lambda t}\min_i u\cdot x_i(0) \le u\cdot x_l(t) \le e^{\lambda t}\max_i "
    r"u\cdot x_i(0)\): for any mask, any rotary positions and any row-normalised kernel.",
    citation=Citation(
        "pham2025dynamical",
        "divergence theorem: what it means by tokens that are initially separated",
        "our value V is its V^T, so u is an eigenvector of its V",
    ),
    status=Status.HERE,
    hypotheses=(
        NORMALISED,
        FLAT,
        TOKENS,
        NO_DRIFT,
        Hypothesis(
            "stretched direction", r"V_h^\top u = \lambda_h u,\ \lambda_h \ge 0,\ \lambda > 0", _stretched_margin
        ),
        Hypothesis("one side", r"u \cdot x_i(0) > 0 \text{ for all } i", _one_side_margin),
    ),
    fate="divergence",
    time_scale=time_scale,
    rate=r"e^{\lambda t}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, 1.0),
    violate={"one side": lambda rng: draw_case(rng, 1.0, split=True)},
    proof="Each weighted mean of u.x lies between the smallest and the largest; Gronwall.",
)
