r"""Rotary positions: a family of interactions, one for every offset, never a single W.

:math:`s_{lj} = x_l^\top W(\delta) x_j` with :math:`\delta = j - l` and :math:`W(\delta) = Q^\top R_\delta K`. One thin QR of the
factors serves all offsets: :math:`N(\delta) = R_1 R_\delta R_2^\top`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Rotary
from attractor.theory.weights.forms import BANDS, form
from attractor.theory.weights.heads import Head

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


def family(
    head: Head, positions: Rotary, causal: bool, offsets: Sequence[int] = OFFSETS, band: float = BANDS[torch.float64]
) -> tuple[Offset, ...]:
    """One row for each offset, zero first; under a causal mask keys stand at or before their query."""
    k, d = head.query.shape
    left, right = head.query.mT, head.key.mT  # (d, k)
    if 2 * k < d:
        triangle = torch.linalg.qr(torch.cat((left, right), -1), mode="r").R
        left, right = triangle[:, :k], triangle[:, k:]
    still = left @ right.mT
    size = torch.linalg.vector_norm(still).clamp_min(1e-300)
    signed = [0, *(-offset for offset in offsets), *(() if causal else offsets)]
    rows = []
    for offset in sorted(signed):
        turn = rotation(positions, k, offset)
        whole = left @ turn @ right.mT
        reduced = head.reduced_query.mT @ turn @ head.reduced_key
        seen = form(whole, d - len(whole), band)
        change = float(torch.linalg.vector_norm(whole - still) / size)
        signs = form(reduced, 0, band).sign, form(head.reduced_value.mT @ reduced, 0, band).sign
        rows.append(Offset(offset, seen.index, seen.low, seen.high, change, seen.trace, *signs))
    return tuple(rows)
