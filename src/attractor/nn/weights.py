"""Plain weights of an attention layer: what every parameterisation comes down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    r"""Query, key (h, k, d), value (h, r, d) and output (h, d, r): scores :math:`\langle Q_h x_i, K_h x_j\rangle`, value map
    :math:`O_h V_h`.

    Symbols: :math:`W_h = Q_h^\top K_h` is the interaction; :math:`O_h V_h` is :math:`M_h^\top` of [pham2025dynamical] with the output
    projection folded in. ``q``, ``k``, ``v``, ``o`` are the same numbers as ``nn.Linear`` keeps them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[0]

    @property
    def q(self) -> Tensor:
        """(h k, d)"""
        return self.query.flatten(0, 1)

    @property
    def k(self) -> Tensor:
        """(h k, d)"""
        return self.key.flatten(0, 1)

    @property
    def v(self) -> Tensor:
        """(h r, d)"""
        return self.value.flatten(0, 1)

    @property
    def o(self) -> Tensor:
        """(d, h r)"""
        return self.output.transpose(0, 1).flatten(1)

    def interaction(self) -> Tensor:
        """W_h = Q_h' K_h, (h, d, d)."""
        return self.query.mT @ self.key

    def value_map(self) -> Tensor:
        """O_h V_h, (h, d, d)."""
        return self.output @ self.value

    def to(self, like: torch.dtype | Tensor) -> Weights:
        """The same in another precision, or where another tensor is."""
        return self._each(lambda part: part.to(like))

    def detach(self) -> Weights:
        """The same without gradients."""
        return self._each(Tensor.detach)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Weights:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(part) for name, part in parts.items() if part is not None}
        return Weights(**changed)


def split_heads(matrix: Tensor, heads: int) -> Tensor:
    """(h k, d) of a linear layer as (h, k, d)."""
    return matrix.unflatten(0, (heads, -1))


def split_output(matrix: Tensor, heads: int) -> Tensor:
    """(d, h r) of a linear layer as (h, d, r)."""
    return matrix.unflatten(1, (heads, -1)).transpose(0, 1)
