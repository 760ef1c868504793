"""T10: Sinkhorn attention moves the mean by V alone, for any tokens: the coupling is doubly stochastic."""

from __future__ import annotations

import torch
from torch import Tensor

from attractor.laws import Sinkhorn
from attractor.theory import gaussians as mean_field
from attractor.theory import hypotheses as given
from attractor.theory.sampling import Draw, cloud, gaussian, law_of, sizes
from attractor.theory.theorem import Case, Measurement, Status, Theorem, each


def drift(case: Case) -> Tensor:
    """Velocity of the mean."""
    tokens = case.tokens
    return (tokens.weights[:, None] * case.law.velocity(tokens)).sum(-2) / tokens.weights.sum()


def conclude(case: Case, seen: Tensor) -> tuple[Measurement, ...]:
    tokens = case.tokens
    mean = (tokens.weights[:, None] * tokens.points).sum(-2) / tokens.weights.sum()
    missed = (seen - case.matrices.value @ mean).norm()
    size = torch.linalg.matrix_norm(case.matrices.values, 2).sum() * tokens.points.norm(dim=-1).max()
    return (Measurement("the mean moves by V alone", -float(missed / size), 1e-9),)


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    kernel = Sinkhorn(eps=float(draw.uniform(0.5, 2.0)), tolerance=1e-12)
    return Case(law_of(draw, gaussian(draw, d), gaussian(draw, d), kernel=kernel), cloud(draw, n, d))


def plain(draw: Draw) -> Case:
    n, d = sizes(draw)
    return Case(law_of(draw, gaussian(draw, d), gaussian(draw, d)), cloud(draw, n, d))


THEOREM = Theorem(
    key="meanfield.T10",
    title="Sinkhorn moves the mean linearly",
    statement=r"Sinkhorn attention with full visibility: \(\sum_i m_i\Gamma(x_i) = V\sum_i m_i x_i\) exactly, for "
    r"any tokens; the mean is \(e^{Vt}\alpha_0\).",
    citation=mean_field.cite("Sinkhorn attention"),
    status=Status.HERE,
    hypotheses=(mean_field.kernels("sinkhorn"), given.TOKENS, given.FULL, mean_field.BARE),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"sinkhorn attention": plain},
    gather=each(drift),
    proof="Columns of the coupling sum to the masses.",
)
