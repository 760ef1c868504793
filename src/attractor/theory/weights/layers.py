r"""Several heads at once: sums, and how far they are from sharing one metric.

:math:`\sum_h V_h` moves the mean near zero and the first token of a decoder; :math:`\sum_h W_h` and :math:`\sum_h V_h^\top W_h` are
the layer's interaction and metric form. If one symmetric A has :math:`W_h = A V_h` for all heads, T0, T1, T3 and T4 hold for the layer;
the least-squares :math:`A_* = (\sum W_h V_h^\top)(\sum V_h V_h^\top)^+` and its residual say how far a layer is from that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.attention import Attention
from attractor.errors import UnsupportedError
from attractor.theory.weights.forms import BANDS, Form, Spectrum, core, form, spectrum
from attractor.theory.weights.heads import RANK, Head

CLOSE = 1e-4  # residuals below this are computed without cancellation
NEAR = 0.5  # residuals below this may be those of a shared metric whose smallest values a Gram matrix has lost


@dataclass(frozen=True, eq=False)
class SharedMetric:
    """The A that comes closest to W_h = A V_h, as a product left' right, and the share of the interactions it leaves."""

    left: Tensor
    right: Tensor
    residual: float


def value_spectrum(heads: list[Head], band: float = BANDS[torch.float64]) -> Spectrum:
    """Eigenvalues of the sum of value maps, through the product in the other order where that is smaller."""
    inner, outer = torch.cat([head.value for head in heads]), torch.cat([head.output for head in heads], -1)
    d, r = outer.shape
    return spectrum(inner @ outer, d - r, band) if r < d else spectrum(outer @ inner, 0, band)


def interaction_sum(heads: list[Head], band: float = BANDS[torch.float64]) -> Form:
    """The symmetric part of the sum of interactions."""
    small = core(torch.cat([head.query for head in heads]), torch.cat([head.key for head in heads]))
    return form(small, heads[0].dim - len(small), band)


def metric_sum(heads: list[Head], band: float = BANDS[torch.float64]) -> Form:
    """The symmetric part of the sum of V'W over heads (not of the product of the sums, which mixes heads)."""
    left = torch.cat([head.reduced_query @ head.value for head in heads])
    small = core(left, torch.cat([head.key for head in heads]))
    return form(small, heads[0].dim - len(small), band)


def shared_metric(heads: list[Head]) -> SharedMetric:
    """The least-squares metric of all heads, in factors of the size of the heads."""
    queries, outputs = torch.cat([head.query for head in heads]), torch.cat([head.output for head in heads], -1)
    basis, triangle = torch.linalg.qr(outputs)  # (d, s), (s, sum of ranks)
    blocks = triangle.split([head.rank for head in heads], -1)
    gram = sum(b @ (head.value @ head.value.mT) @ b.mT for b, head in zip(blocks, heads, strict=True))
    assert isinstance(gram, Tensor)
    cross = torch.cat([(head.key @ head.value.mT) @ b.mT for b, head in zip(blocks, heads, strict=True)])
    weights, sound = _divided(cross, gram)
    total = sum(float(((head.query @ head.query.mT) * (head.key @ head.key.mT)).sum()) for head in heads)
    explained = float(((queries @ queries.mT) * (weights @ cross.mT)).sum())
    residual = max(0.0, 1.0 - explained / max(total, 1e-300)) ** 0.5
    if residual < NEAR and not sound:
        weights = _orthogonal(heads, blocks)
    if residual < (CLOSE if sound else NEAR):
        residual = _exact(heads, queries, blocks, weights, total)
    return SharedMetric(queries, weights @ basis.mT, residual)


def _divided(cross: Tensor, gram: Tensor) -> tuple[Tensor, bool]:
    """cross times the pseudo-inverse of a positive semi-definite matrix, by a Cholesky factor where it is far from singular, and whether
    it is: otherwise values below 1e-6 of the largest are lost with the square root of the precision."""
    triangle, failed = torch.linalg.cholesky_ex(gram)
    pivots = triangle.diagonal()
    if int(failed) == 0 and bool(pivots.amin() > 1e-3 * pivots.amax()):
        return torch.cholesky_solve(cross.mT, triangle).mT, True
    return cross @ torch.linalg.pinv(gram, rtol=RANK, hermitian=True), False


def _orthogonal(heads: list[Head], blocks: tuple[Tensor, ...]) -> Tensor:
    r"""The same weights without a Gram matrix: with the thin QR :math:`V_h^\top = Z_h R_h` of every value they solve
    :math:`X [b_h R_h^\top]_h = \mathrm{diag}(K_h Z_h)` in the least-squares sense."""
    bases = [torch.linalg.qr(head.value.mT) for head in heads]
    known = torch.cat([block @ base.R.mT for block, base in zip(blocks, bases, strict=True)], -1)
    wanted = torch.block_diag(*(head.key @ base.Q for head, base in zip(heads, bases, strict=True)))
    # on a GPU there is only the driver for full rank, which is what may be missing here
    found = torch.linalg.lstsq(known.mT.cpu(), wanted.mT.cpu(), rcond=RANK, driver="gelsd")
    return found.solution.mT.to(known.device)


def _exact(heads: list[Head], queries: Tensor, blocks: tuple[Tensor, ...], weights: Tensor, total: float) -> float:
    """The residual from the differences themselves, where one minus almost one would be noise."""
    triangle = torch.linalg.qr(queries.mT, mode="r").R
    missed, row = 0.0, 0
    for block, head in zip(blocks, heads, strict=True):
        left = -weights @ (block @ head.value)
        left[row : row + len(head.key)] += head.key
        missed += float((triangle @ left).square().sum())
        row += len(head.key)
    return (missed / max(total, 1e-300)) ** 0.5


def metric_form(shared: SharedMetric, band: float = BANDS[torch.float64]) -> Form:
    """The symmetric part of the shared metric."""
    small = core(shared.left, shared.right)
    return form(small, shared.left.shape[-1] - len(small), band)


def stacked_metric(law: Attention, band: float = BANDS[torch.float64]) -> tuple[Form, float]:
    """The published code's A: the sum of interactions times the inverse of all values stacked, outputs ignored; and the
    condition number of that stack."""
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
