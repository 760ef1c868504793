"""One layer of a checkpoint as laws."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

import torch

from attractor.attention import Attention, LatentAttention, Law, Norm, NormedAttention
from attractor.checkpoints.assembly import Heads
from attractor.errors import InputError, UnsupportedError

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
        from attractor.theory import fold

        if self.norm is None:
            return law
        if isinstance(law, NormedAttention):
            return dataclasses.replace(law, attention=fold(law.attention, self.norm))
        if isinstance(law, Attention):
            return fold(law, self.norm)
        raise UnsupportedError(
            "the norm before a latent attention is not folded: it would have to pass the latent norms"
        )
