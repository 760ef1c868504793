r"""T8, converse: under a causal mask an unstable value sends the first token to infinity, for almost every start.

:math:`\dot x_1 = (\sum_h V_h) x_1`, so the component along a left eigenvector of an unstable eigenvalue grows like
:math:`e^{\operatorname{Re}\lambda\,t}`.
"""

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory.checking import STOP_FAR_AWAY, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import CAUSAL, FLAT, NO_DRIFT, NORMALISED, TOKENS, find_first_token
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import FACTOR, TimeScale, grow_exponentially


def leading_eigenvector(case: Case) -> tuple[float, torch.Tensor]:
    """The largest real part of the spectrum of V, and its left eigenvector."""
    values, vectors = torch.linalg.eig(case.matrices.value.mT)
    index = int(values.real.argmax())
    return float(values.real[index]), vectors[:, index]


def leading_component(case: Case, points: torch.Tensor) -> torch.Tensor:
    """Return the modulus of the first token's component along that eigenvector."""
    _, vector = leading_eigenvector(case)
    return (points[..., find_first_token(case.tokens), :].to(vector.dtype) @ vector).abs()


def _unstable_margin(case: Case) -> Margin:
    size = float(torch.linalg.matrix_norm(case.matrices.value, 2).clamp_min(1e-300))
    return Margin.bounded(case.matrices.abscissa, size)


def _present_margin(case: Case) -> Margin:
    points = case.initial_tokens.points.double()
    return Margin.nonzero(
        float(leading_component(case, points) / points[find_first_token(case.tokens)].norm().clamp_min(1e-300))
    )


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    sizes, rate = leading_component(case, run.points[kept]), leading_eigenvector(case)[0]
    slack = ((sizes / sizes[0].clamp_min(1e-300)).clamp_min(1e-300).log() - rate * run.times[kept]).min()
    growth = (sizes[-1] / sizes[0].clamp_min(1e-300)).clamp_min(1e-300).log()
    return (
        Measurement("the first token grows like e^(Re t)", float(slack), 1e-6),
        Measurement("its component only grows", float(growth)),
    )


def draw_case(rng: Rng, value: torch.Tensor, n: int) -> Case:
    d = len(value)
    options = {"positions": Rotary(10.0)} if d % 2 == 0 and rng.random() < 0.5 else {}
    law = rng.law(rng.definite(d) + rng.skew(d), value, mask="causal", **options)
    return Case(law, rng.tokens(n, d), horizon=3.0, options=STOP_FAR_AWAY)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    return draw_case(rng, rng.indefinite(d, 1 + int(rng.integers(d)), 0.4, 1.2) + rng.skew(d, 0.2), n)


def sample_stable(rng: Rng) -> Case:
    n, d = rng.sizes()
    return draw_case(rng, rng.definite(d, -1.0), n)


def time_scale(case: Case) -> TimeScale:
    first = case.initial_tokens.points.double()
    part = float(leading_component(case, first)) / float(leading_eigenvector(case)[1].norm())
    ratio = FACTOR * float(first[find_first_token(case.tokens)].norm()) / max(part, 1e-300)
    return grow_exponentially("the first token", leading_eigenvector(case)[0], ratio)


THEOREM = Theorem(
    key="regimes.T8.converse",
    title="Causal divergence",
    statement=r"Under a causal mask, if \(\sum_h V_h\) has an eigenvalue with positive real part and \(x_1(0)\) has a component along its "
    r"left eigenvector (almost every start has), then \(|x_1(t)| \to \infty\) like \(e^{\operatorname{Re}\lambda\,t}\).",
    citation=Citation("pham2025dynamical", "decoders, which it does not treat apart", "our value V is its V^T"),
    status=Status.HERE,
    hypotheses=(
        NORMALISED,
        FLAT,
        TOKENS,
        NO_DRIFT,
        CAUSAL,
        Hypothesis("value unstable", r"\max\operatorname{Re}\lambda(\textstyle\sum_h V_h) > 0", _unstable_margin),
        Hypothesis("component present", r"u^* x_1(0) \ne 0", _present_margin, generic=True),
    ),
    fate="divergence",
    time_scale=time_scale,
    rate=r"e^{\max\operatorname{Re}\lambda(V)\,t}",
    conclude=conclude,
    sample=sample,
    violate={"value unstable": sample_stable},
    proof="The first token sees itself alone and obeys a linear equation.",
)
