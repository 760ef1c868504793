"""Attention variants of real models: norms of queries, keys, values and outputs, gates, sinks, and multi-head latent attention."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.attention import Attention
from attractor.laws.blocks import Norm
from attractor.laws.kernels.kernel import Kernel, Pairing, has_kernel, kernel_named
from attractor.laws.law import Law
from attractor.laws.masks import Mask, Visibility, as_mask
from attractor.laws.positions.absolute import Absolute
from attractor.laws.positions.combined import as_positions, encodings_of
from attractor.laws.positions.position import Positions
from attractor.serialization import Record
from attractor.states import Tokens, convert_parameters


@dataclass(frozen=True)
class Clip(Record):
    """Clips every entry to [-bound, bound] (``clip_qkv`` of OLMo); used in place of a norm."""

    bound: float

    @property
    def dim(self) -> None:
        """Any dimension will do."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(-self.bound, self.bound)


@dataclass(frozen=True, eq=False)
class NormedAttention(Law):
    r"""Attention with norms of queries, keys and values, gates and sinks:

    .. math:: \dot x_i = \sum_h O_h\, \sigma(G_h x_i + b_h) \odot
        \frac{\sum_j e^{s^h_{ij}} N_v(V_h x_j)}{e^{c_h} + \sum_j e^{s^h_{ij}}}, \qquad
        s^h_{ij} = \text{scale}\,\langle R_i N_q(Q_h x_i), R_j N_k(K_h x_j)\rangle.

    Each part is optional. Norms of queries and keys (Qwen 3, Gemma 3, OLMo 2) make scores other than bilinear in the tokens: there is
    no matrix W with :math:`s_{ij} = \langle x_i, W x_j\rangle`, so what the theory says about W does not apply. With a norm of values
    (Gemma 3n) or a gate (Qwen3-Next) there is no value map either. With sinks (GPT-OSS) weights sum to less than one.

    Parameters
    ----------
    attention : queries, keys, values, kernel, mask and positions.
    query_norm, key_norm : norms or ``Clip``; ``joint`` ones act on the concatenated heads, (h k,), others on each head, (k,).
    value_norm : the same for the values of each head.
    query_gain, key_gain : (h, k), factors after norms whose gain differs between heads (Cohere).
    normed : number of leading coordinates of queries and keys to which their norms and gains apply; all by default.
    gate, gate_bias : G (h, r, d) and b (h, r).
    sinks : c (h,); tokens count as one each.
    """

    attention: Attention
    query_norm: Norm | Clip | None = None
    key_norm: Norm | Clip | None = None
    joint: bool = False
    value_norm: Norm | Clip | None = None
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    sinks: Tensor | None = None
    normed: int | None = None

    def __post_init__(self) -> None:
        tensors = ("query_gain", "key_gain", "gate", "gate_bias", "sinks")
        if any(getattr(self, name) is not None for name in tensors):
            convert_parameters(self, tensors)
        k, r, d = self.attention.query.shape[-2], self.attention.value.shape[-2], self.attention.dim
        if self.normed is not None and not 0 < self.normed <= k:
            raise InputError(f"normed must be a number of coordinates from 1 to {k}, got {self.normed!r}")
        k = k if self.normed is None else self.normed
        wanted = {"query_norm": k, "key_norm": k, "value_norm": r}
        for name, size in wanted.items():
            norm = getattr(self, name)
            size = size * self.heads if self.joint and name != "value_norm" else size
            if norm is not None and norm.dim not in (None, size):
                raise InputError(f"the {name} must have dimension {size}, got {norm.dim}")
        shapes = {
            "query_gain": (self.heads, k),
            "key_gain": (self.heads, k),
            "gate": (self.heads, r, d),
            "gate_bias": (self.heads, r),
            "sinks": (self.heads,),
        }
        for name, shape in shapes.items():
            part = getattr(self, name)
            if part is not None and tuple(part.shape) not in (shape, shape[1:] if self.heads == 1 else shape):
                raise InputError(f"{name} must be {shape}, got {tuple(part.shape)}")
        if self.sinks is not None and not has_kernel(self.attention, "softmax"):
            raise InputError(f"sinks belong to the softmax kernel, got {self.attention.kernel.name!r}")

    @property
    def dim(self) -> int:
        return self.attention.dim

    @property
    def heads(self) -> int:
        return self.attention.heads

    def _project(self, points: Tensor) -> tuple[Tensor, Tensor]:
        q, k = self.attention._project(points)
        return self._normed(q, self.query_norm, self.query_gain), self._normed(k, self.key_norm, self.key_gain)

    def _normed(self, vectors: Tensor, norm: Norm | Clip | None, gain: Tensor | None) -> Tensor:
        if self.normed is not None and self.normed < vectors.shape[-1]:
            first, rest = vectors[..., : self.normed], vectors[..., self.normed :]
            return torch.cat((self._normed(first, norm, gain), rest), -1)
        if norm is not None and self.joint:
            rows = norm(vectors.movedim(-3, -2).flatten(-2))
            vectors = rows.unflatten(-1, (self.heads, vectors.shape[-1])).movedim(-2, -3)
        elif norm is not None:
            vectors = norm(vectors)
        return vectors if gain is None else vectors * gain.to(vectors).reshape(self.heads, 1, -1)

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        sunk = None if self.sinks is None else self._sunk(tokens)

        def gate(points: Tensor) -> Tensor:
            factor = torch.ones((), dtype=points.dtype, device=points.device) if sunk is None else sunk
            if self.gate is None:
                return factor
            logits = points.unsqueeze(-3) @ self.gate.reshape(self.heads, -1, self.dim).to(points).mT
            if self.gate_bias is not None:
                logits = logits + self.gate_bias.to(points).reshape(self.heads, 1, -1)
            return factor * logits.sigmoid()

        gated = self.gate is not None or self.sinks is not None
        return self.attention._move(tokens, False, self._project, self.value_norm, gate if gated else None)

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) themselves; masses included."""
        weights = self.attention._weigh(tokens, self._project)
        return weights if self.sinks is None else weights * self._sunk(tokens)

    def _sunk(self, tokens: Tokens) -> Tensor:
        """The share of the weights that the sinks leave to the tokens, (..., h, n, 1)."""
        assert self.sinks is not None
        pairing, points = self.attention._pairing(tokens, False, self._project)
        counts = torch.ones_like(points[..., 0]) if tokens.masses is None else tokens.masses * tokens.n
        total = pairing.log_partition(counts.unsqueeze(-2))
        return (total - self.sinks.to(total).unsqueeze(-1)).sigmoid().unsqueeze(-1)

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
class NormedOutput(Law):
    r"""The output of attention after a norm, :math:`\dot x = N(F(x))`, as peri-norm blocks add it (Gemma 2 and 3, OLMo 2, GLM-4).

    The norm mixes the heads: no head adds a part of its own.
    """

    attention: Attention | NormedAttention
    norm: Norm

    @property
    def dim(self) -> int:
        return self.attention.dim

    @property
    def heads(self) -> int:
        return self.attention.heads

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        return self.norm(self.attention.velocity(tokens, time))

    def weights(self, tokens: Tokens, time: float = 0.0) -> Tensor:
        """The weights w (..., h, n, n) of the attention."""
        return self.attention.weights(tokens, time)

    def enter(self, tokens: Tokens) -> Tokens:
        return self.attention.enter(tokens)

    def merge_obstacle(self) -> str | None:
        return self.attention.merge_obstacle()

    def member(self, index: Tensor) -> NormedOutput:
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
        object.__setattr__(self, "positions", as_positions(self.positions))
        for encoding in encodings_of(self.positions):
            encoding.check(self.dim, self.query.shape[-2])
            if isinstance(encoding, Absolute):
                raise InputError(
                    "a latent attention has rotary positions or positions that add to scores, not absolute ones"
                )

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
        q, k = (self.kernel.project(latent, part.to(latent)) for part in (self.query, self.key))
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
