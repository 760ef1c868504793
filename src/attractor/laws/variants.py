"""Attention variants of real models: normalised queries and keys, and multi-head latent attention."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.attention import Attention
from attractor.laws.blocks import Norm
from attractor.laws.kernels.kernel import Kernel, Pairing, kernel_named
from attractor.laws.law import Law
from attractor.laws.masks import Mask, Visibility, as_mask
from attractor.laws.positions.position import Positions
from attractor.serialization import Record
from attractor.states import Tokens, convert_parameters


@dataclass(frozen=True, eq=False)
class NormedAttention(Law):
    r"""Scores :math:`\text{scale}\,\langle R_i N_q(Q x_i), R_j N_k(K x_j)\rangle` (Qwen 3, Gemma 3, OLMo 2).

    They are not bilinear in the tokens: there is no matrix W with :math:`s_{ij} = \langle x_i, W x_j\rangle`, so what the
    theory says about W does not apply. :math:`N_q, N_k` are ``q_norm`` and ``k_norm`` of these models.
    ``joint`` norms act on the concatenated heads, (h k,); others on each head, (k,).
    """

    attention: Attention
    query_norm: Norm
    key_norm: Norm
    joint: bool = False

    def __post_init__(self) -> None:
        k = self.attention.query.shape[-2]
        wanted = k * self.attention.heads if self.joint else k
        for name in ("query_norm", "key_norm"):
            norm = getattr(self, name)
            if norm.dim not in (None, wanted):
                raise InputError(f"the {name} must have dimension {wanted}, got {norm.dim}")

    @property
    def dim(self) -> int:
        return self.attention.dim

    @property
    def heads(self) -> int:
        return self.attention.heads

    def _project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.attention._project(points)
        return self._normed(q, self.query_norm), self._normed(k, self.key_norm)

    def _normed(self, vectors: Tensor, norm: Norm) -> Tensor:
        if not self.joint:
            return norm(vectors)
        rows = norm(vectors.movedim(-3, -2).flatten(-2))
        return rows.unflatten(-1, (self.heads, vectors.shape[-1])).movedim(-2, -3)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self.attention._move(tokens, False, self._project)

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        return self.attention._weigh(tokens, self._project)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.attention.enter(tokens)

    def merge_obstacle(self) -> str | None:
        return self.attention.merge_obstacle()

    def is_smooth(self) -> bool:
        return self.attention.is_smooth()

    def member(self, index: Tensor) -> NormedAttention:
        return dataclasses.replace(self, attention=self.attention.member(index))

    def check(self, tokens: Tokens) -> None:
        self.attention.check(tokens)


@dataclass(frozen=True, eq=False)
class Feature(Record):
    """One part of the latent vector: N(matrix x + bias), with matrix (m, d), or without a norm."""

    matrix: Tensor
    bias: Tensor | None = None
    norm: Norm | None = None

    def __post_init__(self) -> None:
        convert_parameters(self, ("matrix", "bias"))

    def __call__(self, points: Tensor) -> Tensor:
        latent = points @ self.matrix.to(points).mT
        latent = latent if self.bias is None else latent + self.bias.to(points)
        return latent if self.norm is None else self.norm(latent)


@dataclass(frozen=True, eq=False)
class LatentAttention(Law):
    r"""Multi-head latent attention [deepseek2024v2]: with the latent :math:`z = (f_1(x), f_2(x), \dots)` of ``features``, queries, keys
    and values are linear in z: ``query`` and ``key`` (h, k, m), ``value`` (h, r, m), ``output`` (h, d, r).

    A norm inside a feature makes scores other than bilinear in x and the value map other than linear: neither W nor V exists.

    Symbols: the matrices of ``features`` are :math:`W^{DQ}, W^{DKV}, W^{KR}` in [deepseek2024v2], ``query`` has the rows of
    :math:`W^{UQ}, W^{QR}`, ``key`` those of :math:`W^{UK}`, ``value`` is :math:`W^{UV}` and ``output`` :math:`W^O`.
    """

    features: tuple[Feature, ...]
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    output_bias: Tensor | None = None
    kernel: Kernel | Any = "softmax"
    mask: Mask | str | None = None
    positions: Positions | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        convert_parameters(self, ("query", "key", "value", "output", "output_bias"))
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "kernel", kernel_named(self.kernel))
        object.__setattr__(self, "mask", as_mask(self.mask))
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
        moved = (self.kernel.attend(pairing, values) @ self.output.to(latent).mT).sum(-3)
        return moved if self.output_bias is None else moved + self.output_bias.to(moved)

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        pairing, latent = self._pairing(tokens)
        return self.kernel.attend(pairing, torch.eye(tokens.n, dtype=latent.dtype, device=latent.device))

    def _pairing(self, tokens: Tokens) -> tuple[Pairing, Tensor]:
        latent = torch.cat([feature(tokens.points) for feature in self.features], dim=-1).unsqueeze(-3)
        q, k = latent @ self.query.to(latent).mT, latent @ self.key.to(latent).mT
        if self.positions is not None:
            q, k = self.positions.pair(q, k, tokens, self.scale)
        masses = None if tokens.masses is None else tokens.masses.unsqueeze(-2)
        assert self.mask is None or isinstance(self.mask, Mask)
        hide = Visibility() if self.mask is None else self.mask.hide(tokens)
        return Pairing(q, k, self.scale, masses, hide), latent

    def merge_obstacle(self) -> str | None:
        return "tokens of a latent attention are never merged"

    def is_smooth(self) -> bool:
        return self.kernel.smooth

    def citations(self) -> tuple[str, ...]:
        return ("deepseek2024v2",)
