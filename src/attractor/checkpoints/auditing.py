"""The audit of one layer: rows of its heads, with nulls, error bars and what they are without the norm, and of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attractor.attention import Attention, Rotary
from attractor.checkpoints.assembly import Heads
from attractor.checkpoints.audit_nulls import Shape, add_nulls, add_random, column_of, shapes_of
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.quantisation import error_bars, perturbed
from attractor.checkpoints.wide import Workspaces, groups_of, load, suits
from attractor.errors import UnsupportedError
from attractor.theory.weights.factors import Factors
from attractor.theory.weights.forms import BANDS
from attractor.theory.weights.growth import Growing
from attractor.theory.weights.heads import factors_of
from attractor.theory.weights.labels import Setting
from attractor.theory.weights.layers import value_spectrum
from attractor.theory.weights.lone import HeadRegime, head_regimes
from attractor.theory.weights.products import wide_heads
from attractor.theory.weights.quantities import NAMES, measured
from attractor.theory.weights.regime import regime_of

WIDE = 1024  # beyond this width a plain audit leaves out what costs more than reading the weights
CHUNK = 64 * 2**20  # bytes of the factors of heads that are looked at together, where a whole layer is not needed
OFFSETS = tuple(4**power for power in range(6))  # 1 to 1024


@dataclass(frozen=True)
class Settings:
    """How much is asked about each layer: ``sums`` of layers, ``plain`` numbers beside folded ones, ``draws`` of random heads,
    ``shifts`` of mismatched ones (0: none), rotary ``offsets``, perturbed ``copies`` of quantised weights."""

    fold: bool = True
    sums: bool = True
    plain: bool = True
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
    reads = layer.placement in ("pre", "peri")
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
    if settings.plain and settings.fold and layer.norm is not None:
        _add_plain(heads, whole, layer, settings)
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


def _add_plain(heads: list[dict[str, Any]], whole: dict[str, Any], layer: Layer, settings: Settings) -> None:
    """The same numbers of the weights as they are stored, without the norm's gain and centring."""
    columns = quantities(layer, fold=False)
    for index, row in enumerate(heads):
        row["plain"] = {name: _number(columns[name][index]) for name in NAMES}
    if settings.sums:
        ((_, law),) = laws(layer, False, True)
        value = value_spectrum([head for group in [factors_of(law)] for head in _heads(group)])
        whole["plain"] = {"value_abscissa": value.abscissa, "value_radius": value.radius}


def _heads(groups: list[Factors]) -> Any:
    from attractor.theory.weights.heads import heads_in

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
