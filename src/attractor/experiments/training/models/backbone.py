"""The blocks that both models share, and the tokens between them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attractor.experiments.training.attention import block
from attractor.experiments.training.config import Config

FIRST = 0.02  # standard deviation of embeddings and positions at the start


class Backbone(nn.Module):
    """Places added to tokens, blocks, and a last norm where the residual stream has none."""

    def __init__(self, config: Config, longest: int) -> None:
        super().__init__()
        self.places: nn.Parameter | None = None
        self.register_buffer("waves", None)
        if config.positions == "absolute":
            self.places = nn.Parameter(FIRST * torch.randn(longest, config.dim))
        elif config.positions == "sinusoidal":
            self.register_buffer("waves", sinusoids(longest, config.dim), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList([block(config, index) for index in range(config.layers)])
        kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
        self.norm = kind(config.dim) if config.placement in ("pre", "peri", "sandwich") else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The last state (batch, n, d), normed."""
        return self.norm(self.states(x)[-1])

    def states(self, x: Tensor) -> list[Tensor]:
        """Tokens before every block and after the last, (batch, n, d) each."""
        places = self.waves if self.places is None else self.places
        if isinstance(places, Tensor):
            x = x + places[: x.shape[1]].to(x.dtype)
        found = [self.dropout(x)]
        for each in self.blocks:
            found.append(each(found[-1]))
        return found


def sinusoids(longest: int, dim: int) -> Tensor:
    """sin and cos of place / 10000^(2p / dim), side by side, (longest, dim) [vaswani2017attention]."""
    pairs = -(-dim // 2)
    frequencies = torch.exp(-math.log(1e4) * torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.arange(longest, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :dim].float()
