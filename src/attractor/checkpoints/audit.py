"""What the weights of a model say, head by head: spectra of weights alone, no data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from attractor.checkpoints.auditing import WIDE, LayerAudit, Settings, Spectra, add_error_bars, audit_layer, obstacle
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.checkpoints.quantisation import Quantised
from attractor.checkpoints.wide import Workspaces
from attractor.errors import InputError
from attractor.memory import hand_back

Detail = Literal["auto", "full", "heads"]
WORKERS = 8  # layers of a narrow model that are in memory together
T = TypeVar("T")


@dataclass(frozen=True)
class Audit:
    """One row for each head and each layer, as ``regime`` gives them, with the nulls of every head (``nulls``), its numbers
    without the norm (``plain``) and error bars of quantised weights (``errors``); ``undefined`` says which layers have none, and why.

    ``card`` says what was audited and how; ``spectra`` has the eigenvalues of every head, in the order of ``heads``.
    """

    model: str
    family: str
    folded: bool
    heads: tuple[dict[str, Any], ...]
    layers: tuple[dict[str, Any], ...]
    undefined: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]
    seconds: float
    card: dict[str, Any] = field(default_factory=dict)
    spectra: tuple[Spectra, ...] = field(default=(), repr=False, compare=False)

    def row(self) -> dict[str, Any]:
        """Ready for JSON; eigenvalues are left out."""
        return {name: value for name, value in vars(self).items() if name != "spectra"}

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained page; needs ``attractor[report]``."""
        from attractor.checkpoints.audit_page import audit_report

        return audit_report([self], command=f"at.audit({self.model!r}, fold={self.folded})").write(path)

    def __repr__(self) -> str:
        from attractor.checkpoints.audit_words import line

        return line(self)

    def _repr_html_(self) -> str:
        from attractor.checkpoints.audit_words import table

        return table(self)


def audit(
    source: Any,
    *,
    fold: bool = True,
    detail: Detail = "auto",
    sums: bool | None = None,
    nulls: int = 64,
    layers: Sequence[int] | None = None,
    verify: bool | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Audit:
    """Classify every head of a model by its weights, one layer in memory at a time.

    Parameters
    ----------
    source : a Checkpoint, or anything ``checkpoint`` opens.
    fold : take the gain, bias and centring of the norm before attention into the weights.
    detail : "heads" asks about heads alone; "full" adds mismatched heads, the numbers without the norm, rotary offsets, error bars of
        quantised weights, and sums of layers, for which matrices of size d are formed; "auto" is "full" up to a width of 1024.
    sums : the sums of layers, whatever ``detail`` says.
    nulls : how many random heads each head is compared with; 0 leaves out all nulls.
    layers : which ones; all by default.
    verify : compare our attention with the model's own on three layers first; by default up to a width of 1024.

    Where scores are not bilinear there is nothing to classify, and the reason is given.
    """
    start, found = time.perf_counter(), source if isinstance(source, Checkpoint) else open_checkpoint(source)
    if detail not in ("auto", "full", "heads"):
        raise InputError(f"detail must be 'auto', 'full' or 'heads', got {detail!r}")
    if nulls and nulls < 3:
        raise InputError(f"nulls must be 0 or at least 3 random heads, got {nulls}")
    full = found.dim <= WIDE if detail == "auto" else detail == "full"
    settings = _settings(full, fold, sums, nulls, seed)
    chosen = range(len(found.layers)) if layers is None else layers
    parts: list[LayerAudit] = []
    undefined: list[dict[str, Any]] = []
    spaces = Workspaces()
    quantised = isinstance(found.tensors, Quantised) and full

    def look(index: int, layer: Layer) -> LayerAudit | dict[str, Any]:
        layer = layer if full else layer.in_stored_precision()
        reason = obstacle(layer)
        if reason is not None:
            return {"layer": index, "name": layer.name, "reason": reason}
        part = audit_layer(layer, index, settings, spaces)
        if quantised:
            add_error_bars(part.heads, found, index, settings)
        return part

    for count, part in enumerate(each_layer(found, chosen, look)):
        if isinstance(part, LayerAudit):
            parts.append(part)
        else:
            undefined.append(part)
        if progress is not None:
            progress(count + 1)
    checked = found.dim <= WIDE if verify is None else verify
    card = {
        **card_of(found),
        "verified": _verified(found, list(chosen)) if checked else None,
        "settings": vars(settings),
    }
    rows = (tuple(row for part in parts for row in part.heads), tuple(part.layer for part in parts), tuple(undefined))
    spectra = tuple(one for part in parts for one in part.spectra)
    notes = found.notes + _left_out(found, full, settings)
    return Audit(found.name, found.family.name, fold, *rows, notes, time.perf_counter() - start, card, spectra)


def each_layer(found: Checkpoint, chosen: Sequence[int], look: Callable[[int, Layer], T]) -> Iterator[T]:
    """What is seen in each layer: of narrow models several at once, of wide ones one after the other.

    Small eigenproblems gain nothing from several threads, and on a busy machine lose most of their time waiting for each other: so
    every layer of a narrow model has a thread of its own.
    """
    threads = torch.get_num_threads()
    try:
        if found.dim > WIDE:
            for one in map(look, chosen, found.layers.ahead(chosen)):
                hand_back()  # what a layer leaves behind would be kept, and add up from layer to layer
                yield one
            return
        torch.set_num_threads(1)
        assert found.reader  # found once, before several threads ask for it
        pool = ThreadPoolExecutor(min(threads, WORKERS), "attractor-layers", torch.set_num_threads, (1,))
        try:
            yield from pool.map(lambda index: look(index, found.layers[index]), chosen)
        finally:
            pool.shutdown(cancel_futures=True)
    finally:
        torch.set_num_threads(threads)


def _settings(full: bool, fold: bool, sums: bool | None, nulls: int, seed: int) -> Settings:
    summed = full if sums is None else sums
    if full:
        return Settings(fold, summed, fold, nulls, 8 if nulls else 0, seed=seed)
    return Settings(fold, summed, False, nulls, 0, (), 0, seed)


def _left_out(found: Checkpoint, full: bool, settings: Settings) -> tuple[str, ...]:
    if full:
        return ()
    return (
        f"mismatched heads, rotary offsets, numbers without the norm{'' if settings.sums else ', sums of layers'}"
        " and error bars were left out (detail is not full)",
    )


def card_of(found: Checkpoint) -> dict[str, Any]:
    """What a model is: its family, sizes and source."""
    layer = found.layers[0]
    return {
        "title": found.family.title,
        "model_type": getattr(found.config, "model_type", None),
        "layers": len(found.layers),
        "heads": layer.heads,
        "groups": layer.groups,
        "dim": found.dim,
        "placement": layer.placement,
        "norm": None if layer.norm is None else type(layer.norm).__name__,
        "source": found.tensors.describe(),
        "remark": found.family.remark,
    }


def _verified(found: Checkpoint, chosen: list[int]) -> dict[str, Any]:
    """Our attention against the model's own on the first, the middle and the last layer."""
    picked = sorted({chosen[0], chosen[len(chosen) // 2], chosen[-1]}) if chosen else []
    try:
        checks = found.verify(layers=picked)
    except Exception as error:  # transformers may have no code for a model whose tensors we can read
        return {
            "layers": picked,
            "error": None,
            "reason": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
        }
    return {"layers": picked, "error": checks.error, "reason": None}
