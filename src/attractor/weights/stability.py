r"""Proved bounds of the rightmost eigenvalue and of the spectral radius of matrices that are known up to rounding.

A computed eigenvalue of a matrix that is far from normal may be off by much more than rounding: near a Jordan block of size n an error
:math:`\delta` moves eigenvalues by :math:`\delta^{1/n}`. The bounds here do not rest on computed eigenvalues. They hold for every matrix
within ``error`` (spectral norm) of the given one:

- :math:`\operatorname{tr}V/n \le \max\operatorname{Re}\lambda \le \lambda_{\max}(\operatorname{sym} V)`;
- Newton-Kantorovich at a computed eigenpair encloses one eigenvalue, hence bounds the rightmost from below:
  with J the Jacobian of :math:`(Vx - \lambda x,\ x_0^*x - 1)` and r the residual, :math:`|\lambda - \tilde\lambda| \le 2\|J^{-1}\|r`
  if :math:`\|J^{-1}\|^2r \le 1/2`;
- with :math:`V_s = V - sI` and :math:`V_s^\top H + HV_s \prec 0`, H has as many negative eigenvalues as V has eigenvalues to the right
  of s (the inertia theorem behind ``regimes.T5``). The solution of :math:`V_s^\top H + HV_s = -I` is such an H if its residual is below 1.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy import linalg
from torch import Tensor

EPS = float(np.finfo(np.float64).eps)
LARGEST = 1 / EPS  # of a solution of a Lyapunov equation: beyond it every digit is lost
CUTS = (0.5, 1 / 64)  # where bounds are tried, as shares of the computed value


@dataclass(frozen=True)
class Bounds:
    """A computed ``value`` and bounds of the true one; infinite where nothing was proved or nothing was asked."""

    value: float
    low: float = -math.inf
    high: float = math.inf

    @property
    def sign(self) -> int:
        """1 or -1 where the sign of the true value is proved, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def rounding_error(matrix: Tensor, size: float | None = None) -> float:
    """Return what float64 leaves open of a matrix, in spectral norm; ``size`` is the norm of the factors it was computed from."""
    whole = float(torch.linalg.vector_norm(matrix)) if size is None else size
    return (matrix.shape[-1] + 2) * EPS * whole


def bound_abscissa(matrix: Tensor, error: float | None = None, rightmost: complex | None = None) -> Bounds:
    """Bound the largest real part of an eigenvalue on the side that decides its sign.

    Parameters
    ----------
    matrix : (n, n), float64.
    error : spectral norm of what is not known of the matrix; by default its rounding.
    rightmost : the computed eigenvalue with the largest real part, if it is known.
    """
    error = rounding_error(matrix) if error is None else error
    size = float(torch.linalg.vector_norm(matrix))
    if rightmost is None:
        eigenvalues = torch.linalg.eigvals(matrix)
        rightmost = complex(eigenvalues[int(eigenvalues.real.argmax())])
    value = rightmost.real
    if not math.isfinite(size) or size < 1e-290:  # denormal numbers have lost digits
        return Bounds(value)
    scaled, error, top = matrix.numpy() / size, error / size, rightmost / size
    if value > 0:
        low = _mean_bound(scaled, error)
        low = low if low > 0 else enclose_eigenvalue(scaled, top, error).low
        if low <= 0:
            low = max([cut * top.real for cut in CUTS if _count_right(scaled, cut * top.real, error)], default=low)
        return Bounds(value, size * low)
    high = _form_bound(scaled, error)
    if high >= 0 > top.real:
        high = min([cut * top.real for cut in CUTS if _count_right(scaled, cut * top.real, error) == 0], default=high)
    return Bounds(value, high=size * high)


def bound_radius(matrix: Tensor) -> Bounds:
    r"""Bound the spectral radius on the side of 1 where it was computed.

    Above by the norm, or by :math:`H \succ 0` with :math:`B^\top HB - H \prec 0`; below by an enclosed eigenvalue.
    """
    given, error = matrix.numpy(), rounding_error(matrix)
    eigenvalues = linalg.eigvals(given, check_finite=False)
    top = complex(eigenvalues[int(np.abs(eigenvalues).argmax())])
    value = abs(top)
    if value >= 1:
        return Bounds(value, abs(top) - enclose_eigenvalue(given, top, error).value)
    norm = float(np.linalg.norm(given, 2)) + error
    if norm < 1:
        return Bounds(value, high=norm)
    for share in CUTS:
        level = 1 - share * (1 - value)  # B / level has radius below 1
        turned, rough = given / level, error / level
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a poor solution is found out by its residual
                form = linalg.solve_discrete_lyapunov(turned.T, np.eye(len(given)))
        except (np.linalg.LinAlgError, ValueError):
            continue
        if not np.isfinite(form).all() or np.abs(form).max() > LARGEST:
            continue
        form = (form + form.T) / 2
        left = turned.T @ form @ turned - form + np.eye(len(given))
        spread, grown = np.linalg.norm(form), np.linalg.norm(turned)
        slack = (
            np.linalg.norm(left)
            + (2 * grown + rough) * rough * spread
            + 8 * len(given) * EPS * spread * (1 + grown) ** 2
        )
        if slack < 1 and _negative(form) == 0:
            return Bounds(value, high=level)
    return Bounds(value)


def prove_signs(matrices: Tensor, eigenvalues: Tensor, sizes: Tensor | None = None) -> list[int]:
    """Return the proved sign of the largest real part of each of (n, m, m) matrices, 0 where rounding leaves it open.

    Parameters
    ----------
    eigenvalues : (n, m), as computed.
    sizes : (n,), norms of the factors that the matrices were computed from; by default their own.
    """
    rightmost = eigenvalues.gather(-1, eigenvalues.real.argmax(-1, keepdim=True))[..., 0]
    abscissae = rightmost.real
    m, whole = matrices.shape[-1], torch.linalg.vector_norm(matrices, dim=(-2, -1))
    errors = (m + 2) * EPS * (whole if sizes is None else torch.maximum(whole, sizes.to(whole)))
    errors = errors.double()
    means = matrices.diagonal(dim1=-2, dim2=-1).mean(-1).double() - 2 * errors
    signs = torch.where((abscissae > 0) & (means > 0), 1, 0)
    rest = (abscissae < 0).nonzero()[:, 0]
    if len(rest):
        forms = torch.linalg.eigvalsh((matrices[rest] + matrices[rest].mT) / 2)[..., -1].double() + 2 * errors[rest]
        signs[rest] = torch.where(forms < 0, -1, 0)
    for index in (signs == 0).nonzero()[:, 0].tolist():
        matrix, error = matrices[index].double().cpu(), float(errors[index])
        signs[index] = bound_abscissa(matrix, error, complex(rightmost[index])).sign
    return signs.tolist()


@dataclass(frozen=True)
class Disc:
    """An eigenvalue lies within ``value`` of the computed one; ``low`` bounds its real part from below."""

    value: float
    low: float


def enclose_eigenvalue(matrix: np.ndarray, eigenvalue: complex, error: float) -> Disc:
    """Enclose the eigenvalue near a computed one, simple or not; the radius is infinite if that fails."""
    found = _enclose_simple(matrix, eigenvalue, error)
    return found if math.isfinite(found.value) else _enclose_cluster(matrix, eigenvalue, error)


def _enclose_cluster(matrix: np.ndarray, eigenvalue: complex, error: float) -> Disc:
    r"""Enclose by :math:`V = X(D + R)X^{-1}`: discs of radius :math:`\|R\|` that overlap hold as many eigenvalues as there are of them."""
    n = len(matrix)
    values, basis = np.linalg.eig(matrix)
    try:
        inverse = np.linalg.inv(basis)
    except np.linalg.LinAlgError:
        return Disc(math.inf, -math.inf)
    condition = float(np.linalg.norm(basis) * np.linalg.norm(inverse))
    missed = float(np.linalg.norm(inverse @ basis - np.eye(n))) + 4 * n * EPS * condition
    if not missed < 0.5:
        return Disc(math.inf, -math.inf)
    rest = float(np.linalg.norm(inverse @ matrix @ basis - np.diag(values)))
    radius = (rest + condition * (error + 8 * n * EPS * float(np.linalg.norm(matrix)))) / (1 - missed)
    radius = 2 * n * radius + float(np.abs(values - eigenvalue).min())
    return Disc(radius, eigenvalue.real - radius)


def _enclose_simple(matrix: np.ndarray, eigenvalue: complex, error: float) -> Disc:
    """Enclose by the theorem of Newton and Kantorovich."""
    n, nothing = len(matrix), Disc(math.inf, -math.inf)
    size = max(float(np.linalg.norm(matrix)), 1e-300)
    scaled, top, error = matrix / size, eigenvalue / size, error / size
    shifted = scaled - (top + 4 * n * EPS) * np.eye(n)
    try:
        vector = _invert_power(shifted)
        if vector is None:
            return nothing
        top = complex(np.vdot(vector, scaled @ vector))  # the Rayleigh quotient
        jacobian = np.block([[scaled - top * np.eye(n), -vector[:, None]], [vector.conj()[None], np.zeros((1, 1))]])
        inverse = np.linalg.inv(jacobian)
    except (np.linalg.LinAlgError, ValueError):
        return nothing
    steep = float(np.linalg.norm(inverse))
    # the inverse that was computed is one up to ``missed``; the matrix is known up to ``error``
    missed = float(np.linalg.norm(inverse @ jacobian - np.eye(n + 1))) + steep * (error + 4 * n * EPS)
    if not missed < 0.5:
        return nothing
    steep /= 1 - missed
    residual = float(np.linalg.norm(scaled @ vector - top * vector)) + error + 4 * n * EPS
    if not steep * steep * residual <= 0.5:
        return nothing
    radius = size * (2 * steep * residual)
    offset = abs(top * size - eigenvalue)
    return Disc(radius + offset, size * top.real - radius)


def _invert_power(shifted: np.ndarray) -> np.ndarray | None:
    """Return the vector that the inverse of a matrix stretches most, by three steps of inverse iteration."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # a matrix that is singular to the last digit is what is hoped for
        factors = linalg.lu_factor(shifted, check_finite=False)
        vector = np.ones(len(shifted)) / math.sqrt(len(shifted))
        for _ in range(3):
            vector = linalg.lu_solve(factors, vector, check_finite=False)
            vector = vector / np.abs(vector).max()
            vector = vector / np.linalg.norm(vector)
    return vector if np.isfinite(vector).all() else None


def _mean_bound(matrix: np.ndarray, error: float) -> float:
    """tr V / n, which the largest real part is not below."""
    return float(np.trace(matrix)) / len(matrix) - 2 * error - 2 * EPS


def _form_bound(matrix: np.ndarray, error: float) -> float:
    """The largest eigenvalue of sym V, which no real part exceeds."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[-1]) + 2 * error + 4 * len(matrix) * EPS


def _count_right(matrix: np.ndarray, cut: float, error: float) -> int | None:
    """Return how many eigenvalues lie to the right of ``cut``; None if that is not proved."""
    n = len(matrix)
    shifted = matrix - cut * np.eye(n)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a poor solution is found out by its residual
            form = linalg.solve_continuous_lyapunov(shifted.T, -np.eye(n))
    except (np.linalg.LinAlgError, ValueError):
        return None
    if not np.isfinite(form).all() or np.abs(form).max() > LARGEST:
        return None
    form = (form + form.T) / 2
    spread = float(np.linalg.norm(form))
    left = shifted.T @ form + form @ shifted + np.eye(n)
    slack = float(np.linalg.norm(left)) + 2 * (error + 4 * n * EPS) * spread
    return _negative(form) if slack < 1 else None  # False also for NaN


def _negative(form: np.ndarray) -> int | None:
    """Return the number of negative eigenvalues of a symmetric matrix; None where one is zero within rounding."""
    values = np.linalg.eigvalsh((form + form.T) / 2)
    unclear = np.abs(values) <= 8 * len(form) * EPS * np.abs(values).max()
    return None if unclear.any() else int((values < 0).sum())
