"""From stored projections to the laws of one layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attractor.errors import CheckpointError, InputError, UnsupportedError
from attractor.laws import Attention, LatentAttention, Law, Norm, NormedAttention, Positions, Rotary, ScaledRotary


class Double(TorchFunctionMode):
    """Float64 wherever float32 is asked for."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(_wide(argument) for argument in args)
        return func(*args, **{name: _wide(argument) for name, argument in (kwargs or {}).items()})


def _wide(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@contextmanager
def double() -> Iterator[None]:
    """Float64 wherever float32 is asked for, and by default."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Double():
            yield
    finally:
        torch.set_default_dtype(usual)


GROUPED = ("key", "value", "key_bias", "value_bias")
PARTS = ("query", "output", "query_bias", "output_bias", *GROUPED)


@dataclass(frozen=True)
class Projections:
    """Matrices of one layer: query (h, k, d), key (g, k, d), value (g, r, d), output (h, d, r), with g dividing h."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None

    @classmethod
    def of(
        cls,
        matrices: Iterable[Tensor],
        output: Tensor,
        biases: Iterable[Tensor | None] = (None, None, None),
        output_bias: Tensor | None = None,
    ) -> Projections:
        """From query, key and value in this order, and their biases."""
        (query, key, value), (query_bias, key_bias, value_bias) = matrices, biases
        return cls(query, key, value, output, query_bias, key_bias, value_bias, output_bias)


@dataclass(frozen=True)
class Turning:
    """How a model turns queries and keys: ``turned`` coordinates, paired across the halves or as neighbours; cosines and sines
    are multiplied by ``factor``."""

    positions: Positions
    turned: int
    halves: bool = True
    factor: float = 1.0

    def __call__(self, rows: Tensor, axis: int) -> Tensor:
        """Rows of heads in the order in which attractor pairs them, the turned ones multiplied by the factor."""
        ordered = self.order(rows, axis)
        if self.factor == 1.0:
            return ordered
        stretch = torch.ones(rows.shape[axis], dtype=torch.float64, device=rows.device)
        stretch[: self.turned] = self.factor
        return ordered.double() * stretch.reshape(-1, *[1] * (rows.ndim - 1 - axis))

    def order(self, rows: Tensor, axis: int) -> Tensor:
        """The order alone, for what a norm will rescale."""
        return rows.index_select(axis, self._order(rows.shape[axis]).to(rows.device)) if self.halves else rows

    def _order(self, head_dim: int) -> Tensor:
        half = self.turned // 2
        pairs = torch.stack((torch.arange(half), torch.arange(half) + half), dim=-1).flatten()
        return torch.cat((pairs, torch.arange(self.turned, head_dim)))


def split_rows(matrix: Tensor, heads: int) -> Tensor:
    """(h k, d) or (h k,) by heads."""
    if matrix.shape[0] % heads:
        raise CheckpointError(f"a projection with {matrix.shape[0]} rows does not split into {heads} heads")
    return matrix.unflatten(0, (heads, matrix.shape[0] // heads))


def split_columns(matrix: Tensor, heads: int) -> Tensor:
    """An output projection (d, h r) by heads, (h, d, r)."""
    return split_rows(matrix.mT, heads).mT


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a layer as they are stored, keys and values once for each group: the law of all of them, or of one.

    Laws are built when asked for, in ``dtype``, and not kept.
    """

    parts: Projections
    options: dict[str, Any]
    joint: bool = False
    dtype: torch.dtype = torch.float64

    @property
    def heads(self) -> int:
        return self.parts.query.shape[0]

    @property
    def groups(self) -> int:
        return self.parts.key.shape[0]

    @property
    def dim(self) -> int:
        return self.parts.query.shape[-1]

    @property
    def bilinear(self) -> bool:
        """Whether scores are bilinear in the tokens."""
        return self.parts.query_norm is None

    def law(self) -> Attention | NormedAttention:
        """The law of all heads; groups are repeated for their queries."""
        given = {name: part.to(self.dtype) for name in PARTS if (part := getattr(self.parts, name)) is not None}
        repeated = {name: _repeated(part, self.heads) for name, part in given.items() if name in GROUPED}
        own = {name: part for name, part in given.items() if name not in GROUPED}
        return self._normed(Attention(**own, **repeated, **self.options))

    def head(self, index: int) -> Attention | NormedAttention:
        """One head alone, without the output bias, which belongs to no head."""
        return self._part(index, index * self.groups // self.heads, index)

    def some(self, indices: range) -> Attention | NormedAttention:
        """Several heads together, without the output bias; not for positions that differ from head to head."""
        groups = [index * self.groups // self.heads for index in indices]
        return self._part(list(indices), groups, 0)

    def _part(self, heads: Any, groups: Any, first: int) -> Attention | NormedAttention:
        if self.joint:
            raise UnsupportedError("queries and keys are normalised over all heads together, so no head stands alone")
        rows = {name: groups if name in GROUPED else heads for name in PARTS if name != "output_bias"}
        given = {name: part for name in rows if (part := getattr(self.parts, name)) is not None}
        parts = {name: part[rows[name]].to(self.dtype) for name, part in given.items()}
        positions = self.options["positions"]
        options = {**self.options, "positions": positions if positions is None else positions.head(first)}
        return self._normed(Attention(**parts, **options))

    def _normed(self, law: Attention) -> Attention | NormedAttention:
        query_norm, key_norm = self.parts.query_norm, self.parts.key_norm
        if query_norm is None or key_norm is None:
            return law
        if self.joint and key_norm.gain is not None:
            gain = _repeated(split_rows(key_norm.gain, self.groups), self.heads).flatten()
            key_norm = replace(key_norm, gain=gain)
        return NormedAttention(law, query_norm, key_norm, self.joint)


def heads_from(
    parts: Projections,
    *,
    scale: float,
    mask: Any = None,
    turning: Turning | None = None,
    positions: Positions | None = None,
    kernel: Any = "softmax",
    joint: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Heads:
    """The heads of a layer from its projections, rotary coordinates in attractor's order."""
    if turning is not None:
        parts, positions = _turned(parts, turning), turning.positions
    return Heads(parts, {"scale": scale, "mask": mask, "positions": positions, "kernel": kernel}, joint, dtype)


def _repeated(part: Tensor, heads: int) -> Tensor:
    """Groups of keys or values, one copy for each of their queries."""
    groups = part.shape[0]
    return part if groups == heads else part.repeat_interleave(heads // groups, dim=0)


def _turned(parts: Projections, turning: Turning) -> Projections:
    """Queries and keys in attractor's order; the factor goes to whatever is last before they turn."""
    if parts.query_norm is None or parts.key_norm is None:
        arrange = turning
        norms = {}
    else:
        arrange, k = turning.order, parts.query.shape[1]
        norms = {name: _turned_norm(getattr(parts, name), turning, k) for name in ("query_norm", "key_norm")}
    biases = {
        name: arrange(bias, 1) for name in ("query_bias", "key_bias") if (bias := getattr(parts, name)) is not None
    }
    return replace(parts, query=arrange(parts.query, 1), key=arrange(parts.key, 1), **biases, **norms)


def _turned_norm(norm: Norm, turning: Turning, k: int) -> Norm:
    """A norm of reordered coordinates, of one head (k,) or of all of them (h k,)."""
    gain = torch.ones(k, dtype=torch.float64) if norm.gain is None else norm.gain
    bias = None if norm.bias is None else turning(norm.bias.reshape(-1, k), 1).flatten()
    return replace(norm, gain=turning(gain.reshape(-1, k), 1).flatten(), bias=bias)


def turning(config: Any, head_dim: int, layer_type: str | None = None, halves: bool = True) -> Turning | None:
    """How a layer turns queries and keys, or None where it does not.

    The usual angles are ours; those of scaled contexts (linear, Llama 3, YaRN, ...) are computed by transformers, in float64.
    """
    settings = rope_settings(config, layer_type)
    if settings is None:
        return None
    kind, theta = settings.get("rope_type", "default"), float(settings["rope_theta"])
    if kind == "default":
        turned = int(head_dim * settings.get("partial_rotary_factor", 1.0))
        return Turning(Rotary(theta, turned), turned, halves)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise UnsupportedError(
            f"rotary positions of type {kind!r} are not known; transformers knows {', '.join(sorted(ROPE_INIT_FUNCTIONS))}"
        )
    options = {} if layer_type is None else {"layer_type": layer_type}
    with double():
        angles, factor = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", **options)
    rotary = ScaledRotary(theta, angles=tuple(angles.double().tolist()))
    return Turning(rotary, 2 * len(angles), halves, float(factor))


def rope_settings(config: Any, layer_type: str | None = None) -> dict[str, Any] | None:
    """The rotary settings of a layer type, or of all layers."""
    settings = getattr(config, "rope_parameters", None)
    if settings is None or "rope_theta" in settings:
        return settings
    return settings.get(layer_type)


def long_context(config: Any, layer_type: str | None = None) -> tuple[str, ...]:
    """What must be said about angles that depend on the length of the text."""
    settings = rope_settings(config, layer_type) or {}
    if settings.get("rope_type") in ("dynamic", "longrope"):
        return ("rotary angles are those of texts within the original context; longer texts change them",)
    return ()


Placement = Literal["none", "pre", "post", "peri"]


@dataclass(frozen=True, eq=False)
class Layer:
    """The self-attention of one layer.

    ``attention`` reads tokens that ``norm`` has made and returns what is added to the residual stream, before ``output_norm``
    if there is one. ``placement`` is "pre" (the norm acts on a copy of the stream), "post" (the stream itself is normalised
    after every part; ``norm`` is the one that this layer's tokens come from), "peri" (after attention too) or "none".
    ``undefined`` says which quantities do not exist in this layer, and why.
    """

    index: int
    name: str
    source: Heads | LatentAttention = field(repr=False)
    norm: Norm | None
    placement: Placement = "pre"
    output_norm: Norm | None = None
    parallel: bool = False
    undefined: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> Attention | NormedAttention | LatentAttention:
        """The law of all heads, built anew each time: a large layer is not held twice."""
        return self.source if isinstance(self.source, LatentAttention) else self.source.law()

    @property
    def reads_copy(self) -> bool:
        """Whether attention reads a normalised copy of the stream that it adds to: the law that acts on the stream is then the folded one.
        Where the stream itself is normalised it adds to what it reads, and nothing is to be folded."""
        return self.placement in ("pre", "peri")

    @property
    def heads(self) -> int:
        return self.source.heads

    @property
    def groups(self) -> int:
        """How many different keys and values the heads share."""
        return self.source.heads if isinstance(self.source, LatentAttention) else self.source.groups

    @property
    def dim(self) -> int:
        return self.source.dim

    def law(self, fold: bool = False) -> Law:
        """The law of all heads; with ``fold`` the norm's gain, bias and centring are inside and it moves ``bare_norm(x)``."""
        return self._folded(self.attention) if fold else self.attention

    def head(self, index: int, fold: bool = False) -> Law:
        """One head alone, without the layer's output bias, which belongs to no head."""
        if not 0 <= index < self.heads:
            raise InputError(f"{self.name} has heads 0 to {self.heads - 1}, not {index}")
        if isinstance(self.source, LatentAttention):
            rows = {name: getattr(self.source, name)[index : index + 1] for name in ("query", "key", "value", "output")}
            one: Law = dataclasses.replace(self.source, **rows, output_bias=None)
        else:
            one = self.source.head(index)
        return self._folded(one) if fold else one

    def some(self, heads: range, fold: bool = False) -> Law:
        """Several heads together, without the layer's output bias."""
        assert isinstance(self.source, Heads)
        law = self.source.some(heads)
        return self._folded(law) if fold else law

    def in_stored_precision(self) -> Layer:
        """The layer with laws in float32 where its weights are stored with 16 bits, which float32 holds exactly."""
        source = self.source
        if not isinstance(source, Heads) or source.parts.query.dtype not in (torch.bfloat16, torch.float16):
            return self
        return dataclasses.replace(self, source=dataclasses.replace(source, dtype=torch.float32))

    @property
    def bare_norm(self) -> Norm | None:
        """The norm without gain and bias."""
        return None if self.norm is None else type(self.norm)(None, None, self.norm.eps)

    def _folded(self, law: Law) -> Law:
        from attractor.weights import fold_norm

        if self.norm is None:
            return law
        if isinstance(law, NormedAttention):
            return dataclasses.replace(law, attention=fold_norm(law.attention, self.norm))
        if isinstance(law, Attention):
            return fold_norm(law, self.norm)
        raise UnsupportedError(
            "the norm before a latent attention is not folded: it would have to pass the latent norms"
        )
