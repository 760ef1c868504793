"""Laws on spheres and ellipsoids in unit-sphere coordinates, with their hypotheses and rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Attention, Kernel, Schedule, has_kernel
from attractor.observables import hemisphere_margin
from attractor.spaces import Ellipsoid, Space, Sphere
from attractor.theory.conditions import Hypothesis, Margin, decided, matrices, nonzero, strictly, vanishing, weakly
from attractor.theory.theorem import Case, negated
from attractor.weights import asymmetry

TINY = 1e-300


@dataclass(frozen=True, eq=False)
class Sphered:
    """``interactions`` P and ``values`` U, both (h, d, d), of a law in coordinates y = root x on the unit sphere."""

    interactions: Tensor
    values: Tensor
    root: Tensor

    @cached_property
    def total(self) -> Tensor:
        """The sum of the values."""
        return self.values.sum(0)

    @cached_property
    def shares(self) -> Tensor:
        """c_h / sum c for the closest values of the form c_h U."""
        square = self.total.square().sum().clamp_min(TINY)
        return (self.values * self.total).sum((-2, -1)) / square

    @cached_property
    def uncommon(self) -> float:
        """How far the values are from one direction, relative to their size."""
        missed = self.values - self.shares[:, None, None] * self.total
        return float(missed.norm() / self.values.norm().clamp_min(TINY))

    @cached_property
    def weight(self) -> float:
        """c of the total value closest to c I."""
        return float(self.total.diagonal().mean())

    @cached_property
    def unlike_identity(self) -> float:
        """How far all values are from multiples of the identity."""
        eye = torch.eye(len(self.total), dtype=self.total.dtype)
        missed = self.values - self.values.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * eye
        return float(missed.norm() / self.values.norm().clamp_min(TINY))

    @cached_property
    def steepness(self) -> Tensor:
        """Spectral norm of every interaction: scores on the unit sphere lie between minus and plus this."""
        return torch.linalg.matrix_norm(self.interactions, 2)

    def points(self, x: Tensor) -> Tensor:
        """Points (or velocities) of the space as points of the unit sphere."""
        return x @ self.root.to(x).mT


def root_of(space: Space, d: int) -> Tensor:
    """The matrix that carries a space to the unit sphere."""
    if isinstance(space, Ellipsoid):
        return space.root().double()
    radius = space.radius if isinstance(space, Sphere) else 1.0
    return torch.eye(d, dtype=torch.float64) / radius


def laws_of(case: Case) -> tuple[Attention, ...]:
    """The laws between which a case's law moves: one, or those of an interpolated schedule."""
    law = case.law
    parts = law.laws if isinstance(law, Schedule) and law.function is None else (law,)
    found = tuple(part for part in parts if isinstance(part, Attention))
    if len(found) < len(parts):
        raise UnsupportedError(f"the law is {type(law).__name__}, which has no matrices to look at")
    return found


def sphered(case: Case, law: Attention | None = None) -> Sphered:
    """The first law of the case (or the given one) on the unit sphere."""
    found = matrices(laws_of(case)[0] if law is None else law)
    root = root_of(case.space, found.interactions.shape[-1])
    inverse = torch.linalg.inv(root)
    return Sphered(inverse.mT @ found.interactions @ inverse, root @ found.values @ inverse, root)


def _curved(case: Case) -> Margin:
    return decided(isinstance(case.space, (Sphere, Ellipsoid)), f"the space is {case.space.name}")


def _averages(case: Case) -> Margin:
    try:
        laws = laws_of(case)
    except UnsupportedError as error:
        return decided(False, str(error))
    kernels = {law.kernel.name for law in laws if isinstance(law.kernel, Kernel)}
    average = all(has_kernel(law, "softmax", "l2", "sinkhorn") for law in laws)
    return decided(average, f"the kernel is {', '.join(sorted(kernels))}")


def _pure(case: Case) -> Margin:
    """Values are moved tokens and nothing else."""
    laws = laws_of(case)
    biased = any(
        bias is not None and bool((bias != 0).any()) for law in laws for bias in (law.value_bias, law.output_bias)
    )
    shifted = any(law.positions is not None and law.positions.shifts_values for law in laws)
    reason = "values are biased" if biased else "positions are added to the values" if shifted else "plain values"
    return decided(not biased and not shifted, reason)


def _identity(case: Case) -> Margin:
    return vanishing(max(sphered(case, law).unlike_identity for law in laws_of(case)))


def _attractive(case: Case) -> Margin:
    parts = [sphered(case, law) for law in laws_of(case)]
    if any(abs(part.weight - parts[0].weight) > 1e-9 * abs(parts[0].weight) for part in parts):
        return decided(False, "the total value changes with time")
    scalars = torch.stack([part.values.diagonal(dim1=-2, dim2=-1).mean(-1) for part in parts])
    size = float(scalars.abs().sum(-1).max())
    least = float(scalars.min()) / max(size, TINY)
    return weakly(least) if least < 0 else strictly(parts[0].weight / max(size, TINY))


def _common(case: Case) -> Margin:
    parts = [sphered(case, law) for law in laws_of(case)]
    drift = max(float((part.total - parts[0].total).norm() / parts[0].total.norm().clamp_min(TINY)) for part in parts)
    return vanishing(max(drift, *(part.uncommon for part in parts)))


def _uniform(case: Case) -> Margin:
    masses = case.tokens.masses
    level = masses is None or bool((masses - masses.mean()).abs().max() <= 1e-12 * masses.mean())
    return decided(level and case.tokens.positions is None, "equal masses" if level else "unequal masses")


def _causal(case: Case) -> Margin:
    masks = {getattr(law.mask, "name", "no") for law in laws_of(case)}
    plain = case.tokens.positions is None
    return decided(masks == {"causal"} and plain, f"{', '.join(sorted(masks))} mask")


def _full(case: Case) -> Margin:
    masks = {getattr(law.mask, "name", "no") for law in laws_of(case)}
    return decided(masks == {"no"}, f"{', '.join(sorted(masks))} mask")


def _hemisphere(case: Case) -> Margin:
    margin = float(hemisphere_margin(case.tokens, space=case.space))
    return strictly(margin) if margin > 0 else decided(False, "the hull of the tokens contains the origin")


CURVED = Hypothesis("sphere or ellipsoid", r"x_i^\top W x_i = 1", _curved, structural=True)
AVERAGES = Hypothesis("averaging weights", r"w_{ij} \ge 0,\ \sum_j w_{ij} = 1", _averages, structural=True)
PURE = Hypothesis(
    "plain values", r"\dot x_i = \Pi_{x_i}\textstyle\sum_h\sum_j w^h_{ij} V_h x_j", _pure, structural=True
)
FULL = Hypothesis("full attention", r"w_{ij} > 0 \text{ for all } j", _full, structural=True)
MANY = 4096  # tokens that are still compared pair by pair
GENERIC_BAND = 1e-9


def _generic(case: Case) -> Margin:
    """Exceptions of "almost every" that can be seen: two opposite tokens."""
    points = sphered(case).points(case.entered.points)
    if len(points) < 2 or len(points) > MANY:
        return decided(True, f"{len(points)} tokens, not compared")
    sums = torch.cdist(points, -points)
    sums.fill_diagonal_(float("inf"))
    return nonzero(float(sums.min()) / 2.0, GENERIC_BAND, "distance of a token to the opposite of another")


GENERIC = Hypothesis("generic start", r"x_i \ne -x_j", _generic)
CAUSAL = Hypothesis("causal mask", r"w_{ij} = 0 \text{ for } j > i", _causal, structural=True)
EQUAL_MASSES = Hypothesis("equal masses", r"m_i = 1/n", _uniform, structural=True)
IDENTITY = Hypothesis("identity values", r"V_h = c_h I", _identity)
ATTRACTIVE = Hypothesis("attraction", r"c_h \ge 0,\ \textstyle\sum_h c_h > 0", _attractive)
COMMON = Hypothesis("common value", r"V_h = c_h V", _common, structural=True)
SAME_SIGN = Hypothesis(
    "heads agree",
    r"c_h \ge 0",
    lambda case: weakly(min(float(sphered(case, law).shares.min()) for law in laws_of(case))),
)
HEMISPHERE = Hypothesis("open hemisphere", r"\rho(x(0)) > 0", _hemisphere)
VALUE_SYMMETRIC = Hypothesis(
    "value symmetric", r"W V = (W V)^\top", lambda case: vanishing(asymmetry(sphered(case).total))
)
ON_SPHERE = (CURVED, AVERAGES, PURE)


def reverse(case: Case) -> Case:
    """Every velocity reversed, also those of a schedule."""
    law = case.law
    if not isinstance(law, Schedule):
        return negated(case)
    return replace(case, law=replace(law, laws=tuple(replace(part, value=-part.value) for part in laws_of(case))))


def spread(points: Tensor) -> Tensor:
    """Largest distance of a token from the first, (...)."""
    return (points - points[..., :1, :]).norm(dim=-1).amax(-1)


def apart(points: Tensor, target: Tensor) -> Tensor:
    """Largest distance of a token from a point, (...)."""
    return (points - target).norm(dim=-1).amax(-1)


def rate_within(times: Tensor, values: Tensor, low: float = 1e-9, high: float = 1e-4) -> float:
    """Rate r of values ~ e^{rt}, fitted where the values fall from one bound to the other; NaN where fewer than four do."""
    # once below, what an integrator does at rest may lift them again
    above = (values > low).to(torch.int64).cumprod(0).bool()
    inside = above & (values < high)
    if int(inside.sum()) < 4:
        return float("nan")
    return float(np.polyfit(times[inside].numpy(), values[inside].log().numpy(), 1)[0])


def odds(values: Tensor) -> Tensor:
    """v^2 / (1 - v^2), of numbers in [0, 1)."""
    square = values.clamp(0.0, 1.0).square()
    return square / (1.0 - square).clamp_min(torch.finfo(values.dtype).tiny)


def tangent_spectrum(field: Callable[[Tensor], Tensor], points: Tensor) -> Tensor:
    """Eigenvalues of the Jacobian of a map of tokens (n, d) on the unit sphere, in tangent directions, by automatic differentiation."""
    n, d = points.shape

    def flat(row: Tensor) -> Tensor:
        at = row.reshape(n, d)
        return field(at / at.norm(dim=-1, keepdim=True)).reshape(-1)

    jacobian = torch.autograd.functional.jacobian(flat, points.reshape(-1))
    assert isinstance(jacobian, Tensor)
    tangent = torch.block_diag(*(torch.linalg.svd(row[None]).Vh[1:] for row in points))
    return torch.linalg.eigvals(tangent @ jacobian @ tangent.mT)
