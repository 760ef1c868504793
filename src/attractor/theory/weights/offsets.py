r"""Rotary positions: a family of interactions, one for every offset, never a single W.

:math:`s_{lj} = x_l^\top W(\delta) x_j` with :math:`\delta = j - l` and :math:`W(\delta) = Q^\top R_\delta K`. One factorisation
serves all offsets: :math:`N(\delta) = R_1 R_\delta R_2^\top`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Rotary
from attractor.theory.weights.forms import BANDS, forms
from attractor.theory.weights.products import SmallMatrices

OFFSETS = tuple(2**power for power in range(12))  # 1 to 2048


@dataclass(frozen=True)
class Offset:
    """The interaction at one offset (key minus query): index and extremes of its symmetric part, how far it is from W(0), trace,
    and the signs of the reduced forms."""

    offset: int
    index: float
    low: float
    high: float
    change: float
    trace: float
    interaction_sign: str
    metric_sign: str

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def rotation(positions: Rotary, size: int, offset: float) -> Tensor:
    """R of one offset, (k, k)."""
    angles = offset * positions.frequencies(size)
    turned = torch.eye(size, dtype=torch.float64)
    even, odd = torch.arange(0, 2 * len(angles), 2), torch.arange(1, 2 * len(angles), 2)
    turned[even, even], turned[odd, odd] = angles.cos(), angles.cos()
    turned[even, odd], turned[odd, even] = -angles.sin(), angles.sin()
    return turned


def families(
    grams: SmallMatrices,
    positions: Rotary,
    causal: bool,
    offsets: Sequence[int] = OFFSETS,
    band: float = BANDS[torch.float64],
) -> list[tuple[Offset, ...]]:
    """For every head one row for each offset, zero included; under a causal mask keys stand at or before their query."""
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
