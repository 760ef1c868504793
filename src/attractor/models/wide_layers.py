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
from attractor.weights import GrowthAccumulator, Products, is_narrow

TOGETHER = 4  # heads that are processed together, more where more share their keys


class Workspace:
    """Reusable memory for the rows of one group of heads."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def store(self, name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Copy a tensor into the memory of this name, whose previous content is lost."""
        key = name, dtype, values.device
        size, held = math.prod(values.shape), self._held.get(key)
        if held is None or held.numel() < size:
            held = self._held[key] = torch.empty(size, dtype=dtype, device=values.device)
        return held[:size].view(values.shape).copy_(values)


class WorkspacePool:
    """As many workspaces as threads use at the same time."""

    def __init__(self) -> None:
        self._free: SimpleQueue[Workspace] = SimpleQueue()

    @contextmanager
    def borrow(self) -> Iterator[Workspace]:
        """A workspace for the duration of a ``with`` block."""
        try:
            workspace = self._free.get_nowait()
        except Empty:
            workspace = Workspace()
        try:
            yield workspace
        finally:
            self._free.put(workspace)


class HeadGroup(NamedTuple):
    """Rows of n heads with g keys and values: query (n, k, d), key (g, k, d), value (g, r, d), output (g, d, n/g, r), value_bias (g, r)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    value_bias: Tensor | None

    def products(self) -> Products:
        return Products.of(self.query, self.key, self.value, self.output)

    def grow(self, growing: GrowthAccumulator, products: Products) -> None:
        """Add the contribution of these heads to the predicted growth of the stream."""
        outputs = self.output.sum(2)  # heads of a group share their values
        project = lambda inner: (outputs @ inner).sum(0).double().cpu()  # noqa: E731
        moved = project(self.value @ growing.probes.to(self.value))
        drift = None if self.value_bias is None else project(self.value_bias[..., None])[:, 0]
        growing.count(float(products.value_output.diagonal(dim1=-2, dim2=-1).sum()), moved, drift)


def is_wide(layer: Layer) -> bool:
    """Whether the heads of a layer can be reduced to inner products of their rows."""
    source = layer.source
    return isinstance(source, Heads) and is_narrow(source.parts.query.shape[1], source.parts.value.shape[1], layer.dim)


def head_groups(layer: Layer) -> list[range]:
    """The heads of a layer in ranges that hold whole groups of shared keys."""
    shared = layer.heads // layer.groups
    many = shared * max(1, TOGETHER // shared)
    return [range(start, min(start + many, layer.heads)) for start in range(0, layer.heads, many)]


def load_group(layer: Layer, members: range, fold: bool, workspace: Workspace) -> HeadGroup:
    """Load heads that make whole groups into a workspace, with the norm folded in if ``fold``."""
    source = layer.source
    assert isinstance(source, Heads)
    parts, dtype, shared = source.parts, source.dtype, source.heads // source.groups
    chosen, groups = slice(members.start, members.stop), slice(members.start // shared, members.stop // shared)
    norm = layer.norm if fold else None
    query = workspace.store("query", parts.query[chosen], dtype)
    key, value = (workspace.store(name, getattr(parts, name)[groups], dtype) for name in ("key", "value"))
    bias = None if parts.value_bias is None else parts.value_bias[groups].to(dtype)
    if norm is not None and norm.bias is not None:
        shift = value @ norm.bias.to(dtype)
        bias = shift if bias is None else shift + bias
    for rows in (query, key, value):
        _fold_in_place(rows, norm)
    output = workspace.store("output", parts.output[chosen].unflatten(0, (-1, shared)).transpose(1, 2), dtype)
    after = layer.output_norm if fold else None
    if isinstance(after, LayerNorm):
        output.sub_(output.mean(1, keepdim=True))
    if after is not None and after.gain is not None:
        output.mul_(after.gain.to(dtype)[:, None, None])
    return HeadGroup(query, key, value, output, bias)


def _fold_in_place(rows: Tensor, norm: Norm | None) -> None:
    """Apply the gain and the centring of a norm to rows (..., d)."""
    if norm is not None and norm.gain is not None:
        rows.mul_(norm.gain.to(rows.dtype))
    if isinstance(norm, LayerNorm):
        rows.sub_(rows.mean(-1, keepdim=True))
