"""Attention that reads queries, keys and values from normalised latent vectors (MLA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.attention.kernels import Kernel, Pairing, kernel_named
from attractor.attention.law import Law
from attractor.attention.masks import Mask, mask_from
from attractor.attention.norms import Norm
from attractor.attention.positions import Positions
from attractor.errors import InputError
from attractor.records import Record
from attractor.states import Tokens
from attractor.states.arrays import alike


@dataclass(frozen=True, eq=False)
class Feature(Record):
    """One part of the latent vector: N(matrix x + bias), with matrix (m, d), or without a norm."""

    matrix: Tensor
    bias: Tensor | None = None
    norm: Norm | None = None

    def __post_init__(self) -> None:
        alike(self, ("matrix", "bias"))

    def __call__(self, points: Tensor) -> Tensor:
        latent = points @ self.matrix.to(points).mT
        latent = latent if self.bias is None else latent + self.bias.to(points)
        return latent if self.norm is None else self.norm(latent)


@dataclass(frozen=True, eq=False)
class LatentAttention(Law):
    r"""Multi-head latent attention [deepseek2024v2]: with the latent :math:`z = (f_1(x), f_2(x), \dots)` of ``features``, queries, keys
    and values are linear in z: ``query`` and ``key`` (h, k, m), ``value`` (h, r, m), ``output`` (h, d, r).

    A norm inside a feature makes scores other than bilinear in x and the value map other than linear: neither W nor V exists.
    """

    features: tuple[Feature, ...]
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    output_bias: Tensor | None = None
    kernel: Kernel | str = "softmax"
    mask: Mask | str | None = None
    positions: Positions | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        alike(self, ("query", "key", "value", "output", "output_bias"))
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "kernel", kernel_named(self.kernel))
        object.__setattr__(self, "mask", mask_from(self.mask))
        width = sum(feature.matrix.shape[0] for feature in self.features)
        if {self.query.shape[-1], self.key.shape[-1], self.value.shape[-1]} != {width}:
            raise InputError(
                f"query, key and value must read the latent of dimension {width}, got {tuple(self.query.shape)}, "
                f"{tuple(self.key.shape)} and {tuple(self.value.shape)}"
            )
        if self.positions is not None:
            self.positions.check(self.dim, self.query.shape[-2])

    @property
    def dim(self) -> int:
        return self.output.shape[-2]

    @property
    def heads(self) -> int:
        return self.output.shape[0]

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        pairing, latent = self._pairing(tokens)
        values = latent @ self.value.to(latent).mT
        assert isinstance(self.kernel, Kernel)
        moved = (self.kernel.attend(pairing, values) @ self.output.to(latent).mT).sum(-3)
        return moved if self.output_bias is None else moved + self.output_bias.to(moved)

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        pairing, latent = self._pairing(tokens)
        assert isinstance(self.kernel, Kernel)
        return self.kernel.attend(pairing, torch.eye(tokens.n, dtype=latent.dtype, device=latent.device))

    def _pairing(self, tokens: Tokens) -> tuple[Pairing, Tensor]:
        latent = torch.cat([feature(tokens.points) for feature in self.features], dim=-1).unsqueeze(-3)
        q, k = latent @ self.query.to(latent).mT, latent @ self.key.to(latent).mT
        if self.positions is not None:
            q, k = self.positions.pair(q, k, tokens, self.scale)
        masses = None if tokens.masses is None else tokens.masses.unsqueeze(-2)
        assert self.mask is None or isinstance(self.mask, Mask)
        hide = {} if self.mask is None else self.mask.hide(tokens)
        return Pairing(q, k, self.scale, masses, hide), latent

    def merge_obstacle(self) -> str | None:
        return "tokens of a latent attention are never merged"

    def citations(self) -> tuple[str, ...]:
        return ("deepseek2024v2",)
