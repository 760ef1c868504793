r"""T8, converse: under a causal mask an unstable value sends the first token to infinity, for almost every start.

:math:`\dot x_1 = (\sum_h V_h) x_1`, so the component along a left eigenvector of an unstable eigenvalue grows like
:math:`e^{\operatorname{Re}\lambda\,t}`.
"""

from __future__ import annotations

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory import hypotheses as given
from attractor.theory.checking import RUNAWAY, alive
from attractor.theory.conditions import Hypothesis, Margin, nonzero, strictly
from attractor.theory.sampling import Draw, cloud, definite, indefinite, law_of, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem


def leading(case: Case) -> tuple[float, torch.Tensor]:
    """The largest real part of the spectrum of V, and its left eigenvector."""
    values, vectors = torch.linalg.eig(case.matrices.value.mT)
    index = int(values.real.argmax())
    return float(values.real[index]), vectors[:, index]


def component(case: Case, points: torch.Tensor) -> torch.Tensor:
    """Size of the first token along it."""
    _, vector = leading(case)
    return (points[..., given.first(case.tokens), :].to(vector.dtype) @ vector).abs()


def unstable(case: Case) -> Margin:
    size = float(torch.linalg.matrix_norm(case.matrices.value, 2).clamp_min(1e-300))
    return strictly(leading(case)[0] / size)


def present(case: Case) -> Margin:
    points = case.law.enter(case.tokens).points.double()
    return nonzero(float(component(case, points) / points[given.first(case.tokens)].norm().clamp_min(1e-300)))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = alive(run)
    sizes, rate = component(case, run.points[kept]), leading(case)[0]
    slack = ((sizes / sizes[0].clamp_min(1e-300)).clamp_min(1e-300).log() - rate * run.times[kept]).min()
    growth = (sizes[-1] / sizes[0].clamp_min(1e-300)).clamp_min(1e-300).log()
    return (
        Measurement("the first token grows like e^(Re t)", float(slack), 1e-6),
        Measurement("its component only grows", float(growth)),
    )


def problem(draw: Draw, value: torch.Tensor, n: int) -> Case:
    d = len(value)
    options = {"positions": Rotary(10.0)} if d % 2 == 0 and draw.random() < 0.5 else {}
    law = law_of(draw, definite(draw, d) + skew(draw, d), value, mask="causal", **options)
    return Case(law, cloud(draw, n, d), horizon=3.0, options=RUNAWAY)


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    return problem(draw, indefinite(draw, d, 1 + int(draw.integers(d)), 0.4, 1.2) + skew(draw, d, 0.2), n)


def contracting(draw: Draw) -> Case:
    n, d = sizes(draw)
    return problem(draw, definite(draw, d, -1.0), n)


THEOREM = Theorem(
    key="regimes.T8.converse",
    title="Causal divergence",
    statement=r"Under a causal mask, if \(\sum_h V_h\) has an eigenvalue with positive real part and \(x_1(0)\) has a component along its "
    r"left eigenvector (almost every start has), then \(|x_1(t)| \to \infty\) like \(e^{\operatorname{Re}\lambda\,t}\).",
    citation=Citation("pham2025dynamical", "decoders, which it does not treat apart", "our value V is its V^T"),
    status=Status.HERE,
    hypotheses=(
        given.NORMALISED,
        given.FLAT,
        given.TOKENS,
        given.UNDRIVEN,
        given.CAUSAL,
        Hypothesis("value unstable", r"\max\operatorname{Re}\lambda(\textstyle\sum_h V_h) > 0", unstable),
        Hypothesis("component present", r"u^* x_1(0) \ne 0", present),
    ),
    fate="divergence",
    rate=r"e^{\max\operatorname{Re}\lambda(V)\,t}",
    conclude=conclude,
    sample=sample,
    violate={"value unstable": contracting},
    proof="The first token sees itself alone and obeys a linear equation.",
)
