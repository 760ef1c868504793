"""What the weights of a model say, head by head: spectra of weights alone, no data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attractor.attention import Attention
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.errors import UnsupportedError
from attractor.theory import regime


@dataclass(frozen=True)
class Audit:
    """One row for each head and each layer, as ``regime`` gives them; ``undefined`` says which layers have none, and why."""

    model: str
    family: str
    folded: bool
    heads: tuple[dict[str, Any], ...]
    layers: tuple[dict[str, Any], ...]
    undefined: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    seconds: float


def audit(
    source: Any,
    *,
    fold: bool = True,
    sums: bool = True,
    layers: Sequence[int] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Classify every head of a model by its weights, one layer in memory at a time.

    ``fold`` takes the gain, bias and centring of the norm before attention into the weights; ``sums`` adds the layers as wholes, for
    which matrices of size d are formed. Where scores are not bilinear there is nothing to classify, and the reason is given.
    """
    start, found = time.perf_counter(), source if isinstance(source, Checkpoint) else open_checkpoint(source)
    heads: list[dict[str, Any]] = []
    whole: list[dict[str, Any]] = []
    undefined: list[dict[str, Any]] = []
    for count, index in enumerate(range(len(found.layers)) if layers is None else layers):
        layer = found.layers[index]
        reason = obstacle(layer)
        if reason is not None:
            undefined.append({"layer": index, "name": layer.name, "reason": reason})
        elif sums:
            both = regime(layer.law(fold=fold), layer=index)
            heads += [{**row.row(), "name": layer.name} for row in both.heads]
            whole += [] if both.layer is None else [{**both.layer.row(), "name": layer.name}]
        else:
            heads += [_head(layer, index, head, fold) for head in range(layer.heads)]
        if progress is not None:
            progress(count + 1)
    seconds = time.perf_counter() - start
    parts = tuple(heads), tuple(whole), tuple(undefined)
    return Audit(found.name, found.family.name, fold, *parts, found.notes, seconds)


def obstacle(layer: Layer) -> str | None:
    """Why the heads of a layer have no matrices to classify, or None."""
    if "interaction" in layer.undefined:
        return layer.undefined["interaction"]
    try:
        first = layer.head(0)
    except UnsupportedError as error:
        return str(error)
    return None if isinstance(first, Attention) else f"a {type(first).__name__} has no bilinear scores"


def _head(layer: Layer, index: int, head: int, fold: bool) -> dict[str, Any]:
    row = regime(layer.head(head, fold=fold), layer=index, sums=False).heads[0].row()
    return {**row, "head": head, "name": layer.name}
