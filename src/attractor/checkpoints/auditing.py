"""The audit of one layer: rows of its heads, with nulls, error bars and what they are without the norm, and of the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attractor.attention import Attention, Rotary
from attractor.checkpoints.assembly import Heads
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.quantisation import error_bars, perturbed
from attractor.errors import UnsupportedError
from attractor.theory.weights.compression import compressed
from attractor.theory.weights.factors import Factors
from attractor.theory.weights.forms import BANDS
from attractor.theory.weights.growth import Growing
from attractor.theory.weights.heads import factors_of
from attractor.theory.weights.layers import value_spectrum
from attractor.theory.weights.lone import HeadRegime
from attractor.theory.weights.nulls import nulls
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


def audit_layer(layer: Layer, index: int, settings: Settings) -> LayerAudit:
    """All heads of a layer and the layer itself."""
    heads: list[dict[str, Any]] = []
    spectra: list[Spectra] = []
    whole: dict[str, Any] = {"layer": index, "name": layer.name, "heads": layer.heads, "dim": layer.dim}
    # attention adds to what it reads, but for a norm between: then the folded law is what reads the stream
    reads = layer.placement in ("pre", "peri")
    growing = Growing(layer.dim)

    def look(members: range) -> tuple[list[dict[str, Any]], list[Spectra], dict[str, Any]]:
        law = law_of(layer, members, settings.fold)
        if settings.fold == reads:
            growing.add(law)
        return _some_heads(law, layer, index, members, settings)

    for rows, seen, summed in at_once(look, parts_of(layer, settings.sums), layer.dim):
        heads += rows
        spectra += seen
        whole |= summed
    if settings.plain and settings.fold and layer.norm is not None:
        _add_plain(heads, whole, layer, settings)
    if settings.fold != reads:
        for members in parts_of(layer, settings.sums):
            growing.add(law_of(layer, members, reads))
    assert isinstance(layer.source, Heads)
    whole |= {
        **growing.result(layer.source.parts.output_bias).row(),
        "growth_reads": "normed" if reads else "stream",
    }
    return LayerAudit(heads, whole, spectra)


def at_once(look: Callable[[range], Any], parts: list[range], dim: int) -> Iterator[Any]:
    """Look at the parts of a layer, one after the other or, in wide models, one on each processor: small eigenproblems use only one."""
    if len(parts) < 2 or dim <= WIDE:
        yield from map(look, parts)
        return
    with ThreadPoolExecutor(torch.get_num_threads(), "attractor-heads", torch.set_num_threads, (1,)) as pool:
        yield from pool.map(look, parts)


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


def _some_heads(
    law: Attention, layer: Layer, index: int, members: range, settings: Settings
) -> tuple[list[dict[str, Any]], list[Spectra], dict[str, Any]]:
    """The rows of some heads, their spectra, and what is said of all of them together."""
    band, alone = BANDS.get(law.query.dtype, 1e-5), not settings.sums and not settings.shifts
    # heads that are looked at one by one need no common space
    factors = (compressed(law) if alone else None) or factors_of(law)
    found = regime_of(law, factors, layer=index, sums=settings.sums, offsets=settings.offsets, band=band)
    rows = [_row(row, layer, members) for row in found.heads]
    if settings.draws:
        _add_nulls(rows, members, factors, settings)
    summed = {} if found.layer is None else {**found.layer.row(), "name": layer.name}
    return rows, [_spectra(row) for row in found.heads], summed


def _row(row: HeadRegime, layer: Layer, members: range) -> dict[str, Any]:
    return {**row.row(), "head": members[row.head], "name": layer.name}


def _spectra(row: HeadRegime) -> Spectra:
    forms = row.interaction, row.reduced_interaction, row.reduced_metric, row.value
    return Spectra(*(form.eigenvalues for form in forms))


def _add_nulls(rows: list[dict[str, Any]], members: range, factors: list[Factors], settings: Settings) -> None:
    """Nulls of heads of one shape."""
    for group in factors:
        own = [rows[index] for index in group.members]
        columns = {name: torch.tensor(_column(own, name), dtype=torch.float64) for name in NAMES}
        found = nulls(group, columns, draws=settings.draws, shifts=settings.shifts, seed=settings.seed)
        for row, null in zip(own, found, strict=True):
            row["nulls"] = null


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [float("nan") if row[name] is None else row[name] for row in rows]


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
    stored = {name: _column(rows, name) for name in NAMES}
    seeds = range(settings.seed, settings.seed + settings.copies)
    copies = [quantities(copy.layers[index], settings.fold) for copy in perturbed(checkpoint, seeds)]
    for row, bars in zip(rows, error_bars(stored, copies), strict=True):
        row["errors"] = bars
