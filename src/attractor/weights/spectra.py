"""Symmetric parts and spectra of matrices, dense or factored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from attractor.weights.stability import prove_signs

BANDS = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative size below which an eigenvalue has no sign


EMPTY = torch.zeros(0, dtype=torch.float64)
PIVOT = 1e-4  # rows whose Cholesky pivots differ by more are orthogonalised instead: their Gram matrix has lost digits


@dataclass(frozen=True)
class Form:
    """The symmetric part S of a matrix.

    ``inertia`` counts positive, negative and other eigenvalues; ``low`` and ``high`` are the extreme ones, ``index`` is tr S over the
    sum of their sizes (1: positive semi-definite, -1: negative), ``asymmetry`` the share of the skew part, ``norm`` the Frobenius norm
    of the matrix. ``sign`` is positive, negative, semidefinite, indefinite, undetermined where rounding decides, or undefined
    without a matrix.
    ``eigenvalues`` are those of S, ascending, without the zeros that rank brings.
    """

    inertia: tuple[int, int, int]
    low: float
    high: float
    index: float
    asymmetry: float
    norm: float
    trace: float
    sign: str
    eigenvalues: Tensor = field(default=EMPTY, repr=False, compare=False)

    @classmethod
    def undefined(cls) -> Form:
        """In place of the form of a matrix that does not exist: numbers are NaN, which ``row`` gives as None."""
        nan = float("nan")
        return cls((0, 0, 0), nan, nan, nan, nan, nan, nan, "undefined")

    @property
    def margin(self) -> float:
        """Smallest eigenvalue modulus of a definite form over the norm; negative for indefinite forms."""
        return max(self.low, -self.high) / max(self.norm, 1e-300)

    def row(self, prefix: str = "") -> dict[str, Any]:
        """Return a flat JSON object with prefixed names."""
        row = _plain_fields(self)
        inertia = row.pop("inertia") if self.sign != "undefined" else (None, None, None)
        row.pop("inertia", None)
        counts = dict(zip(("positive", "negative", "zero"), inertia, strict=True))
        return {f"{prefix}{name}": value for name, value in {**counts, **row}.items()}


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a value map: ``abscissa`` is their largest and ``lowest`` their smallest real part, ``radius`` the largest
    |1 + eigenvalue| (a discrete layer of size one), ``real`` the largest real eigenvalue or None; ``zeros`` more are zero by rank.

    ``stability`` is stable (all real parts negative), unstable, marginal (zeros, the others stable) or undetermined, where the sign of
    the abscissa is within the band or not proved: eigenvalues of matrices far from normal may be off by much more than rounding.
    """

    abscissa: float
    lowest: float
    radius: float
    real: float | None
    norm: float
    zeros: int
    stability: str
    eigenvalues: Tensor = field(default=EMPTY, repr=False, compare=False)

    def row(self, prefix: str = "") -> dict[str, Any]:
        """Return a flat JSON object with prefixed names."""
        return {f"{prefix}{name}": value for name, value in _plain_fields(self).items()}


def _plain_fields(record: Form | Spectrum) -> dict[str, Any]:
    """Return the fields of a record except its eigenvalues, None for NaN."""
    values = {item.name: getattr(record, item.name) for item in fields(record) if item.name != "eigenvalues"}
    return {name: None if value != value else value for name, value in values.items()}


def compress_product(left: Tensor, right: Tensor) -> Tensor:
    """Return a small matrix (..., s, s), s = min(2m, d), orthogonally equivalent to left' right (..., m, d) up to zeros."""
    m, d = left.shape[-2:]
    if 2 * m >= d:
        return left.mT @ right
    first, second = triangles(left, right)
    return first @ second.mT


def triangles(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return R_1 and R_2, (..., 2m, m) each, of the thin QR of [left' right'] for (..., m, d) factors with 2m <= d."""
    grams = (left @ left.mT, left @ right.mT, right @ right.mT)
    return triangles_from_grams(
        *grams, lambda rows: torch.cat((left, right), -2).reshape(-1, *_joint_shape(left))[rows]
    )


def triangles_from_grams(
    inner: Tensor, cross: Tensor, outer: Tensor, rows: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the triangles from L L', L R' and R R' (..., m, m); ``rows`` returns the factors [L; R] of chosen matrices."""
    m = inner.shape[-1]
    sizes = [
        gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None].clamp_min(1e-300).sqrt() for gram in (inner, outer)
    ]
    a, b = sizes
    upper = torch.cat((inner / a**2, cross / (a * b)), -1)
    lower = torch.cat((cross.mT / (a * b), outer / b**2), -1)
    both = torch.cat((upper, lower), -2)
    factor, failed = torch.linalg.cholesky_ex(both, upper=True)
    pivots = factor.diagonal(dim1=-2, dim2=-1)
    weak = ((failed != 0) | ~(pivots.amin(-1) > PIVOT * pivots.amax(-1))).reshape(-1).nonzero()[:, 0]
    scale = torch.cat((a.expand(*a.shape[:-1], m), b.expand(*b.shape[:-1], m)), -1)
    factor = (factor * scale).reshape(-1, 2 * m, 2 * m)
    if len(weak):
        factor[weak] = torch.linalg.qr(rows(weak).mT, mode="r").R
    factor = factor.reshape(both.shape)
    return factor[..., :m], factor[..., m:]


def _joint_shape(left: Tensor) -> tuple[int, int]:
    return 2 * left.shape[-2], left.shape[-1]


def form(matrix: Tensor, zeros: int = 0, band: float = BANDS[torch.float64]) -> Form:
    """Describe the symmetric part of a square matrix with ``zeros`` more dimensions in its kernel."""
    return forms(matrix[None], zeros, band)[0]


def forms(matrices: Tensor, zeros: int = 0, band: float = BANDS[torch.float64]) -> list[Form]:
    """Describe the symmetric parts of matrices (n, m, m), each with ``zeros`` more dimensions in its kernel."""
    values = torch.linalg.eigvalsh((matrices + matrices.mT) / 2)
    norms = torch.linalg.vector_norm(matrices, dim=(-2, -1))
    skew = torch.linalg.vector_norm(matrices - matrices.mT, dim=(-2, -1)) / 2
    cut = (band * norms)[:, None]
    columns = (
        (values > cut).sum(-1),
        (values < -cut).sum(-1),
        values[:, 0],
        values[:, -1],
        values.sum(-1) / values.abs().sum(-1).clamp_min(1e-300),
        skew / norms.clamp_min(1e-300),
        norms,
        matrices.diagonal(dim1=-2, dim2=-1).sum(-1),
    )
    rows = zip(*(column.tolist() for column in columns), values, strict=True)
    return [_form(zeros, *row) for row in rows]


def _form(
    zeros: int,
    positive: int,
    negative: int,
    low: float,
    high: float,
    index: float,
    asymmetry: float,
    norm: float,
    trace: float,
    values: Tensor,
) -> Form:
    if zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    unclear = len(values) - positive - negative
    inertia = positive, negative, unclear + zeros
    sign = _sign(positive, negative, unclear, zeros)
    return Form(inertia, low, high, index, asymmetry, norm, trace, sign, values)


def _sign(positive: int, negative: int, unclear: int, zeros: int) -> str:
    if positive and negative:
        return "indefinite"
    if unclear:
        return "undetermined"
    if zeros:
        return "semidefinite"
    return "positive" if positive else "negative"


def spectrum(
    matrix: Tensor, zeros: int = 0, band: float = BANDS[torch.float64], size: Tensor | None = None
) -> Spectrum:
    """Describe the eigenvalues of a square matrix with ``zeros`` more dimensions in its kernel; ``size`` is the norm of its factors."""
    return spectra(matrix[None], zeros, band, None if size is None else size[None])[0]


def spectra(
    matrices: Tensor, zeros: int = 0, band: float = BANDS[torch.float64], sizes: Tensor | None = None
) -> list[Spectrum]:
    """Describe the eigenvalues of matrices (n, m, m), each with ``zeros`` more dimensions in its kernel; ``sizes`` (n,) are the
    norms of the factors whose products they are."""
    values = torch.linalg.eigvals(matrices)
    norms = spectral_norms(matrices)
    signs = prove_signs(matrices, values, sizes)
    columns = zip(values, norms.tolist(), signs, strict=True)
    return [_spectrum(one, norm, sign, zeros, band) for one, norm, sign in columns]


def spectral_norms(matrices: Tensor) -> Tensor:
    """Return the largest singular values, (n,)."""
    sizes = torch.linalg.vector_norm(matrices, dim=(-2, -1)).clamp_min(1e-300)
    scaled = matrices / sizes[:, None, None]
    return sizes * torch.linalg.eigvalsh(scaled @ scaled.mT)[:, -1].clamp_min(0.0).sqrt()


def _spectrum(values: Tensor, norm: float, sign: int, zeros: int, band: float) -> Spectrum:
    abscissa, lowest = float(values.real.max()), float(values.real.min())
    real = values.real[values.imag.abs() <= 1e-12 * norm]
    if abs(abscissa) <= band * norm or not norm or not sign:
        stability = "undetermined"
    else:
        stability = "unstable" if abscissa > 0 else "marginal" if zeros else "stable"
    return Spectrum(
        abscissa,
        lowest,
        max(float((1 + values).abs().max()), 1.0 if zeros else 0.0),
        float(real.max()) if len(real) else None,
        norm,
        zeros,
        stability,
        values,
    )


def symmetrize(matrix: Tensor) -> Tensor:
    """Return (M + M') / 2."""
    return (matrix + matrix.mT) / 2


def asymmetry(matrix: Tensor) -> float:
    """Return |M - M'| / (2 |M|) in the Frobenius norm: 0 for symmetric, 1 for skew matrices."""
    whole = torch.linalg.vector_norm(matrix)
    return float(torch.linalg.vector_norm(matrix - matrix.mT) / 2 / whole.clamp_min(1e-300))


def extremes(matrix: Tensor) -> tuple[float, float]:
    """Return the smallest and largest eigenvalue of the symmetric part over the spectral norm of the matrix."""
    values = torch.linalg.eigvalsh(symmetrize(matrix))
    size = torch.linalg.matrix_norm(matrix, 2).clamp_min(1e-300)
    return float(values[0] / size), float(values[-1] / size)
