"""T10: Sinkhorn attention moves the mean by V alone, for any tokens: the coupling is doubly stochastic."""

import torch
from torch import Tensor

from attractor.laws import Sinkhorn
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FULL, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each


def mean_velocity(case: Case) -> Tensor:
    """Velocity of the mean."""
    tokens = case.tokens
    return (tokens.weights[:, None] * case.law.velocity(tokens)).sum(-2) / tokens.weights.sum()


def conclude(case: Case, seen: Tensor) -> tuple[Measurement, ...]:
    tokens = case.tokens
    mean = (tokens.weights[:, None] * tokens.points).sum(-2) / tokens.weights.sum()
    missed = (seen - case.matrices.value @ mean).norm()
    size = torch.linalg.matrix_norm(case.matrices.values, 2).sum() * tokens.points.norm(dim=-1).max()
    return (Measurement("the mean moves by V alone", -float(missed / size), 1e-9),)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    kernel = Sinkhorn(eps=float(rng.uniform(0.5, 2.0)), tolerance=1e-12)
    return Case(rng.law(rng.matrix(d), rng.matrix(d), kernel=kernel), rng.tokens(n, d))


def sample_softmax(rng: Rng) -> Case:
    n, d = rng.sizes()
    return Case(rng.law(rng.matrix(d), rng.matrix(d)), rng.tokens(n, d))


THEOREM = Theorem(
    key="meanfield.T10",
    title="Sinkhorn moves the mean linearly",
    statement=r"Sinkhorn attention with full visibility: \(\sum_i m_i\Gamma(x_i) = V\sum_i m_i x_i\) exactly, for "
    r"any tokens; the mean is \(e^{Vt}\alpha_0\).",
    citation=cite("Sinkhorn attention"),
    status=Status.HERE,
    hypotheses=(require_kernel("sinkhorn"), TOKENS, FULL, NO_BIASES_OR_POSITIONS),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"sinkhorn attention": sample_softmax},
    gather=gather_each(mean_velocity),
    proof="Columns of the coupling sum to the masses.",
)
