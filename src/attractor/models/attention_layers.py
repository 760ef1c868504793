"""The laws of one layer, from its stored projections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attractor.errors import CheckpointError, InputError, UnsupportedError
from attractor.laws import (
    Attention,
    Clip,
    DynamicRotary,
    LatentAttention,
    Law,
    LayerNorm,
    LongRotary,
    Norm,
    NormedAttention,
    NormedOutput,
    Positions,
    Rotary,
    ScaledRotary,
)
from attractor.models.tensors import Reader
from attractor.nn import ProjectionLayout, Refinement, Shift, Weights


class Float64Mode(TorchFunctionMode):
    """Replaces float32 by float64 in every call of torch."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        wide = lambda argument: torch.float64 if argument is torch.float32 else argument  # noqa: E731
        return func(*map(wide, args), **{name: wide(argument) for name, argument in (kwargs or {}).items()})


@contextmanager
def use_float64() -> Iterator[None]:
    """Use float64 wherever code asks for float32, and as the default dtype."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Float64Mode():
            yield
    finally:
        torch.set_default_dtype(usual)


GROUPED = ("key", "value", "key_bias", "value_bias", "key_gain")
PARTS = ("query", "output", "query_bias", "output_bias", "key", "value", "key_bias", "value_bias")
VARIANT = ("query_gain", "key_gain", "gate", "gate_bias", "sinks")  # tensors of NormedAttention, one for each head
NORMS = ("query_norm", "key_norm", "value_norm")


@dataclass(frozen=True, eq=False)
class Projections(Weights):
    """Weights as a file stores them: query (h, k, d), key (g, k, d), value (g, r, d), output (h, d, r), where g divides h.

    The norms of queries, keys and values, their gains (h or g, k) where they differ between heads, the gate (h, r, d) with its bias
    (h, r) and the sinks (h,) are those of ``NormedAttention``, if the model has them; ``normed`` is the number of coordinates that are
    normalised.
    """

    query_norm: Norm | Clip | None = None
    key_norm: Norm | Clip | None = None
    value_norm: Norm | Clip | None = None
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    gate: Tensor | None = None
    gate_bias: Tensor | None = None
    sinks: Tensor | None = None
    normed: int | None = None

    @property
    def plain(self) -> bool:
        """Whether the law is a plain ``Attention``."""
        return all(getattr(self, name) is None for name in (*NORMS, *VARIANT))

    @classmethod
    def of(
        cls,
        matrices: Iterable[Tensor],
        output: Tensor,
        biases: Iterable[Tensor | None] = (None, None, None),
        output_bias: Tensor | None = None,
    ) -> Projections:
        """Projections from query, key and value in this order, and their biases."""
        (query, key, value), (query_bias, key_bias, value_bias) = matrices, biases
        return cls(query, key, value, output, query_bias, key_bias, value_bias, output_bias)


@dataclass(frozen=True)
class RotaryLayout:
    """Rotary embedding of a model: which coordinates of a head form pairs.

    Attributes
    ----------
    positions : the angles.
    dim : number of coordinates of a head that are rotated.
    half_split : whether coordinate i is paired with i + dim/2 (Llama); otherwise pairs are neighbours (GPT-J), as in ``Rotary``.
    factor : factor of cosines and sines (YaRN).
    """

    positions: Positions
    dim: int
    half_split: bool = True
    factor: float = 1.0

    def convert(self, rows: Tensor, axis: int) -> Tensor:
        """Rows of heads, permuted to neighbouring pairs, the rotated ones multiplied by the factor."""
        permuted = self.permute(rows, axis)
        if self.factor == 1.0:
            return permuted
        scale = torch.ones(rows.shape[axis], dtype=torch.float64, device=rows.device)
        scale[: self.dim] = self.factor
        return permuted.double() * scale.reshape(-1, *[1] * (rows.ndim - 1 - axis))

    def permute(self, rows: Tensor, axis: int) -> Tensor:
        """Rows of heads, permuted to neighbouring pairs."""
        if not self.half_split:
            return rows
        half = self.dim // 2
        pairs = torch.stack((torch.arange(half), torch.arange(half) + half), dim=-1).flatten()
        order = torch.cat((pairs, torch.arange(self.dim, rows.shape[axis])))
        return rows.index_select(axis, order.to(rows.device))


def read_projections(
    read: Reader,
    layout: ProjectionLayout,
    path: str,
    dim: int,
    heads: int,
    groups: int | None = None,
    head_dim: int | None = None,
    required: Collection[str] = (),
    output_path: str | None = None,
) -> Projections:
    """Read separate query, key, value and output projections.

    Parameters
    ----------
    read : reads tensors by name.
    layout : names of the projections.
    path : prefix of their names; ``output_path`` that of the output projection, if it differs.
    dim, heads, groups, head_dim : width d, number of query heads h and of keys g (h by default), dimension k of a head (d / h).
    required : names of the layout whose biases must be present; other biases are optional.
    """
    k, groups = head_dim or dim // heads, groups or heads
    bias = lambda name, place, size: (read if name in required else read.maybe)(f"{place}.bias", size)  # noqa: E731
    matrices, biases = [], []
    for name, count in zip(layout.separate, (heads, groups, groups), strict=True):
        matrices.append(split_rows(read(f"{path}{name}.weight", count * k, dim), count))
        found = bias(name, f"{path}{name}", count * k)
        biases.append(None if found is None else split_rows(found, count))
    place = f"{path if output_path is None else output_path}{layout.output}"
    output = split_columns(read(f"{place}.weight", dim, heads * k), heads)
    return Projections.of(matrices, output, biases, bias(layout.output, place, dim))


def read_fused(
    read: Reader, fused: str, output: str, dim: int, heads: int, split: Callable[[Tensor], Iterable[Tensor]]
) -> Projections:
    """Read one matrix (3 d, d) of query, key and value, and the output projection; biases are optional.

    ``split`` takes the rows of the matrix, or of its bias, to query, key and value, (h, k, ...) each.
    """
    bias = read.maybe(f"{fused}.bias", 3 * dim)
    return Projections.of(
        split(read(f"{fused}.weight", 3 * dim, dim)),
        split_columns(read(f"{output}.weight", dim, dim), heads),
        (None, None, None) if bias is None else split(bias),
        read.maybe(f"{output}.bias", dim),
    )


def read_layer_norm(read: Reader, name: str, dim: int, eps: float) -> LayerNorm:
    """A LayerNorm with gain and bias (d,)."""
    return LayerNorm(read(f"{name}.weight", dim), read(f"{name}.bias", dim), eps)


def split_rows(matrix: Tensor, heads: int) -> Tensor:
    """Split a projection (h k, d) or its bias (h k,) into heads, (h, k, d) or (h, k)."""
    if matrix.shape[0] % heads:
        raise CheckpointError(f"a projection with {matrix.shape[0]} rows does not split into {heads} heads")
    return matrix.unflatten(0, (heads, matrix.shape[0] // heads))


def split_columns(matrix: Tensor, heads: int) -> Tensor:
    """Split an output projection (d, h r) into heads, (h, d, r)."""
    return split_rows(matrix.mT, heads).mT


@dataclass(frozen=True, eq=False)
class Heads:
    """The heads of a layer as they are stored, with keys and values once for each group.

    Laws of all heads or of one are built on demand, in ``dtype``, and not cached. ``joint`` means that queries and keys are normalised
    over all heads together.
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

    def law(self) -> Attention | NormedAttention:
        """The law of all heads; keys and values of a group are repeated for its queries."""
        return self._normed(self.attention(), None)

    def attention(self) -> Attention:
        """Queries, keys and values of all heads, without norms, gates and sinks."""
        given = {name: part.to(self.dtype) for name in PARTS if (part := getattr(self.parts, name)) is not None}
        repeated = {name: _repeat_groups(part, self.heads) for name, part in given.items() if name in GROUPED}
        own = {name: part for name, part in given.items() if name not in GROUPED}
        return Attention(**own, **repeated, **self.options)

    def head(self, index: int) -> Attention | NormedAttention:
        """One head, without the output bias, which belongs to no head."""
        return self._normed(self._select(index, index * self.groups // self.heads, index), index)

    def select(self, indices: range) -> Attention:
        """Several heads without norms, gates, sinks and the output bias; not for positions that differ from head to head."""
        groups = [index * self.groups // self.heads for index in indices]
        return self._select(list(indices), groups, 0)

    def _select(self, heads: Any, groups: Any, first: int) -> Attention:
        rows = {name: groups if name in GROUPED else heads for name in PARTS if name != "output_bias"}
        given = {name: part for name in rows if (part := getattr(self.parts, name)) is not None}
        parts = {name: part[rows[name]].to(self.dtype) for name, part in given.items()}
        positions = self.options["positions"]
        options = {**self.options, "positions": positions if positions is None else positions.head(first)}
        return Attention(**parts, **options)

    def _normed(self, law: Attention, head: int | None) -> Attention | NormedAttention:
        """The law with norms, gates and sinks, of one head or of all."""
        if self.parts.plain:
            return law
        if self.joint and head is not None:
            raise UnsupportedError("queries and keys are normalised over all heads together, so no head stands alone")
        norms = {name: getattr(self.parts, name) for name in NORMS}
        key_norm = norms["key_norm"]
        if self.joint and isinstance(key_norm, Norm) and key_norm.gain is not None:
            gain = _repeat_groups(split_rows(key_norm.gain, self.groups), self.heads).flatten()
            norms["key_norm"] = replace(key_norm, gain=gain)
        tensors = {}
        for name in VARIANT:
            part = getattr(self.parts, name)
            if part is not None:
                whole = _repeat_groups(part, self.heads) if name in GROUPED else part
                tensors[name] = (whole if head is None else whole[head : head + 1]).to(self.dtype)
        return NormedAttention(law, joint=self.joint, normed=self.parts.normed, **norms, **tensors)


def make_heads(
    parts: Projections,
    *,
    scale: float,
    mask: Any = None,
    rotary: RotaryLayout | None = None,
    positions: Positions | None = None,
    kernel: Any = "softmax",
    joint: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Heads:
    """The heads of a layer from its projections; rotated coordinates are permuted to neighbouring pairs."""
    if rotary is not None:
        parts, positions = _convert_rotary(parts, rotary), rotary.positions
    return Heads(parts, {"scale": scale, "mask": mask, "positions": positions, "kernel": kernel}, joint, dtype)


def refine_heads(source: Heads, refinement: Refinement) -> Heads:
    """Heads with a refinement as further rows of query and key, to which positions and norms do not apply.

    Keys that several heads share are repeated where the rows of the refinement differ between these heads.
    """
    parts = source.parts
    if parts.value_norm is not None and isinstance(refinement, Shift):
        raise UnsupportedError(
            "the shift of a model with normalised values is not linear in the tokens, so it has no law"
        )
    if not isinstance(refinement, Shift):
        repeated = {name: part for name in GROUPED if (part := getattr(parts, name)) is not None}
        parts = replace(parts, **{name: _repeat_groups(part, source.heads) for name, part in repeated.items()})
    plain = {name: part.to(source.dtype) for name in PARTS if (part := getattr(parts, name)) is not None}
    wide = replace(parts, **plain, normed=parts.query.shape[1] if parts.normed is None else parts.normed)
    with torch.no_grad():
        query, key, bias = refinement.to(plain["query"]).rows(wide, None)
    merged = {"query": torch.cat((wide.query, query), 1), "key": torch.cat((wide.key, key), 1)}
    if wide.query_bias is not None:
        merged["query_bias"] = torch.nn.functional.pad(wide.query_bias, (0, query.shape[1]))
    if wide.key_bias is not None or bias is not None:
        first = wide.key.new_zeros(wide.key.shape[:2]) if wide.key_bias is None else wide.key_bias
        rest = wide.key.new_zeros(key.shape[:2]) if bias is None else bias
        merged["key_bias"] = torch.cat((first, rest), 1)
    return replace(source, parts=replace(wide, **merged))


def _repeat_groups(part: Tensor, heads: int) -> Tensor:
    """Keys or values (g, ...), repeated for the query heads of each group, (h, ...)."""
    groups = part.shape[0]
    return part if groups == heads else part.repeat_interleave(heads // groups, dim=0)


def _convert_rotary(parts: Projections, rotary: RotaryLayout) -> Projections:
    """Convert queries and keys to neighbouring pairs; the factor goes to the last linear map before the rotation."""
    changed: dict[str, Any] = {}
    for name in ("query", "key"):
        norm, gain = getattr(parts, f"{name}_norm"), getattr(parts, f"{name}_gain")
        arrange = rotary.convert if norm is None else rotary.permute
        matrix, bias = getattr(parts, name), getattr(parts, f"{name}_bias")
        changed[name] = arrange(matrix, 1)
        if bias is not None:
            changed[f"{name}_bias"] = arrange(bias, 1)
        if gain is not None:
            changed[f"{name}_gain"] = rotary.convert(gain, 1)
        elif isinstance(norm, Norm):
            changed[f"{name}_norm"] = _convert_norm(norm, rotary, matrix.shape[1], matrix.device)
        elif norm is not None and rotary.factor != 1.0:
            raise UnsupportedError("clipped queries and keys with scaled rotary positions are not supported")
    return replace(parts, **changed)


def _convert_norm(norm: Norm, rotary: RotaryLayout, k: int, device: torch.device) -> Norm:
    """The norm of one head (k,) or of all heads (h k,) after the permutation."""
    gain = torch.ones(k, dtype=torch.float64, device=device) if norm.gain is None else norm.gain
    bias = None if norm.bias is None else rotary.convert(norm.bias.reshape(-1, k), 1).flatten()
    return replace(norm, gain=rotary.convert(gain.reshape(-1, k), 1).flatten(), bias=bias)


def read_rotary(
    config: Any, head_dim: int, layer_type: str | None = None, half_split: bool = True
) -> RotaryLayout | None:
    """The rotary embedding of a layer, or None if it has none.

    Default angles are those of ``Rotary``; scaled ones (linear, Llama 3, YaRN, ...) are computed by transformers in float64.
    """
    settings = rope_settings(config, layer_type)
    if settings is None:
        return None
    kind, theta = settings.get("rope_type", "default"), float(settings["rope_theta"])
    if kind == "default":
        dim = int(head_dim * settings.get("partial_rotary_factor", 1.0))
        return RotaryLayout(Rotary(theta, dim), dim, half_split)
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if kind not in ROPE_INIT_FUNCTIONS:
        raise UnsupportedError(
            f"rotary positions of type {kind!r} are not supported; transformers has {', '.join(sorted(ROPE_INIT_FUNCTIONS))}"
        )
    nested = "rope_theta" not in config.rope_parameters
    options = {"layer_type": layer_type} if nested else {}
    with use_float64():
        angles, factor = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", **options)
        dim, short = 2 * len(angles), tuple(angles.double().tolist())
        if kind == "longrope":
            limit = int(settings["original_max_position_embeddings"])
            long, _ = ROPE_INIT_FUNCTIONS[kind](config, device="cpu", seq_len=limit + 1, **options)
            rotary: Rotary = LongRotary(theta, angles=short, long_angles=tuple(long.double().tolist()), limit=limit)
        elif kind == "dynamic":
            rotary = DynamicRotary(theta, dim, float(settings["factor"]), int(config.max_position_embeddings))
        else:
            rotary = ScaledRotary(theta, angles=short)
    return RotaryLayout(rotary, dim, half_split, float(factor))


def rope_settings(config: Any, layer_type: str | None = None) -> dict[str, Any] | None:
    """The rotary settings in a configuration, for one layer type or for all."""
    settings = getattr(config, "rope_parameters", None)
    if settings is None or "rope_theta" in settings:
        return settings
    return settings.get(layer_type)


def context_notes(config: Any, layer_type: str | None = None) -> tuple[str, ...]:
    """A note for rotary angles that depend on the length of the text."""
    settings = rope_settings(config, layer_type) or {}
    if settings.get("rope_type") in ("dynamic", "longrope"):
        return ("quantities at rotary offsets are those within the original context; longer texts change the angles",)
    return ()


Placement = Literal["none", "pre", "post", "peri"]


@dataclass(frozen=True)
class NoAttention:
    """In place of the heads of a block without attention, with the ``reason``: state-space, convolutional or feed-forward blocks of
    hybrid models."""

    dim: int
    reason: str
    heads: int = 0
    groups: int = 0


@dataclass(frozen=True, eq=False)
class Layer:
    """The self-attention of one layer.

    Attributes
    ----------
    index, name : place of the layer.
    source : the heads as they are stored; ``NoAttention`` in a block that has none.
    norm : the norm whose output attention reads.
    placement : of the norm: "pre" (it acts on a copy of the residual stream), "post" (the stream itself is normalised; ``norm`` is then
        the last one of the layer below), "peri" (before and after attention, or only after it) or "none".
    output_norm : the norm of the output of attention, before it is added to the stream.
    output_factor : factor of the output of the model's module before it is added to the stream (Granite); contained in ``source``.
    parallel : whether attention and feed-forward read the same tokens.
    undefined : quantities that do not exist in this layer, each with the reason: "interaction", "value_map".
    notes : remarks.
    """

    index: int
    name: str
    source: Heads | LatentAttention | NoAttention = field(repr=False)
    norm: Norm | None
    placement: Placement = "pre"
    output_norm: Norm | None = None
    output_factor: float = 1.0
    parallel: bool = False
    undefined: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def attention(self) -> Attention | NormedAttention | LatentAttention | NormedOutput:
        """The law of all heads: maps the output of ``norm`` to what is added to the stream. Built on each access, not cached."""
        return self._add_norm(self._own())

    def _own(self) -> Attention | NormedAttention | LatentAttention:
        """The law of all heads before ``output_norm``."""
        if isinstance(self.source, NoAttention):
            raise UnsupportedError(f"{self.name} has no law: {self.source.reason}")
        return self.source if isinstance(self.source, LatentAttention) else self.source.law()

    def _add_norm(self, law: Any) -> Any:
        return law if self.output_norm is None else NormedOutput(law, self.output_norm)

    def added(self, output: Tensor) -> Tensor:
        """What is added to the stream for the output of the model's own attention module."""
        output = output if self.output_factor == 1.0 else self.output_factor * output
        return output if self.output_norm is None else self.output_norm(output)

    @property
    def reads_copy(self) -> bool:
        """Whether attention reads a normalised copy of the stream that it adds to, so that the law on the stream is the folded one."""
        return self.placement in ("pre", "peri")

    @property
    def heads(self) -> int:
        return self.source.heads

    @property
    def groups(self) -> int:
        """Number of distinct keys and values."""
        return self.source.heads if isinstance(self.source, LatentAttention) else self.source.groups

    @property
    def dim(self) -> int:
        return self.source.dim

    def law(self, fold: bool = False) -> Law:
        """The law of all heads; with ``fold`` it contains the norm's gain, bias and centring and acts on ``bare_norm(x)``."""
        return self._add_norm(self._folded(self._own())) if fold else self.attention

    def head(self, index: int, fold: bool = False) -> Law:
        """One head, without the layer's output bias and output norm, which belong to no head."""
        if not 0 <= index < self.heads:
            raise InputError(f"{self.name} has heads 0 to {self.heads - 1}, not {index}")
        assert not isinstance(self.source, NoAttention)
        if isinstance(self.source, LatentAttention):
            rows = {name: getattr(self.source, name)[index : index + 1] for name in ("query", "key", "value", "output")}
            one: Law = dataclasses.replace(self.source, **rows, output_bias=None)
        else:
            one = self.source.head(index)
        return self._folded(one) if fold else one

    def select(self, heads: range, fold: bool = False, after: bool = True) -> Attention:
        """The matrices of some heads, or of all with the output bias: without norms of queries and keys, gates and sinks.

        With ``fold`` the norm before attention is folded into queries, keys and values, and the gain and centring of the norm after
        it into the outputs unless ``after`` is false: what remains of both norms are divisions by lengths.
        """
        assert isinstance(self.source, Heads)
        law = self.source.attention() if len(heads) == self.heads else self.source.select(heads)
        if not fold:
            return law
        law = self._folded(law)
        norm = self.output_norm
        if norm is None or law.output is None or not after:
            return law
        output, bias = law.output, law.output_bias
        if isinstance(norm, LayerNorm):
            output = output - output.mean(-2, keepdim=True)
            bias = None if bias is None else bias - bias.mean()
        if norm.gain is not None:
            gain = norm.gain.to(output)
            output, bias = output * gain[:, None], None if bias is None else bias * gain
        return dataclasses.replace(law, output=output, output_bias=bias)

    def in_stored_precision(self) -> Layer:
        """The layer with laws in float32 if its weights are stored with 16 bits, which float32 represents exactly."""
        source = self.source
        if not isinstance(source, Heads) or source.parts.query.dtype not in (torch.bfloat16, torch.float16):
            return self
        return dataclasses.replace(self, source=dataclasses.replace(source, dtype=torch.float32))

    @property
    def bare_norm(self) -> Norm | None:
        """The norm without gain and bias."""
        return None if self.norm is None else type(self.norm)(None, None, self.norm.eps)

    def _folded(self, law: Any) -> Any:
        from attractor.weights import fold_norm

        if self.norm is None:
            return law
        if isinstance(law, NormedAttention):
            if law.gate is None:
                return dataclasses.replace(law, attention=fold_norm(law.attention, self.norm))
            return dataclasses.replace(law, attention=fold_norm(law.attention, self.norm), **self._fold_gate(law))
        if isinstance(law, Attention):
            return fold_norm(law, self.norm)
        raise UnsupportedError(
            "the norm before a latent attention is not folded: it would have to pass the latent norms"
        )

    def _fold_gate(self, law: NormedAttention) -> dict[str, Tensor | None]:
        """The gate with the norm folded in."""
        assert law.gate is not None
        assert self.norm is not None
        gate, bias = law.gate, law.gate_bias
        if self.norm.bias is not None:
            shift = gate @ self.norm.bias.to(gate)
            bias = shift if bias is None else bias + shift
        gate = gate if self.norm.gain is None else gate * self.norm.gain.to(gate)
        centred = gate - gate.mean(-1, keepdim=True) if isinstance(self.norm, LayerNorm) else gate
        return {"gate": centred, "gate_bias": bias}
