"""Wide layers in groups of heads, converted into reused memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import NamedTuple

import torch
from torch import Tensor

from attractor.laws import LayerNorm, Norm
from attractor.models.attention_layers import Heads, Layer
from attractor.weights import Growing, Products, fits

TOGETHER = 4  # heads that are looked at together, more where more share their keys


class Workspace:
    """Memory for the rows of one group."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype], Tensor] = {}

    def rows(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Room for a tensor; what it held before is lost."""
        size, held = math.prod(shape), self._held.get((name, dtype))
        if held is None or held.numel() < size:
            held = self._held[name, dtype] = torch.empty(size, dtype=dtype)
        return held[:size].view(shape)


class Workspaces:
    """As many as are in use at the same time."""

    def __init__(self) -> None:
        self._free: SimpleQueue[Workspace] = SimpleQueue()

    @contextmanager
    def one(self) -> Iterator[Workspace]:
        try:
            space = self._free.get_nowait()
        except Empty:
            space = Workspace()
        try:
            yield space
        finally:
            self._free.put(space)


class Group(NamedTuple):
    """Rows of some heads in a workspace: query (n, k, d), key (g, k, d), value (g, r, d), output (g, d, n/g, r), value_bias (g, r)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    value_bias: Tensor | None

    def products(self) -> Products:
        return Products.of(self.query, self.key, self.value, self.output)

    def grow(self, growing: Growing, products: Products) -> None:
        """Count what these heads add to a stream."""
        outputs = self.output.sum(2)  # heads of a group write what they share
        written = lambda inner: (outputs @ inner).sum(0).double()  # noqa: E731
        moved = written(self.value @ growing.probes.to(self.value.dtype))
        drift = None if self.value_bias is None else written(self.value_bias[..., None])[:, 0]
        growing.count(float(products.value_output.diagonal(dim1=-2, dim2=-1).sum()), moved, drift)


def suits(layer: Layer) -> bool:
    """Whether a layer may be looked at in this way."""
    source = layer.source
    return isinstance(source, Heads) and fits(source.parts.query.shape[1], source.parts.value.shape[1], layer.dim)


def groups_of(layer: Layer) -> list[range]:
    """The heads of a layer in ranges that hold whole groups."""
    shared = layer.heads // layer.groups
    many = shared * max(1, TOGETHER // shared)
    return [range(start, min(start + many, layer.heads)) for start in range(0, layer.heads, many)]


def load(layer: Layer, members: range, fold: bool, space: Workspace) -> Group:
    """Heads that make whole groups, the norm folded in if asked."""
    source = layer.source
    assert isinstance(source, Heads)
    parts, dtype, shared = source.parts, source.dtype, source.heads // source.groups
    chosen, groups = slice(members.start, members.stop), slice(members.start // shared, members.stop // shared)
    norm = layer.norm if fold else None
    query, key, value = (
        _copied(space, name, part, dtype)
        for name, part in (("query", parts.query[chosen]), ("key", parts.key[groups]), ("value", parts.value[groups]))
    )
    bias = None if parts.value_bias is None else parts.value_bias[groups].to(dtype)
    if norm is not None and norm.bias is not None:
        shift = value @ norm.bias.to(dtype)
        bias = shift if bias is None else shift + bias
    for rows in (query, key, value):
        _fold(rows, norm)
    output = parts.output[chosen].unflatten(0, (-1, shared)).transpose(1, 2)
    return Group(query, key, value, _copied(space, "output", output, dtype), bias)


def _copied(space: Workspace, name: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
    return space.rows(name, tuple(stored.shape), dtype).copy_(stored)


def _fold(rows: Tensor, norm: Norm | None) -> None:
    """The gain and the centring of a norm, in place."""
    if norm is not None and norm.gain is not None:
        rows.mul_(norm.gain.to(rows.dtype))
    if isinstance(norm, LayerNorm):
        rows.sub_(rows.mean(-1, keepdim=True))
