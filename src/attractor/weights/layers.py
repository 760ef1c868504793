"""Quantities of a whole layer: sums over heads, shared metrics, rotary offsets, predicted growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from attractor.errors import UnsupportedError
from attractor.laws import Attention, Norm, Rotary
from attractor.weights.factors import RANK, Factors, SmallMatrices
from attractor.weights.spectra import BANDS, Form, Spectrum, compress_product, extremes, form, forms, spectrum


@dataclass(frozen=True)
class Contraction:
    """In the norm of a metric, relative to the norms of the matrices: ``excess`` is the largest growth of any head in any
    direction, ``strength`` the smallest contraction by the sum of heads."""

    excess: float
    strength: float


def measure_contraction(values: Tensor, metric: Tensor | None = None) -> Contraction | None:
    """Measure growth and contraction of value maps (h, d, d) in the norm of a ``metric`` of either sign, by default the
    Euclidean one; None if the metric is not definite."""
    if metric is not None:
        form = (metric + metric.mT) / 2
        form = form if float(form.diagonal().sum()) > 0 else -form
        lower, failed = torch.linalg.cholesky_ex(form)
        if int(failed) or not bool(lower.isfinite().all()):
            return None
        turned = lower.mT @ values  # C' V C'^-1 is V for y = C' x
        values = torch.linalg.solve_triangular(lower.mT, turned, upper=True, left=False)
    excess = max(extremes(value)[1] for value in values)
    return Contraction(excess, -extremes(values.sum(0))[1])


CLOSE = 1e-4  # residuals below this are computed without cancellation
NEAR = 0.5  # residuals below this may be those of a shared metric whose smallest values a Gram matrix has lost


@dataclass(frozen=True, eq=False)
class SharedMetric:
    """The least-squares A of W_h = A V_h as a product left' right, and the relative ``residual`` of the interactions."""

    left: Tensor
    right: Tensor
    residual: float


def value_spectrum(heads: list[Factors], band: float = BANDS[torch.float64]) -> Spectrum:
    """Return the eigenvalues of the sum of value maps, from the product in the other order where that is smaller."""
    inner, outer = torch.cat([head.value for head in heads]), torch.cat([head.output for head in heads], -1)
    d, r = outer.shape
    size = torch.linalg.vector_norm(inner) * len(heads) ** 0.5  # the columns of each output are orthonormal
    return spectrum(inner @ outer, d - r, band, size) if r < d else spectrum(outer @ inner, 0, band, size)


def interaction_sum(heads: list[Factors], band: float = BANDS[torch.float64]) -> Form:
    """Return the symmetric part of the sum of interactions."""
    small = compress_product(torch.cat([head.query for head in heads]), torch.cat([head.key for head in heads]))
    return form(small, heads[0].dim - len(small), band)


def metric_sum(heads: list[Factors], band: float = BANDS[torch.float64]) -> Form:
    """Return the symmetric part of the sum of V'W over heads (not of the product of the sums, which mixes heads)."""
    left = torch.cat([head.query @ head.output @ head.value for head in heads])
    small = compress_product(left, torch.cat([head.key for head in heads]))
    return form(small, heads[0].dim - len(small), band)


def shared_metric(heads: list[Factors]) -> SharedMetric:
    """Return the least-squares metric of all heads, in factors of the size of the heads."""
    queries, outputs = torch.cat([head.query for head in heads]), torch.cat([head.output for head in heads], -1)
    basis, triangle = torch.linalg.qr(outputs)  # (d, s), (s, sum of ranks)
    blocks = triangle.split([head.rank for head in heads], -1)
    gram = sum(b @ (head.value @ head.value.mT) @ b.mT for b, head in zip(blocks, heads, strict=True))
    assert isinstance(gram, Tensor)
    cross = torch.cat([(head.key @ head.value.mT) @ b.mT for b, head in zip(blocks, heads, strict=True)])
    weights, sound = _divide(cross, gram)
    total = sum(float(((head.query @ head.query.mT) * (head.key @ head.key.mT)).sum()) for head in heads)
    explained = float(((queries @ queries.mT) * (weights @ cross.mT)).sum())
    residual = max(0.0, 1.0 - explained / max(total, 1e-300)) ** 0.5
    if residual < NEAR and not sound:
        weights = _solve_by_qr(heads, blocks)
    if residual < (CLOSE if sound else NEAR):
        residual = _exact_residual(heads, queries, blocks, weights, total)
    return SharedMetric(queries, weights @ basis.mT, residual)


def _divide(cross: Tensor, gram: Tensor) -> tuple[Tensor, bool]:
    """Return cross times the pseudo-inverse of a positive semi-definite matrix, and whether that matrix is far from singular;
    if not, singular values below 1e-6 of the largest are lost."""
    triangle, failed = torch.linalg.cholesky_ex(gram)
    pivots = triangle.diagonal()
    if int(failed) == 0 and bool(pivots.amin() > 1e-3 * pivots.amax()):
        return torch.cholesky_solve(cross.mT, triangle).mT, True
    return cross @ torch.linalg.pinv(gram, rtol=RANK, hermitian=True), False


def _solve_by_qr(heads: list[Factors], blocks: tuple[Tensor, ...]) -> Tensor:
    r"""The same weights without a Gram matrix: with the thin QR :math:`V_h^\top = Z_h R_h` of every value they solve
    :math:`X [b_h R_h^\top]_h = \mathrm{diag}(K_h Z_h)` in the least-squares sense."""
    bases = [torch.linalg.qr(head.value.mT) for head in heads]
    known = torch.cat([block @ base.R.mT for block, base in zip(blocks, bases, strict=True)], -1)
    wanted = torch.block_diag(*(head.key @ base.Q for head, base in zip(heads, bases, strict=True)))
    # on a GPU there is only the driver for full rank, which is what may be missing here
    found = torch.linalg.lstsq(known.mT.cpu(), wanted.mT.cpu(), rcond=RANK, driver="gelsd")
    return found.solution.mT.to(known.device)


def _exact_residual(
    heads: list[Factors], queries: Tensor, blocks: tuple[Tensor, ...], weights: Tensor, total: float
) -> float:
    """Return the residual from the differences, without the cancellation of 1 - (almost 1)."""
    triangle = torch.linalg.qr(queries.mT, mode="r").R
    missed, row = 0.0, 0
    for block, head in zip(blocks, heads, strict=True):
        left = -weights @ (block @ head.value)
        left[row : row + len(head.key)] += head.key
        missed += float((triangle @ left).square().sum())
        row += len(head.key)
    return (missed / max(total, 1e-300)) ** 0.5


def metric_form(shared: SharedMetric, band: float = BANDS[torch.float64]) -> Form:
    """Return the symmetric part of the shared metric."""
    small = compress_product(shared.left, shared.right)
    return form(small, shared.left.shape[-1] - len(small), band)


def stacked_metric(law: Attention, band: float = BANDS[torch.float64]) -> tuple[Form, float]:
    """Return A as the published code defines it, the sum of interactions times the inverse of all values stacked without
    their outputs, and the condition number of that stack."""
    rows = law.value.detach().double().cpu().reshape(-1, law.dim)
    if law.output is None or rows.shape[0] != law.dim:
        raise UnsupportedError(
            f"the stacked metric needs factored values whose rows together are square, got {tuple(law.value.shape)}"
        )
    interaction = (law.scale * law.interaction).detach().double().cpu().reshape(-1, law.dim, law.dim).sum(0)
    condition = float(torch.linalg.cond(rows))
    if not condition < 1 / RANK:
        raise UnsupportedError(
            f"the stacked values are singular (condition number {condition:.2g}): no such metric exists"
        )
    return form(torch.linalg.solve(rows, interaction, left=False), 0, band * max(1.0, condition * 1e-3)), condition


OFFSETS = tuple(2**power for power in range(12))  # 1 to 2048


@dataclass(frozen=True)
class Offset:
    """The interaction at one rotary offset (key minus query): index and extremes of its symmetric part, its relative distance
    ``change`` from W(0), its trace, and the signs of the reduced forms."""

    offset: int
    index: float
    low: float
    high: float
    change: float
    trace: float
    interaction_sign: str
    metric_sign: str


def rotation(positions: Rotary, size: int, offset: float) -> Tensor:
    """Return the rotation matrix R of one offset, (k, k)."""
    angles = offset * positions.frequencies(size)
    turned = torch.eye(size, dtype=torch.float64)
    even, odd = torch.arange(0, 2 * len(angles), 2), torch.arange(1, 2 * len(angles), 2)
    turned[even, even], turned[odd, odd] = angles.cos(), angles.cos()
    turned[even, odd], turned[odd, even] = -angles.sin(), angles.sin()
    return turned


def classify_offsets(
    grams: SmallMatrices,
    positions: Rotary,
    causal: bool,
    offsets: Sequence[int] = OFFSETS,
    band: float = BANDS[torch.float64],
) -> list[tuple[Offset, ...]]:
    """Return for every head one row per offset, zero included; under a causal mask keys are at or before their query."""
    (k, _), d = grams.sizes, grams.dim
    left, right = grams.triangles
    still = grams.interaction
    sizes = torch.linalg.vector_norm(still, dim=(-2, -1)).clamp_min(1e-300)
    signed = sorted({0, *(-abs(offset) for offset in offsets), *(() if causal else map(abs, offsets))})
    columns = []
    for offset in signed:
        turn = rotation(positions, k, offset)
        whole = left @ turn @ right.mT
        reduced = grams.reduced_query.mT @ turn @ grams.reduced_key
        changes = (torch.linalg.vector_norm(whole - still, dim=(-2, -1)) / sizes).tolist()
        seen = forms(whole, d - whole.shape[-1], band)
        signs = forms(reduced, 0, band), forms(grams.reduced_value.mT @ reduced, 0, band)
        columns.append(
            [
                Offset(offset, one.index, one.low, one.high, change, one.trace, interaction.sign, metric.sign)
                for one, change, interaction, metric in zip(seen, changes, *signs, strict=True)
            ]
        )
    return list(zip(*columns, strict=True))


EXACT, PROBES = 1024, 64


@dataclass(frozen=True)
class Growth:
    """Predicted growth factors of the root mean square of a residual stream of unit size, at ``consensus`` and for ``diffuse``
    attention; ``written`` is the root mean square that attention adds at consensus, ``drift`` that of its constant part;
    ``estimated`` tells whether random probes were used."""

    consensus: float
    diffuse: float
    written: float
    drift: float
    estimated: bool

    def row(self) -> dict[str, Any]:
        """Return a flat JSON object."""
        return {f"growth_{name}": value for name, value in vars(self).items()}


class GrowthAccumulator:
    """Accumulates the predicted growth of a layer whose heads come in several laws."""

    def __init__(self, dim: int, seed: int = 0) -> None:
        self._dim, self._trace = dim, 0.0
        self.probes = _probes(dim, seed)
        self._moved = torch.zeros_like(self.probes)
        self._drift = torch.zeros(dim, dtype=torch.float64)
        self._adding = Lock()  # heads are processed in several threads

    def add(self, law: Attention) -> None:
        """Add some of the heads; the bias of the outputs is added by :meth:`result`."""
        self.count(_trace(law), _apply_values(law, self.probes), _constant_part(law))

    def count(self, trace: float, moved: Tensor, drift: Tensor | None) -> None:
        """Add heads whose trace, image of the probes and constant part are known."""
        with self._adding:
            self._trace += trace
            self._moved += moved
            if drift is not None:
                self._drift += drift

    def result(self, output_bias: Tensor | None = None, norm: Norm | None = None) -> Growth:
        """Return the growth for all heads that were added; ``norm`` acts on the output of attention before it is added."""
        drift, dim = self._drift, self._dim
        if output_bias is not None:
            drift = drift + output_bias.detach().double().cpu().reshape(-1, dim).sum(0)
        if norm is not None:
            return self._sample(drift, norm)
        # E |M x|^2 = |M|_F^2 for normal x; the identity as probes gives it exactly
        exact = self.probes.shape[1] == dim
        squared = float(self._moved.square().sum()) / (1.0 if exact else self.probes.shape[1])
        steady = float(drift.square().sum()) / dim
        consensus = max(0.0, 1 + (2 * self._trace + squared) / dim + steady) ** 0.5
        return Growth(consensus, (1 + steady) ** 0.5, (squared / dim + steady) ** 0.5, steady**0.5, not exact)

    def _sample(self, drift: Tensor, norm: Norm) -> Growth:
        r"""The growth by :math:`N(Mx + c)`, from samples of normal x. Diffuse attention averages the Mx away, and N gives what is left
        its full length: the direction of c, or of the average where c is zero."""
        if self.probes.shape[1] == self._dim:
            points = torch.randn(self._dim, PROBES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            moved = self._moved @ points
        else:
            points, moved = self.probes, self._moved
        size = lambda x: float(x.square().mean()) ** 0.5  # noqa: E731
        written = norm((moved + drift[:, None]).mT)
        steady = bool((drift != 0).any())
        left = norm(drift) if steady else norm(moved.roll(1, -1).mT)
        return Growth(size(points.mT + written), size(points.mT + left), size(written), size(left) * steady, True)


def growth(law: Attention, seed: int = 0) -> Growth:
    """Return the predicted growth of a layer."""
    growing = GrowthAccumulator(law.dim, seed)
    growing.add(law)
    return growing.result(law.output_bias)


def _probes(dim: int, seed: int) -> Tensor:
    if dim <= EXACT:
        return torch.eye(dim, dtype=torch.float64)
    return torch.randn(dim, PROBES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _maps(law: Attention) -> tuple[Tensor, Tensor | None]:
    """Return value and output with a head axis, in the precision of the law."""
    value = law.value.detach().cpu().reshape(-1, *law.value.shape[-2:])
    output = None if law.output is None else law.output.detach().cpu().reshape(-1, *law.output.shape[-2:])
    return value, output


def _trace(law: Attention) -> float:
    value, output = _maps(law)
    inner = value if output is None else value @ output
    return float(inner.diagonal(dim1=-2, dim2=-1).sum(dtype=torch.float64))


def _apply_values(law: Attention, probes: Tensor) -> Tensor:
    value, output = _maps(law)
    moved = value @ probes.to(value.dtype)
    return (moved if output is None else output @ moved).sum(0).double()


def _constant_part(law: Attention) -> Tensor:
    """Return the constant part of the output: value biases through the output projections."""
    if law.value_bias is None:
        return torch.zeros(law.dim, dtype=torch.float64)
    bias = law.value_bias.detach().cpu().expand(law.value.shape[:-1]).reshape(-1, law.value.shape[-2])
    _, output = _maps(law)
    written = bias if output is None else (output @ bias[..., None])[..., 0]
    return written.double().sum(0)
