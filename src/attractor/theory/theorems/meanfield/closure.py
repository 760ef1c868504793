r"""T1: under softmax, L2, Sinkhorn and linear attention the field of a Gaussian is affine, so Gaussians stay Gaussian.

Exponential tilting shifts the mean of a Gaussian by :math:`\Sigma u`; L2 is a Gaussian posterior; the Sinkhorn coupling
of Gaussians is Gaussian; linear attention is linear. Checked against quadrature: the measure as Gauss-Hermite nodes,
moved as tokens.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Attention, Closure, Sigmoid, Sinkhorn
from attractor.states import Gaussian, Tokens
from attractor.theory.gaussians import cite, gaussian_setting
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

NODES = 24
REACH = 2.0  # standard deviations within which the quadrature is exact to ten digits
EXACT = ("softmax", "l2", "sinkhorn", "linear")


@dataclass(frozen=True, eq=False)
class Field:
    """White coordinates (m, 2) of the nodes near the mean, the velocities there, and the weights of the nodes."""

    white: Tensor
    velocity: Tensor
    weights: Tensor


def quadrature_nodes(state: Gaussian) -> tuple[Tensor, Tensor, Tensor]:
    """White coordinates, points and weights of a quadrature of the Gaussian."""
    line, weights = np.polynomial.hermite_e.hermegauss(NODES)
    grid = torch.from_numpy(np.stack(np.meshgrid(line, line, indexing="ij"), -1).reshape(-1, 2))
    mass = torch.from_numpy(np.outer(weights, weights).reshape(-1) / weights.sum() ** 2)
    return grid, state.mean + grid @ state.factor.mT, mass


def evaluate_field(case: Case) -> Field:
    state = case.gaussian
    white, points, mass = quadrature_nodes(state)
    motion = case.law.velocity(Tokens(points, mass))
    near = white.norm(dim=-1) <= REACH
    return Field(white[near], motion[near], mass[near])


def conclude(case: Case, found: Field) -> tuple[Measurement, ...]:
    features = torch.cat((torch.ones(len(found.white), 1, dtype=torch.float64), found.white), -1)
    fit = torch.linalg.lstsq(features, found.velocity).solution
    size = float(found.velocity.norm(dim=-1).max())
    bent = float((features @ fit - found.velocity).norm(dim=-1).max()) / size
    measured = [Measurement("the field is affine", -bent, 1e-6)]
    kernel = case.attention.kernel
    if getattr(kernel, "name", "") in EXACT:
        rates = Closure(case.law).velocity(Tokens.unchecked(case.gaussian.rows()))
        measured.append(
            Measurement(
                "with the matrices of the closure",
                -float((features @ rates - found.velocity).norm(dim=-1).max()) / size,
                1e-6,
            )
        )
    return tuple(measured)


def draw_case(rng: Rng, *names: str) -> Case:
    name = names[int(rng.integers(len(names)))]
    kernel = {"sinkhorn": Sinkhorn(eps=1.0, tolerance=1e-12), "sigmoid": Sigmoid(bias=0.5)}.get(name, name)
    heads = int(rng.integers(1, 3)) if name in ("softmax", "l2", "linear") else 1
    parts = [rng.matrix(2, 0.5) for _ in range(2 * heads)]
    value = torch.stack([rng.matrix(2, 1.0) for _ in range(heads)])
    law = Attention(torch.stack(parts[:heads]), torch.stack(parts[heads:]), value, kernel=kernel)
    return Case(law, rng.gaussian(2, 0.2, 0.8, 0.5))


def double_scale(case: Case) -> Case:
    return replace(case, law=replace(case.attention, scale=2.0))


THEOREM = Theorem(
    key="meanfield.T1",
    title="Gaussian closure",
    statement=r"If \(\mu = N(\alpha, \Sigma)\), the field of softmax, L2, Sinkhorn and linear attention, with any "
    r"number of heads, is affine, \(\Gamma(x) = Bx + b\), so "
    r"\(\mu_t\) stays Gaussian with \(\dot\alpha = B\alpha + b\) and \(\dot\Sigma = B\Sigma + \Sigma B^\top\).",
    citation=cite("Gaussian data stay Gaussian; sigmoid and unnormalised attention are not among the kernels that do"),
    status=Status.PAPER,
    hypotheses=gaussian_setting(*EXACT),
    fate="identity",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, *EXACT),
    violate={"kernel": lambda rng: draw_case(rng, "sigmoid", "exponential")},
    gather=gather_each(evaluate_field),
    break_case=double_scale,
    proof="Tilting a Gaussian by an exponential of a linear form moves its mean linearly; L2 is a Gaussian posterior.",
)
