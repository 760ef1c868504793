"""``audit``: spectra and regimes of every head, from weights alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import Attention, Rotary
from attractor.memory import hand_back
from attractor.models.attention_layers import Heads, Layer
from attractor.models.checkpoints import Checkpoint
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.quantisation import Quantised, error_bars, perturbed
from attractor.models.wide_layers import Workspaces, groups_of, load, suits
from attractor.weights import (
    BANDS,
    NAMES,
    Factors,
    Growing,
    HeadRegime,
    Setting,
    SmallMatrices,
    beside,
    drawn_like,
    factors_of,
    head_regimes,
    measured,
    nulls,
    others,
    regime_of,
    value_spectrum,
    wide_heads,
)


class Shape(NamedTuple):
    """What random heads must be like to be compared with one: its sizes, and the norms of its W and its value."""

    dim: int
    sizes: tuple[int, int]
    interaction: float
    value: float


def shapes_of(heads: SmallMatrices) -> list[Shape]:
    norms = (norm.tolist() for norm in heads.norms)
    return [Shape(heads.dim, heads.sizes, *pair) for pair in zip(*norms, strict=True)]


def add_nulls(rows: list[dict[str, Any]], factors: list[Factors], draws: int, shifts: int, seed: int) -> None:
    """Nulls of heads of one shape, mismatched heads among them."""
    for group in factors:
        own = [rows[index] for index in group.members]
        found = nulls(group, columns_of(own), draws=draws, shifts=shifts, seed=seed)
        for row, null in zip(own, found, strict=True):
            row["nulls"] = null


def add_random(rows: list[dict[str, Any]], shapes: list[Shape], draws: int, seed: int) -> None:
    """Random heads beside all those of a layer that have one shape, and what one half decides beside the other heads."""
    for dim, sizes in sorted({(shape.dim, shape.sizes) for shape in shapes}):
        chosen = [index for index, shape in enumerate(shapes) if (shape.dim, shape.sizes) == (dim, sizes)]
        own = [rows[index] for index in chosen]
        columns, drawn = columns_of(own), drawn_like(dim, sizes, draws, seed)
        norms = (
            torch.tensor([getattr(shapes[index], name) for index in chosen], dtype=torch.float64)
            for name in ("interaction", "value")
        )
        for row, null in zip(own, beside(drawn, (next(norms), next(norms)), columns, others(columns)), strict=True):
            row["nulls"] = null


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    return {name: torch.tensor(column_of(rows, name), dtype=torch.float64) for name in NAMES}


def column_of(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [float("nan") if row[name] is None else row[name] for row in rows]


WIDE = 1024  # beyond this width a plain audit leaves out what costs more than reading the weights
CHUNK = 64 * 2**20  # bytes of the factors of heads that are looked at together, where a whole layer is not needed
OFFSETS = tuple(4**power for power in range(6))  # 1 to 1024


@dataclass(frozen=True)
class Settings:
    """How much is asked about each layer: ``sums`` of layers, ``both`` folded numbers and plain ones, ``draws`` of random heads,
    ``shifts`` of mismatched ones (0: none), rotary ``offsets``, perturbed ``copies`` of quantised weights."""

    fold: bool = True
    sums: bool = True
    both: bool = True
    draws: int = 64
    shifts: int = 8
    offsets: tuple[int, ...] = OFFSETS
    copies: int = 6
    seed: int = 0


class Spectra(NamedTuple):
    """Eigenvalues of one head or layer: of the symmetric parts of W and of the reduced forms, and of the value (complex)."""

    interaction: Tensor
    reduced_interaction: Tensor
    reduced_metric: Tensor
    value: Tensor


class LayerAudit(NamedTuple):
    """The rows of one layer."""

    heads: list[dict[str, Any]]
    layer: dict[str, Any]
    spectra: list[Spectra]


def obstacle(layer: Layer) -> str | None:
    """Why the heads of a layer have no matrices to classify, or None."""
    if "interaction" in layer.undefined:
        return layer.undefined["interaction"]
    try:
        first = layer.head(0)
    except UnsupportedError as error:
        return str(error)
    return None if isinstance(first, Attention) else f"a {type(first).__name__} has no bilinear scores"


def audit_layer(layer: Layer, index: int, settings: Settings, spaces: Workspaces | None = None) -> LayerAudit:
    """All heads of a layer and the layer itself; ``spaces`` is memory that is kept from layer to layer."""
    heads: list[dict[str, Any]] = []
    spectra: list[Spectra] = []
    whole: dict[str, Any] = {"layer": index, "name": layer.name, "heads": layer.heads, "dim": layer.dim}
    # attention adds to what it reads, but for a norm between: then the folded law is what reads the stream
    reads = layer.reads_copy
    growing, counted = Growing(layer.dim), settings.fold == reads
    look, parts = _ways(layer, index, settings, growing if counted else None, spaces or Workspaces())
    shapes: list[Shape] = []
    for rows, seen, summed, kinds in at_once(look, parts, layer.dim):
        heads += rows
        spectra += seen
        whole |= summed
        shapes += kinds
    if settings.draws and not settings.shifts:
        add_random(heads, shapes, settings.draws, settings.seed)
    if settings.both and layer.norm is not None:
        _add_other(heads, whole, layer, settings)
    if not counted:
        for members in parts_of(layer, settings.sums):
            growing.add(law_of(layer, members, reads))
    assert isinstance(layer.source, Heads)
    whole |= {
        **growing.result(layer.source.parts.output_bias).row(),
        "growth_reads": "normed" if reads else "stream",
    }
    return LayerAudit(heads, whole, spectra)


class Part(NamedTuple):
    """What is seen of some heads."""

    rows: list[dict[str, Any]]
    spectra: list[Spectra]
    summed: dict[str, Any]
    shapes: list[Shape]


def _ways(
    layer: Layer, index: int, settings: Settings, growing: Growing | None, spaces: Workspaces
) -> tuple[Callable[[range], Part], list[range]]:
    """How heads are looked at, and which of them together: wide ones by inner products where nothing is asked that mixes heads."""

    def whole(members: range) -> Part:
        law = law_of(layer, members, settings.fold)
        if growing is not None:
            growing.add(law)
        return _some_heads(law, layer, index, members, settings)

    mixing = settings.sums or settings.shifts > 0
    if mixing or layer.dim <= WIDE or not suits(layer):
        return whole, parts_of(layer, mixing)
    first = layer.head(0, settings.fold)
    assert isinstance(first, Attention)
    setting, band = Setting.of(first), BANDS.get(first.query.dtype, 1e-5)
    positions = first.positions if isinstance(first.positions, Rotary) else None
    options = setting, positions, settings.offsets, band, first.query.dtype != torch.float64, index

    def wide(members: range) -> Part:
        with spaces.one() as space:
            group = load(layer, members, settings.fold, space)
            products = group.products()
            if growing is not None:
                group.grow(growing, products)
        found = wide_heads(products, first.scale, layer.dim, members)
        if found is None:  # rows that are nearly dependent
            return _some_heads(law_of(layer, members, settings.fold), layer, index, members, settings)
        rows = head_regimes(found, *options)
        return Part([_row(row, layer) for row in rows], [_spectra(row) for row in rows], {}, shapes_of(found))

    return wide, groups_of(layer)


def at_once(look: Callable[[range], Any], parts: list[range], dim: int) -> Iterator[Any]:
    """Look at the parts of a layer, one after the other or, in wide models, one on each processor: small eigenproblems use only one."""
    if len(parts) < 2 or dim <= WIDE:
        yield from map(look, parts)
        return
    yield from _pool(torch.get_num_threads()).map(look, parts)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that are kept: the libraries of linear algebra hold buffers for every thread that they have ever seen."""
    return ThreadPoolExecutor(threads, "attractor-heads", torch.set_num_threads, (1,))


def parts_of(layer: Layer, together: bool) -> list[range]:
    """The heads of a layer in ranges that fit into CHUNK, or all together; those whose positions differ from head to head one by one."""
    source = layer.source
    assert isinstance(source, Heads)
    size = 8 * sum(
        part[0].numel() for part in (source.parts.query, source.parts.key, source.parts.value, source.parts.output)
    )
    many = max(1, CHUNK // size)
    positions = source.options["positions"]
    if together or many >= layer.heads:
        return [range(layer.heads)]
    if positions is not None and not isinstance(positions, Rotary):
        many = 1
    return [range(start, min(start + many, layer.heads)) for start in range(0, layer.heads, many)]


def law_of(layer: Layer, members: range, fold: bool) -> Attention:
    """The law of some heads, or of the whole layer."""
    law = layer.law(fold=fold) if len(members) == layer.heads else layer.some(members, fold=fold)
    assert isinstance(law, Attention)
    return law


def laws(layer: Layer, fold: bool, together: bool) -> Iterator[tuple[range, Attention]]:
    """The heads of a layer in one law, or in several."""
    for members in parts_of(layer, together):
        yield members, law_of(layer, members, fold)


def _some_heads(law: Attention, layer: Layer, index: int, members: range, settings: Settings) -> Part:
    """The rows of some heads, their spectra, and what is said of all of them together."""
    band, factors = BANDS.get(law.query.dtype, 1e-5), factors_of(law)
    found = regime_of(law, factors, layer=index, sums=settings.sums, offsets=settings.offsets, band=band)
    rows = [_row(row, layer, members) for row in found.heads]
    if settings.draws and settings.shifts:
        add_nulls(rows, factors, settings.draws, settings.shifts, settings.seed)
    summed = {} if found.layer is None else {**found.layer.row(), "name": layer.name}
    shapes = dict(pair for group in factors for pair in zip(group.members, shapes_of(group.grams()), strict=True))
    return Part(rows, [_spectra(row) for row in found.heads], summed, [shapes[member] for member in sorted(shapes)])


def _row(row: HeadRegime, layer: Layer, members: range | None = None) -> dict[str, Any]:
    return {**row.row(), "head": row.head if members is None else members[row.head], "name": layer.name}


def _spectra(row: HeadRegime) -> Spectra:
    forms = row.interaction, row.reduced_interaction, row.reduced_metric, row.value
    return Spectra(*(form.eigenvalues for form in forms))


def _add_other(heads: list[dict[str, Any]], whole: dict[str, Any], layer: Layer, settings: Settings) -> None:
    """The same numbers of the weights as they are stored, without the norm's gain and centring, or with them if these were left out."""
    name, fold = ("plain", False) if settings.fold else ("folded", True)
    columns = quantities(layer, fold)
    for index, row in enumerate(heads):
        row[name] = {one: _number(columns[one][index]) for one in NAMES}
    if settings.sums:
        ((_, law),) = laws(layer, fold, True)
        value = value_spectrum([head for group in [factors_of(law)] for head in _heads(group)])
        whole[name] = {"value_abscissa": value.abscissa, "value_radius": value.radius}


def _heads(groups: list[Factors]) -> Any:
    from attractor.weights import heads_in

    return heads_in(groups)


def _number(value: float) -> float | None:
    return value if value == value else None


def quantities(layer: Layer, fold: bool) -> dict[str, list[float]]:
    """The quantities of every head of a layer, as columns."""
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for members, law in laws(layer, fold, False):
        table = {name: [0.0] * len(members) for name in NAMES}
        for group in factors_of(law):
            for name, column in measured(group.grams()).items():
                for member, value in zip(group.members, column.tolist(), strict=True):
                    table[name][member] = value
        for name in NAMES:
            found[name] += table[name]
    return found


def add_error_bars(rows: list[dict[str, Any]], checkpoint: Checkpoint, index: int, settings: Settings) -> None:
    """Error bars of quantised weights for the heads of one layer."""
    stored = {name: column_of(rows, name) for name in NAMES}
    seeds = range(settings.seed, settings.seed + settings.copies)
    copies = [quantities(copy.layers[index], settings.fold) for copy in perturbed(checkpoint, seeds)]
    for row, bars in zip(rows, error_bars(stored, copies), strict=True):
        row["errors"] = bars


Detail = Literal["auto", "full", "heads"]
WORKERS = 8  # layers of a narrow model that are in memory together
T = TypeVar("T")


@dataclass(frozen=True)
class Audit:
    """One row for each head and each layer, as ``regime`` gives them, with the nulls of every head (``nulls``), its numbers without the
    norm (``plain``) or, in post-norm models, with it (``folded``), and error bars of quantised weights (``errors``); ``undefined`` says
    which layers have none, and why.

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
        report = import_module("attractor.report")  # a higher layer, loaded on demand
        return report.audit_report([self], command=f"at.audit({self.model!r}, fold={self.folded})").write(path)

    def __repr__(self) -> str:
        from attractor.models.audit_rows import line

        return line(self)

    def _repr_html_(self) -> str:
        from attractor.models.audit_rows import table

        return table(self)


def audit(
    source: Any,
    *,
    fold: bool | None = None,
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
    fold : take the gain, bias and centring of the norm before attention into the weights. By default where attention reads a
        normalised copy of the stream (pre-norm); in post-norm models the norm belongs to the block below, and attention adds to
        the very tokens that it reads.
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
    folded = found.layers[0].reads_copy if fold is None else fold
    settings = _settings(full, folded, folded or fold is None, sums, nulls, seed)
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
    return Audit(found.name, found.family.name, folded, *rows, notes, time.perf_counter() - start, card, spectra)


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


def _settings(full: bool, fold: bool, both: bool, sums: bool | None, nulls: int, seed: int) -> Settings:
    summed = full if sums is None else sums
    if full:
        return Settings(fold, summed, both, nulls, 8 if nulls else 0, seed=seed)
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
