"""Laws on spheres and ellipsoids in coordinates of the unit sphere: matrices, hypotheses, rates, linearisation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Attention, Kernel, Schedule, has_kernel
from attractor.observables import hemisphere_margin
from attractor.solvers import velocity
from attractor.states import Tokens
from attractor.theory import hypotheses
from attractor.theory.conditions import Hypothesis, Margin, compute_matrices
from attractor.theory.theorem import Case
from attractor.weights import asymmetry

TINY = 1e-300


@dataclass(frozen=True, eq=False)
class SphereMatrices:
    """``interactions`` P and ``values`` U, both (h, d, d), of a law in coordinates y = ``root`` x on the unit sphere."""

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
    def value_misfit(self) -> float:
        """Distance of the values from c_h U, relative to their norm."""
        missed = self.values - self.shares[:, None, None] * self.total
        return float(missed.norm() / self.values.norm().clamp_min(TINY))

    @cached_property
    def weight(self) -> float:
        """The c for which c I is closest to the total value."""
        return float(self.total.diagonal().mean())

    @cached_property
    def identity_misfit(self) -> float:
        """Distance of the values from multiples of the identity, relative to their norm."""
        eye = torch.eye(len(self.total), dtype=self.total.dtype)
        missed = self.values - self.values.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * eye
        return float(missed.norm() / self.values.norm().clamp_min(TINY))

    @cached_property
    def score_bounds(self) -> Tensor:
        """Spectral norm of every interaction, (h,): the largest absolute score on the unit sphere."""
        return torch.linalg.matrix_norm(self.interactions, 2)

    def map_points(self, x: Tensor) -> Tensor:
        """Map points (or velocities) of the space to the unit sphere."""
        return x @ self.root.to(x).mT


def list_laws(case: Case) -> tuple[Attention, ...]:
    """Return the attention laws of a case: one, or those that a schedule interpolates."""
    law = case.law
    parts = law.laws if isinstance(law, Schedule) and law.function is None else (law,)
    found = tuple(part for part in parts if isinstance(part, Attention))
    if len(found) < len(parts):
        raise UnsupportedError(f"the law is {type(law).__name__}, which has no matrices")
    return found


def to_sphere(case: Case, law: Attention | None = None) -> SphereMatrices:
    """Return the matrices on the unit sphere of the first law of a case, or of another law."""
    found = compute_matrices(list_laws(case)[0] if law is None else law)
    root = case.space.sphere_matrix(found.interactions.shape[-1])
    inverse = torch.linalg.inv(root)
    return SphereMatrices(inverse.mT @ found.interactions @ inverse, root @ found.values @ inverse, root)


def _on_sphere_margin(case: Case) -> Margin:
    return Margin.boolean(case.space.is_curved, f"the space is {case.space.name}")


def _averaging_margin(case: Case) -> Margin:
    try:
        laws = list_laws(case)
    except UnsupportedError as error:
        return Margin.boolean(False, str(error))
    kernels = {law.kernel.name for law in laws if isinstance(law.kernel, Kernel)}
    average = all(has_kernel(law, "softmax", "l2", "sinkhorn") for law in laws)
    return Margin.boolean(average, f"the kernel is {', '.join(sorted(kernels))}")


def _plain_values_margin(case: Case) -> Margin:
    """Values are V x_j: no value or output bias, no positions added to the values."""
    laws = list_laws(case)
    biased = any(
        bias is not None and bool((bias != 0).any()) for law in laws for bias in (law.value_bias, law.output_bias)
    )
    shifted = any(law.positions is not None and law.positions.shifts_values for law in laws)
    reason = "values are biased" if biased else "positions are added to the values" if shifted else "plain values"
    return Margin.boolean(not biased and not shifted, reason)


def _identity_margin(case: Case) -> Margin:
    return Margin.zero(max(to_sphere(case, law).identity_misfit for law in list_laws(case)))


def _attractive_margin(case: Case) -> Margin:
    parts = [to_sphere(case, law) for law in list_laws(case)]
    if any(abs(part.weight - parts[0].weight) > 1e-9 * abs(parts[0].weight) for part in parts):
        return Margin.boolean(False, "the total value changes with time")
    scalars = torch.stack([part.values.diagonal(dim1=-2, dim2=-1).mean(-1) for part in parts])
    size = float(scalars.abs().sum(-1).max())
    least = float(scalars.min()) / max(size, TINY)
    return Margin.nonnegative(least) if least < 0 else Margin.positive(parts[0].weight / max(size, TINY))


def _common_margin(case: Case) -> Margin:
    parts = [to_sphere(case, law) for law in list_laws(case)]
    drift = max(float((part.total - parts[0].total).norm() / parts[0].total.norm().clamp_min(TINY)) for part in parts)
    return Margin.zero(max(drift, *(part.value_misfit for part in parts)))


def _uniform_margin(case: Case) -> Margin:
    masses = case.tokens.masses
    level = masses is None or bool((masses - masses.mean()).abs().max() <= 1e-12 * masses.mean())
    return Margin.boolean(level and case.tokens.positions is None, "equal masses" if level else "unequal masses")


def _causal_margin(case: Case) -> Margin:
    masks = {getattr(law.mask, "name", "no") for law in list_laws(case)}
    plain = case.tokens.positions is None
    return Margin.boolean(masks == {"causal"} and plain, f"{', '.join(sorted(masks))} mask")


def _full_margin(case: Case) -> Margin:
    masks = {getattr(law.mask, "name", "no") for law in list_laws(case)}
    return Margin.boolean(masks == {"no"}, f"{', '.join(sorted(masks))} mask")


def _hemisphere_margin(case: Case) -> Margin:
    margin = float(hemisphere_margin(case.initial_tokens, space=case.space))
    return (
        Margin.positive(margin) if margin > 0 else Margin.boolean(False, "the hull of the tokens contains the origin")
    )


ON_SPHERE = Hypothesis("sphere or ellipsoid", r"x_i^\top W x_i = 1", _on_sphere_margin, structural=True)
AVERAGING_WEIGHTS = Hypothesis(
    "averaging weights", r"w_{ij} \ge 0,\ \sum_j w_{ij} = 1", _averaging_margin, structural=True
)
PLAIN_VALUES = Hypothesis(
    "plain values",
    r"\dot x_i = \Pi_{x_i}\textstyle\sum_h\sum_j w^h_{ij} V_h x_j",
    _plain_values_margin,
    structural=True,
)
FULL_AT_ALL_TIMES = Hypothesis("full attention", r"w_{ij} > 0 \text{ for all } j", _full_margin, structural=True)
CAUSAL_IN_ORDER = Hypothesis("causal mask", r"w_{ij} = 0 \text{ for } j > i", _causal_margin, structural=True)
EQUAL_MASSES = Hypothesis("equal masses", r"m_i = 1/n", _uniform_margin, structural=True)
IDENTITY_VALUES = Hypothesis("identity values", r"V_h = c_h I", _identity_margin)
ATTRACTION = Hypothesis("attraction", r"c_h \ge 0,\ \textstyle\sum_h c_h > 0", _attractive_margin)
COMMON_VALUE = Hypothesis("common value", r"V_h = c_h V", _common_margin, structural=True)
SAME_SIGN = Hypothesis(
    "heads agree",
    r"c_h \ge 0",
    lambda case: Margin.nonnegative(min(float(to_sphere(case, law).shares.min()) for law in list_laws(case))),
)
HEMISPHERE = Hypothesis("open hemisphere", r"\rho(x(0)) > 0", _hemisphere_margin)
VALUE_SYMMETRIC = Hypothesis(
    "value symmetric", r"W V = (W V)^\top", lambda case: Margin.zero(asymmetry(to_sphere(case).total))
)
SPHERE_SETTING = (ON_SPHERE, AVERAGING_WEIGHTS, PLAIN_VALUES)
# one softmax head without biases and positions, on tokens of equal mass
_FORM = (EQUAL_MASSES, hypotheses.NO_POSITIONS, hypotheses.UNBIASED, hypotheses.ONE_HEAD)
_SOFTMAX = (hypotheses.SOFTMAX, hypotheses.TOKENS, ON_SPHERE, PLAIN_VALUES)
FULL_HEAD = (*_SOFTMAX, hypotheses.FULL, *_FORM)
CAUSAL_HEAD = (*_SOFTMAX, CAUSAL_IN_ORDER, *_FORM)


def max_distance(points: Tensor, target: Tensor | None = None) -> Tensor:
    """Return the largest distance of a token from a point, by default from the first token, (...)."""
    return (points - (points[..., :1, :] if target is None else target)).norm(dim=-1).amax(-1)


def fit_decay_rate(times: Tensor, values: Tensor, low: float = 1e-9, high: float = 1e-4) -> float:
    """Fit the rate r of values ~ e^{rt} while they fall from ``high`` to ``low``; NaN for fewer than four values."""
    # at rest, errors of the integrator may lift them above the bound again
    above = (values > low).to(torch.int64).cumprod(0).bool()
    inside = above & (values < high)
    if int(inside.sum()) < 4:
        return float("nan")
    return float(np.polyfit(times[inside].numpy(), values[inside].log().numpy(), 1)[0])


def compute_odds(values: Tensor) -> Tensor:
    """Return v^2 / (1 - v^2) for v in [0, 1)."""
    square = values.clamp(0.0, 1.0).square()
    return square / (1.0 - square).clamp_min(torch.finfo(values.dtype).tiny)


def linearize(case: Case, points: Tensor, step: float | None = None) -> Tensor:
    """Return the eigenvalues of the linearised velocity, or of a layer of size ``step``, in tangent directions.

    ``points`` (n, d) lie on the unit sphere; the Jacobian is computed by automatic differentiation.
    """
    found, (n, d) = to_sphere(case), points.shape
    inverse = torch.linalg.inv(found.root)

    def field(row: Tensor) -> Tensor:
        at = row.reshape(n, d)
        tokens = Tokens.unchecked((at / at.norm(dim=-1, keepdim=True)) @ inverse.mT)
        moved = velocity(case.law, tokens, case.space) if step is None else case.law.layer(tokens, step, case.space)
        return found.map_points(moved).reshape(-1)

    jacobian = torch.autograd.functional.jacobian(field, points.reshape(-1))
    assert isinstance(jacobian, Tensor)
    tangent = torch.block_diag(*(torch.linalg.svd(row[None]).Vh[1:] for row in points))
    return torch.linalg.eigvals(tangent @ jacobian @ tangent.mT)
