"""A Transformer block with a choice of norm placement."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from attractor.errors import InputError
from attractor.laws import ACTIVATIONS, MLP, Block, LayerNorm, Norm, RMSNorm
from attractor.nn.layer import AttentionLayer
from attractor.registry import check_name

Placement = Literal["none", "pre", "post", "peri", "sandwich"]
NORMS = {"none": 0, "pre": 2, "post": 2, "peri": 4}


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, each added to the residual stream.

    Parameters
    ----------
    attention : a layer of ``attractor.nn``.
    hidden : hidden width of the feed-forward network, 4 d by default; 0 for none.
    placement : "none", "pre", "post" or "peri" (also called "sandwich"), as in ``at.Block``.
    norm : "layer" or "rms".
    activation : of the feed-forward network.
    dropout : probability of dropping an entry of what each part adds.
    drop_path : probability that a part is skipped for a sequence in training (stochastic depth).
    eps : of the norms.
    """

    def __init__(
        self,
        attention: AttentionLayer,
        hidden: int | None = None,
        *,
        placement: Placement = "pre",
        norm: Literal["layer", "rms"] = "layer",
        activation: str = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        dim, hidden = attention.dim, 4 * attention.dim if hidden is None else hidden
        self.placement = "peri" if placement == "sandwich" else placement
        check_name(self.placement, NORMS, "placement")
        if norm not in ("layer", "rms"):
            raise InputError(f"norm must be 'layer' or 'rms', got {norm!r}")
        check_name(activation, ACTIVATIONS, "activation")
        self.attention, self.activation = attention, activation
        self.widen = nn.Linear(dim, hidden) if hidden else None
        self.narrow = nn.Linear(hidden, dim) if hidden else None
        kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
        self.norms = nn.ModuleList([kind(dim, eps=eps) for _ in range(NORMS[self.placement])])
        if not 0.0 <= drop_path < 1.0:
            raise InputError(f"drop_path must be at least 0 and below 1, got {drop_path}")
        self.dropout, self.drop_path = nn.Dropout(dropout), float(drop_path)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block to tokens x (..., n, d); ``mask`` as in ``AttentionLayer``."""
        x = self._add(x, 0, mask)
        return x if self.widen is None else self._add(x, 1, mask)

    def _add(self, x: Tensor, part: int, mask: Tensor | None) -> Tensor:
        before = self.norms[part](x) if self.placement in ("pre", "peri") else x
        moved = self.attention(before, mask) if part == 0 else self._feed(before)
        moved = self.norms[2 + part](moved) if self.placement == "peri" else moved
        moved = self.dropout(moved)
        if self.drop_path and self.training:
            kept = 1 - self.drop_path
            moved = moved * moved.new_empty(moved.shape[0], *[1] * (moved.ndim - 1)).bernoulli_(kept) / kept
        x = x + moved
        return self.norms[part](x) if self.placement == "post" else x

    def _feed(self, x: Tensor) -> Tensor:
        assert self.widen is not None
        assert self.narrow is not None
        return self.narrow(ACTIVATIONS[self.activation](self.widen(x)))

    def law(self, dtype: torch.dtype = torch.float64) -> Block:
        """The block as a ``Block`` law, whose discrete layer with step 1 is this block."""
        norms: list[Norm] = []
        for norm in self.norms:
            assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
            gain, eps = norm.weight.detach().to(dtype), float(norm.eps or 0.0)
            centred = isinstance(norm, nn.LayerNorm)
            norms.append(LayerNorm(gain, norm.bias.detach().to(dtype), eps) if centred else RMSNorm(gain, eps=eps))
        feed = None
        if self.widen is not None and self.narrow is not None:
            parts = [part.detach().to(dtype) for line in (self.widen, self.narrow) for part in (line.weight, line.bias)]
            feed = MLP(*parts, activation=self.activation)
        return Block(self.attention.law(dtype), feed, self.placement, tuple(norms))  # type: ignore[arg-type]
