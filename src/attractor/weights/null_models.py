"""Null models of heads: random weights and mismatched halves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Rotary
from attractor.weights.classification import Label, Setting, classify_heads, classify_layer
from attractor.weights.factors import Factors, Products, SmallMatrices, is_narrow, reduce_products
from attractor.weights.quantities import NAMES, QUANTITIES, compute_quantities, measure_values

DRAWS, SHIFTS = 64, 8
LAYERS = 4  # random layers: each costs as much as the sum over the heads of a layer


@dataclass(frozen=True)
class NullScore:
    """Position of one quantity of a head within a null sample.

    ``mean`` and ``spread`` (standard deviation) describe the ``count`` sampled values; ``deviations`` is (value - mean) / spread, None
    where the sample has no spread.
    """

    mean: float
    spread: float
    deviations: float | None
    count: int


@dataclass(frozen=True)
class Nulls:
    """Scores of one quantity under both null models; None where a sample is too small or not finite."""

    random: NullScore | None
    mismatched: NullScore | None


@dataclass(frozen=True, eq=False)
class RandomHeads:
    """Draws of random heads of one shape whose W and V have Frobenius norm one: columns (draws,), the eigenvalues of V, and the
    Frobenius norm of V before it was made one (draws,)."""

    columns: dict[str, Tensor]
    eigenvalues: Tensor
    value_sizes: Tensor

    def rescale(self, interaction: Tensor, value: Tensor) -> dict[str, Tensor]:
        """Return the quantities for heads whose W and V have these norms, (n, 1) each: (n, draws)."""
        found = {
            quantity.name: self.columns[quantity.name] * (interaction if quantity.scale == "interaction" else 1.0)
            for quantity in QUANTITIES
            if quantity.half != "moves"
        }
        found = {name: column.expand(len(interaction), -1) for name, column in found.items()}
        return found | measure_values(value[..., None] * self.eigenvalues)


BATCH = 16  # random heads in memory at a time
DRAWING = Lock()  # threads with heads of one shape wait for one of them to draw


@cache
def random_heads(dim: int, key: int, rank: int, draws: int = DRAWS, seed: int = 0) -> RandomHeads:
    """Draw random heads with (key, dim) queries and keys, and values of rank ``rank``."""
    rng = np.random.default_rng((seed, dim, key, rank))
    batches = [min(BATCH, draws - start) for start in range(0, draws, BATCH)]
    found = [_measure_random(_reduce(dim, *_draw_rows(dim, key, rank, count, rng))) for count in batches]
    columns = {name: torch.cat([part[0][name] for part in found]) for name in found[0][0]}
    return RandomHeads(columns, torch.cat([part[1] for part in found]), torch.cat([part[2] for part in found]))


def _reduce(dim: int, query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> SmallMatrices:
    """Return the small matrices from inner products where heads are narrow, which is cheaper, else from factors."""
    if is_narrow(key.shape[-2], value.shape[-2], dim):
        found = reduce_products(Products.of(query, key, value, output.mT[:, :, None]), 1.0, dim, range(len(query)))
        if found is not None:
            return found
    return _factorize_rows(query, key, value, output).grams()


def _measure_random(heads: SmallMatrices) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the quantities of random heads and the eigenvalues of their values, for W and V of norm one, and the norms of V."""
    interaction, value = heads.norms
    eigenvalues = torch.linalg.eigvals(heads.reduced_value)
    columns = compute_quantities(heads, ("scores", "both"))
    for quantity in QUANTITIES:
        if quantity.scale == "interaction":
            columns[quantity.name] = columns[quantity.name] / interaction
    return columns, eigenvalues / value[:, None], value


def _draw_rows(dim: int, key: int, rank: int, draws: int, rng: np.random.Generator) -> tuple[Tensor, ...]:
    """Draw the rows of random heads in coordinates of the space that they span."""
    size = 2 * key + 2 * rank
    if size < dim:
        rows = np.triu(rng.standard_normal((draws, size, size)), 1)
        index = np.arange(size)
        rows[:, index, index] = np.sqrt(rng.chisquare(dim - index, (draws, size)))
    else:
        rows = rng.standard_normal((draws, dim, size))
    return torch.from_numpy(rows).mT.split((key, key, rank, rank), dim=1)


def _factorize_rows(query: Tensor, key: Tensor, value: Tensor, output: Tensor) -> Factors:
    basis, triangle = torch.linalg.qr(output.mT)
    return Factors(query, key, triangle @ value, basis, tuple(range(len(query))))


def random_factors(dim: int, key: int, rank: int, draws: int, rng: np.random.Generator) -> Factors:
    """Draw random heads in coordinates of the space that their rows span."""
    return _factorize_rows(*_draw_rows(dim, key, rank, draws, rng))


def compute_nulls(
    factors: Factors, own: dict[str, Tensor], *, draws: int = DRAWS, shifts: int = SHIFTS, seed: int = 0
) -> list[dict[str, Nulls]]:
    """Return for every head and quantity its scores under the two null models."""
    grams = factors.grams()
    return compare_with_nulls(
        draw_random_heads(grams.dim, grams.sizes, draws, seed), grams.norms, own, mismatched(factors, own, shifts)
    )


def draw_random_heads(dim: int, sizes: tuple[int, int], draws: int = DRAWS, seed: int = 0) -> RandomHeads:
    """Draw random heads of a width, with these numbers of rows of queries and values."""
    with DRAWING:
        return random_heads(dim, *sizes, draws, seed)


@dataclass(frozen=True)
class LabelContext:
    """What decides the label of a head besides its matrices: mask and positions, rotary offsets, bands and the precision."""

    setting: Setting
    positions: Rotary | None
    offsets: tuple[int, ...]
    band: float
    single: bool

    def key(self, size: int) -> tuple[object, ...]:
        """A hashable key; positions enter by their frequencies."""
        turns = None if self.positions is None else tuple(self.positions.frequencies(size).tolist())
        return self.setting, turns, self.offsets, self.band, self.single

    def classify(self, factors: Factors) -> list[Label]:
        turns = None if self.setting.causal else self.positions
        offsets = () if self.setting.causal else self.offsets
        found = classify_heads(factors.grams(), self.setting, turns, offsets, self.band, self.single, None)
        return [row.label for row in found]


LABELLED: dict[tuple[object, ...], tuple[Label, ...]] = {}
LABELLING = Lock()


def label_random_heads(
    context: LabelContext, dim: int, sizes: tuple[int, int], draws: int = DRAWS, seed: int = 0
) -> tuple[Label, ...]:
    """Return the labels of random heads of a shape under the same mask and positions."""
    key = "heads", dim, sizes, draws, seed, context.key(sizes[0])
    with LABELLING:
        if key not in LABELLED:
            rng = np.random.default_rng((seed, dim, *sizes, 1))
            counts = [min(BATCH, draws - start) for start in range(0, draws, BATCH)]
            LABELLED[key] = tuple(
                one for count in counts for one in context.classify(random_factors(dim, *sizes, count, rng))
            )
        return LABELLED[key]


def label_random_layers(
    context: LabelContext, dim: int, shapes: Sequence[tuple[int, int]], draws: int = LAYERS, seed: int = 0
) -> tuple[Label, ...]:
    """Return the labels of sums of random heads of these shapes."""
    key = "layers", dim, tuple(shapes), draws, seed, context.key(shapes[0][0])
    with LABELLING:
        if key not in LABELLED:
            rng = np.random.default_rng((seed, dim, len(shapes), 2))
            LABELLED[key] = tuple(_label_random_layer(context, dim, shapes, rng) for _ in range(draws))
        return LABELLED[key]


def _label_random_layer(
    context: LabelContext, dim: int, shapes: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Label:
    heads = []
    for rows, rank in shapes:
        split = torch.from_numpy(rng.standard_normal((2 * rows + 2 * rank, dim))).split((rows, rows, rank, rank))
        basis, triangle = torch.linalg.qr(split[3].mT)
        heads.append(Factors(split[0], split[1], triangle @ split[2], basis))
    options = context.setting, context.positions, context.offsets, context.band, context.single, None
    grams = [Factors(*(part[None] for part in _parts(head)), members=(0,)).grams() for head in heads]
    needed = len(heads) == 1 or (context.positions is not None and not context.setting.causal)
    rows_of_heads = [row for one in grams for row in classify_heads(one, *options)] if needed else []
    return classify_layer(heads, rows_of_heads, context.setting, context.band, context.single, None).label


def _parts(head: Factors) -> tuple[Tensor, ...]:
    return head.query, head.key, head.value, head.output


def share_label(label: Label, others: Sequence[Label]) -> tuple[float, float]:
    """Return the shares of ``others`` with this label, and with this label certified by a theorem."""
    same = [one for one in others if one.name == label.name]
    return len(same) / len(others), sum(one.certified for one in same) / len(others)


def compare_with_nulls(
    random: RandomHeads, norms: tuple[Tensor, Tensor], own: dict[str, Tensor], pairs: dict[str, Tensor]
) -> list[dict[str, Nulls]]:
    """Score heads whose W and V have these norms against random heads and against ``pairs`` (n, number) of every quantity."""
    scaled = random.rescale(*(norm[:, None] for norm in norms))
    rows: list[dict[str, Nulls]] = [{} for _ in norms[0]]
    for name in NAMES:
        scored = score_against(own[name], scaled[name]), score_against(own[name], pairs[name])
        for row, *scores in zip(rows, *scored, strict=True):
            row[name] = Nulls(*scores)
    return rows


def score_against(values: Tensor, others: Tensor) -> list[NullScore | None]:
    """Score every value (n,) against a sample (n, number); None for fewer than three samples or values that are not finite."""
    count = others.shape[-1]
    if count < 3:
        return [None] * len(values)
    means, spreads = others.mean(-1), others.std(-1)
    fine = others.isfinite().all(-1) & values.isfinite()
    tiny = 1e-12 * torch.maximum(means.abs(), values.abs()).clamp_min(1e-300)
    away = (values - means) / spreads
    columns = (part.tolist() for part in (fine, means, spreads, away, spreads > tiny))
    return [
        NullScore(mean, spread, deviations if spreads_out else None, count) if sound else None
        for sound, mean, spread, deviations, spreads_out in zip(*columns, strict=True)
    ]


def collect_other_heads(own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return for every quantity of one half the values of the other heads, (n, n - 1); (n, 0) for quantities of both halves."""
    n = len(next(iter(own.values())))
    rest = torch.tensor([[other for other in range(n) if other != head] for head in range(n)], dtype=torch.long)
    none = torch.zeros(n, 0, dtype=torch.float64)
    return {one.name: none if one.half == "both" else own[one.name][rest] for one in QUANTITIES}


def mismatched(factors: Factors, own: dict[str, Tensor], shifts: int = SHIFTS) -> dict[str, Tensor]:
    """Return for every quantity the values of mismatched heads that share one half with a head, or of the other heads; (n, number) each."""
    n = len(factors.query)
    chosen = range(1, n) if n - 1 <= shifts else sorted(_even_shifts(n, shifts))
    pairs: dict[str, list[Tensor]] = {}
    for shift in chosen:
        # the pair at i has the scores of i and the moves of i + shift
        for name, column in compute_quantities(factors.mismatched(shift), ("both",)).items():
            pairs.setdefault(name, []).extend((column, column.roll(shift)))
    return collect_other_heads(own) | {name: torch.stack(columns, -1) for name, columns in pairs.items()}


def _even_shifts(n: int, shifts: int) -> set[int]:
    """Return shifts spread evenly between 1 and n - 1."""
    return {1 + round(step * (n - 2) / max(shifts - 1, 1)) for step in range(shifts)}
