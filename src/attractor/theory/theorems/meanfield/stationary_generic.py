r"""T6, generic value: in dimensions two and three, limits of covariances under softmax attention have rank at most d/2.

:math:`\Sigma` rests iff :math:`X = V\Sigma A\Sigma` is skew; its rows, so its columns, lie in the image of :math:`\Sigma`, and its rank is
even. X = 0 makes the image isotropic for A, so of dimension at most d/2. A rank of two on an image of dimension two or three needs, for d
at most three, an image that V leaves invariant and one equation more than there are unknowns: generic V leave no room. From d = 4 on they
do, and the bound is false (the claim meanfield.softmax-rank).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from attractor.meanfield import limit_rank
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import FULL_RANK, SOFTMAX_GAUSSIAN, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

UNITS = 1e3  # the first look, in units of the inverse rate of the start; the second is ten times later
GROWN = 1e6
EVALUATIONS = 20_000


@dataclass(frozen=True)
class Limit:
    """The rank of the limit, None where none was found within the budget, and a description."""

    rank: int | None
    word: str


def find_limit(case: Case) -> Limit:
    """Integrate the covariance with a stiff method, because limits of lower rank are approached slowly."""
    known = case.facts.get("seen")
    if known is not None:
        return known
    from scipy.integrate import solve_ivp

    value, form = case.matrices.values[0].numpy(), case.matrices.transposed.numpy()
    start = case.gaussian.covariance.numpy()
    size, d, spent = float(np.linalg.norm(start)), len(start), 0

    def velocity(_: float, flat: np.ndarray) -> np.ndarray:
        nonlocal spent
        spent += 1
        if spent > EVALUATIONS:
            raise StopIteration
        covariance = flat.reshape(d, d)
        half = value @ covariance @ form @ covariance
        return (half + half.T).ravel()

    def grown(_: float, flat: np.ndarray) -> float:
        return GROWN * size - float(np.linalg.norm(flat))

    grown.terminal = True  # type: ignore[attr-defined]
    late = UNITS / max(float(np.linalg.norm(value @ start @ form)), 1e-3)
    try:
        run = solve_ivp(
            velocity,
            (0.0, 10.0 * late),
            start.ravel(),
            "LSODA",
            t_eval=(late, 10.0 * late),
            events=grown,
            rtol=1e-9,
            atol=1e-13 * size,
        )
    except StopIteration:
        return Limit(None, "not decided within the budget")
    if run.status < 0:
        return Limit(None, "the integration failed")
    if run.status > 0:
        return Limit(None, "the covariance grows without bound")
    looks = [np.linalg.eigvalsh(row.reshape(d, d))[::-1] for row in run.y.T]
    if looks[1][0] < 1e-2 * size * min(1.0, 1e2 / UNITS):
        return Limit(0, "the covariance goes to zero")
    return Limit(limit_rank(*looks), "the covariance has a limit")


def conclude(case: Case, limit: Limit) -> tuple[Measurement, ...]:
    most = case.gaussian.dim // 2
    rank = 0 if limit.rank is None else limit.rank  # the statement is about limits only
    return (Measurement("the rank is at most d/2", float(most - rank), asymptotic=True),)


def _invertible_margin(case: Case) -> Margin:
    values = torch.linalg.svdvals(case.matrices.transposed)
    return Margin.positive(float(values[-1] / values[0].clamp_min(1e-300)))


def _generic_margin(case: Case) -> Margin:
    value = case.matrices.values[0]
    part = value.diagonal().mean() * torch.eye(len(value), dtype=value.dtype)
    return Margin.nonzero(float((value - part).norm() / value.norm().clamp_min(1e-300)), 1e-3)


def _small_margin(case: Case) -> Margin:
    return Margin.boolean(case.attention.dim <= 3, f"d = {case.attention.dim}")


def _convergent_margin(case: Case) -> Margin:
    limit = find_limit(case)
    return Margin.boolean(limit.rank is not None, limit.word)


def sample(rng: Rng) -> Case:
    return draw_case(rng, int(rng.integers(2, 4)))


def draw_case(rng: Rng, d: int) -> Case:
    """Draw S indefinite and V asymmetric with a positive symmetric part; most cases have a limit of positive rank."""
    form = rng.indefinite(d, 1, 0.2, 1.5) + rng.skew(d)
    value = rng.definite(d, 1.0, 0.2, 2.0) + rng.skew(d)
    case = Case(rng.softmax_law(form, value), rng.gaussian(d))
    return replace(case, facts={"seen": find_limit(case)})


def sample_identity_value(rng: Rng) -> Case:
    """Draw V = I and a skew interaction, under which every covariance is stationary."""
    law = rng.softmax_law(rng.skew(2, 1.0), torch.eye(2, dtype=torch.float64))
    return Case(law, rng.gaussian(2))


def set_zero_value(case: Case) -> Case:
    """Set the value to zero, so that the covariance is constant."""
    return Case(replace(case.attention, value=torch.zeros_like(case.attention.value)), case.state)


THEOREM = Theorem(
    key="meanfield.T6-generic",
    title="Limits have at most half rank",
    statement=r"Softmax attention in \(d \le 3\) dimensions with \(A\) invertible and \(V\) generic: if \(\Sigma_t\) has a "
    r"limit, its rank is at most \(\lfloor d/2\rfloor\).",
    citation=cite("limits of low rank, said of every d"),
    status=Status.CHECKED,
    hypotheses=(
        *SOFTMAX_GAUSSIAN,
        FULL_RANK,
        Hypothesis("interaction invertible", r"\det A \ne 0", _invertible_margin),
        Hypothesis("value generic", r"V \ne cI", _generic_margin),
        Hypothesis("at most three dimensions", r"d \le 3", _small_margin, structural=True),
        Hypothesis("covariance converges", r"\Sigma_t \to \Sigma_\infty", _convergent_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"value generic": sample_identity_value, "at most three dimensions": lambda rng: draw_case(rng, 4)},
    gather=gather_each(find_limit),
    break_case=set_zero_value,
)
