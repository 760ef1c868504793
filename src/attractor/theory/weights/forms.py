r"""Symmetric parts and spectra in numbers, of matrices that may come as products.

A product :math:`L^\top R` of (m, d) factors never becomes d x d: with the thin QR :math:`[L^\top R^\top] = Z [R_1 R_2]` it is
:math:`Z N Z^\top`, :math:`N = R_1 R_2^\top` of size 2m, which has its eigenvalues, norms and symmetric part, and d - 2m zeros
besides.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

BANDS = {torch.float64: 1e-10, torch.float32: 1e-5}  # relative size below which an eigenvalue has no sign


@dataclass(frozen=True)
class Form:
    """The symmetric part S of a matrix.

    ``inertia`` counts positive, negative and other eigenvalues; ``low`` and ``high`` are the extreme ones, ``index`` is tr S over the
    sum of their sizes (1: positive semi-definite, -1: negative), ``asymmetry`` the share of the skew part, ``norm`` the Frobenius norm
    of the matrix. ``sign`` is positive, negative, semidefinite, indefinite, or undetermined where rounding decides.
    """

    inertia: tuple[int, int, int]
    low: float
    high: float
    index: float
    asymmetry: float
    norm: float
    trace: float
    sign: str

    @property
    def margin(self) -> float:
        """How definite it is: positive for definite forms, relative to the norm."""
        return max(self.low, -self.high) / max(self.norm, 1e-300)

    def row(self, prefix: str = "") -> dict[str, Any]:
        """Flat, ready for JSON and tables."""
        row = asdict(self)
        counts = dict(zip(("positive", "negative", "zero"), row.pop("inertia"), strict=True))
        return {f"{prefix}{name}": value for name, value in {**counts, **row}.items()}


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a value map: ``abscissa`` is their largest and ``lowest`` their smallest real part, ``radius`` the largest
    |1 + eigenvalue| (a discrete layer of size one), ``real`` the largest real eigenvalue or None; ``zeros`` more are zero by rank.

    ``stability`` is stable (all real parts negative), unstable, marginal (zeros, the others stable) or undetermined.
    """

    abscissa: float
    lowest: float
    radius: float
    real: float | None
    norm: float
    zeros: int
    stability: str

    def row(self, prefix: str = "") -> dict[str, Any]:
        """Flat, ready for JSON and tables."""
        return {f"{prefix}{name}": value for name, value in asdict(self).items()}


def core(left: Tensor, right: Tensor) -> Tensor:
    """A small matrix (..., s, s), s = min(2m, d), orthogonally equivalent to left' right (..., m, d) but for zeros."""
    m, d = left.shape[-2:]
    if 2 * m >= d:
        return left.mT @ right
    triangle = torch.linalg.qr(torch.cat((left, right), -2).mT, mode="r").R
    return triangle[..., :m] @ triangle[..., m:].mT


def form(matrix: Tensor, zeros: int = 0, band: float = BANDS[torch.float64]) -> Form:
    """The symmetric part of a square matrix that has ``zeros`` more dimensions in its kernel."""
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    norm = float(torch.linalg.vector_norm(matrix))
    cut = band * float(torch.linalg.matrix_norm(matrix, 2)) if norm else 0.0
    positive, negative = int((values > cut).sum()), int((values < -cut).sum())
    low, high, total = float(values[0]), float(values[-1]), float(values.abs().sum())
    if zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    skew = float(torch.linalg.vector_norm(matrix - matrix.mT)) / 2
    return Form(
        (positive, negative, len(values) - positive - negative + zeros),
        low,
        high,
        float(values.sum()) / total if total else 0.0,
        skew / norm if norm else 0.0,
        norm,
        float(matrix.diagonal().sum()),
        _sign(positive, negative, len(values) - positive - negative, zeros),
    )


def _sign(positive: int, negative: int, unclear: int, zeros: int) -> str:
    if positive and negative:
        return "indefinite"
    if unclear:
        return "undetermined"
    if zeros:
        return "semidefinite"
    return "positive" if positive else "negative"


def spectrum(matrix: Tensor, zeros: int = 0, band: float = BANDS[torch.float64]) -> Spectrum:
    """Eigenvalues of a square matrix that has ``zeros`` more dimensions in its kernel."""
    values = torch.linalg.eigvals(matrix)
    norm = float(torch.linalg.matrix_norm(matrix, 2))
    abscissa, lowest = float(values.real.max()), float(values.real.min())
    real = values.real[values.imag.abs() <= 1e-12 * norm]
    if abs(abscissa) <= band * norm or not norm:
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
    )
