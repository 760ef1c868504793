"""Gaussian measures: a mean and a covariance, kept as a factor so that it stays positive semi-definite."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import ellipse, html_card
from attractor.serialization import Record
from attractor.states.arrays import check_finite, to_float_tensor

GRADED = 100.0  # ratio of standard deviations above which correlations are factored


def _rounding(given: object) -> float:
    """Return the relative rounding error of input in lower precision than float64, otherwise 0."""
    kind = getattr(given, "dtype", None)
    if isinstance(kind, torch.dtype) and kind.is_floating_point and kind != torch.float64:
        return torch.finfo(kind).eps
    return 1.2e-7 if str(kind) in ("float32", "float16") else 0.0


def factor_of(covariance: Tensor) -> Tensor:
    """L (..., d, d) with L L' the covariance; eigenvalues within rounding are set to zero.

    Entries are rounded relative to the standard deviations of their row and column. Where these differ much, the correlations are
    factored instead, so that small variances keep their digits.
    """
    values, vectors = torch.linalg.eigh(covariance)
    factor = _cut(vectors, values)
    deviations = covariance.detach().diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    unit = torch.where(deviations > 0, deviations, deviations.amax(-1, keepdim=True))
    graded = (unit.amax(-1) > GRADED * unit.amin(-1)).flatten().nonzero().flatten()
    if not len(graded):
        return factor
    unit = unit.reshape(-1, unit.shape[-1])[graded]
    some = covariance.reshape(-1, *covariance.shape[-2:])[graded] / unit.unsqueeze(-1) / unit.unsqueeze(-2)
    values, vectors = torch.linalg.eigh(some)
    found = unit.unsqueeze(-1) * _cut(vectors, values)
    return factor.reshape(-1, *factor.shape[-2:]).index_copy(0, graded, found).view_as(covariance)


def _cut(vectors: Tensor, values: Tensor) -> Tensor:
    """Eigenvectors times the roots of their ascending eigenvalues, those within rounding set to zero."""
    floor = 4 * values.shape[-1] * torch.finfo(values.dtype).eps * values[..., -1:].clamp_min(0.0)
    return vectors * torch.where(values > floor, values, torch.zeros_like(values)).sqrt().unsqueeze(-2)


@dataclass(frozen=True, eq=False)
class Gaussian(Record):
    r"""The Gaussian measure :math:`N(\alpha, \Sigma)`, in float64.

    Parameters
    ----------
    mean : :math:`\alpha`, (..., d), with any leading ensemble axes.
    covariance : :math:`\Sigma`, (..., d, d), symmetric positive semi-definite.
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        rounding = max(_rounding(part) for part in (self.mean, self.covariance))
        mean = check_finite(to_float_tensor(self.mean, "the mean", torch.float64), "the mean")
        covariance = check_finite(to_float_tensor(self.covariance, "the covariance", torch.float64), "the covariance")
        if mean.ndim < 1 or mean.shape[-1] == 0:
            raise InputError(f"the mean must have shape (..., d), got {tuple(mean.shape)}")
        dim = mean.shape[-1]
        if covariance.ndim < 2 or tuple(covariance.shape[-2:]) != (dim, dim):
            raise InputError(
                f"the covariance must have shape (..., {dim}, {dim}) like the mean, got {tuple(covariance.shape)}"
            )
        if covariance.shape[:-2] != mean.shape[:-1]:
            raise InputError(
                f"mean {tuple(mean.shape)} and covariance {tuple(covariance.shape)} have different ensemble axes"
            )
        size = covariance.detach().abs().amax((-2, -1)).clamp_min(1e-300)
        asymmetry = float(((covariance - covariance.mT).detach().abs().amax((-2, -1)) / size).max())
        if asymmetry > max(1e-10, 16 * rounding):
            raise InputError(f"a covariance must be symmetric; this one is asymmetric by {asymmetry:.2g} of its size")
        covariance = (covariance + covariance.mT) / 2
        lowest = torch.linalg.eigvalsh(covariance.detach())[..., 0]
        if bool((lowest < -max(1e-12, 4 * dim * rounding) * size).any()):
            worst = float(lowest.reshape(-1)[(lowest / size).argmin()])
            raise InputError(f"a covariance must be positive semi-definite; the smallest eigenvalue is {worst:.6g}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @property
    def dim(self) -> int:
        return self.mean.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """The ensemble axes."""
        return self.mean.shape[:-1]

    @property
    def factor(self) -> Tensor:
        r"""L (..., d, d) with :math:`LL^\top = \Sigma`, from the spectral decomposition (``factor_of``).

        Eigenvalues within rounding are set to zero, which preserves the rank: their roots, about 1e-8, would count as further directions.
        """
        return factor_of(self.covariance)

    def rows(self) -> Tensor:
        """Return the mean and the columns of the factor as rows (..., 1 + d, d), the state that a flow integrates."""
        return torch.cat((self.mean.unsqueeze(-2), self.factor.mT), dim=-2)

    def covariance_rows(self) -> Tensor:
        """Return the mean and the covariance as rows (..., 1 + d, d), the state of a flow with noise, which does not keep the rank."""
        return torch.cat((self.mean.unsqueeze(-2), self.covariance), dim=-2)

    def with_points(self, rows: Tensor) -> Gaussian:
        """Return the Gaussian with these rows, without checks."""
        gaussian = object.__new__(Gaussian)
        object.__setattr__(gaussian, "mean", rows[..., 0, :])
        object.__setattr__(gaussian, "covariance", rows[..., 1:, :].mT @ rows[..., 1:, :])
        return gaussian

    def _repr_html_(self) -> str:
        """HTML for notebooks, with the ellipse of the covariance in its first two coordinates."""
        rows = {
            "dimension": self.dim,
            **({"ensemble": " x ".join(map(str, self.batch_shape))} if self.batch_shape else {}),
        }
        mean = self.mean.detach().cpu().reshape(-1, self.dim)[0].numpy()
        covariance = self.covariance.detach().cpu().reshape(-1, self.dim, self.dim)[0].numpy()
        rows |= {"mean": mean, "covariance": covariance}
        return html_card("Gaussian", rows, ellipse(covariance, "shape of the covariance"))

    def __repr__(self) -> str:
        return f"Gaussian(dim={self.dim}, ensemble={tuple(self.batch_shape)})"
