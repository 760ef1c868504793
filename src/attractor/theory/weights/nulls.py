r"""What the numbers of a head would be if it had learnt nothing, or if its halves did not belong together.

**Random heads.** Q, K, V' and O with independent normal entries, W and V rescaled to the Frobenius norms of the head's own (which no change
of gauge touches). Only inner products matter, and those of m normal vectors of dimension d are a Wishart matrix, whose
Cholesky factor has independent entries: normal above the diagonal, roots of chi-squares of d, d - 1, ... on it (Bartlett). One set
of draws serves all heads of a shape.

**Mismatched heads.** The queries and keys of one head with the values and outputs of another of its layer: for each head all pairs
that hold one half of it. A quantity that one half decides is compared with that of the other heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.theory.weights.factors import Factors
from attractor.theory.weights.quantities import QUANTITIES, measured, moved

DRAWS, SHIFTS = 64, 8


@dataclass(frozen=True)
class Null:
    """A head beside a null: its mean, its standard deviation and how many of these the head is away (None where there is no spread)."""

    mean: float
    spread: float
    deviations: float | None
    count: int

    @classmethod
    def of(cls, value: float, others: Tensor) -> Null | None:
        """The place of a value among others; None if they are too few, or some of them do not exist."""
        if len(others) < 3 or not bool(others.isfinite().all()) or not math.isfinite(value):
            return None
        mean, spread = float(others.mean()), float(others.std())
        tiny = 1e-12 * max(abs(mean), abs(value), 1e-300)
        return cls(mean, spread, (value - mean) / spread if spread > tiny else None, len(others))


@dataclass(frozen=True, eq=False)
class RandomHeads:
    """Draws of random heads of one shape whose W and V have Frobenius norm one: columns (draws,), and the eigenvalues of V."""

    columns: dict[str, Tensor]
    eigenvalues: Tensor

    def scaled(self, interaction: float, value: float) -> dict[str, Tensor]:
        """The quantities for heads whose W and V have these norms."""
        found = {
            quantity.name: self.columns[quantity.name] * (interaction if quantity.scale == "interaction" else 1.0)
            for quantity in QUANTITIES
            if quantity.half != "moves"
        }
        return found | moved(value * self.eigenvalues)


BATCH = 16  # random heads in memory at a time
DRAWING = Lock()  # threads that look at heads of one shape wait for one of them to draw


@cache
def random_heads(dim: int, key: int, rank: int, draws: int = DRAWS, seed: int = 0) -> RandomHeads:
    """Random heads with (key, dim) queries and keys and values of this rank."""
    rng = np.random.default_rng((seed, dim, key, rank))
    batches = [min(BATCH, draws - start) for start in range(0, draws, BATCH)]
    found = [_drawn(random_factors(dim, key, rank, count, rng)) for count in batches]
    columns = {name: torch.cat([part[0][name] for part in found]) for name in found[0][0]}
    return RandomHeads(columns, torch.cat([part[1] for part in found]))


def _drawn(factors: Factors) -> tuple[dict[str, Tensor], Tensor]:
    """The quantities of random heads and the eigenvalues of their values, for interactions and values of norm one."""
    grams = factors.grams()
    eigenvalues = torch.linalg.eigvals(grams.reduced_value)
    columns = measured(grams, ("scores", "both"))
    norms = (
        torch.linalg.vector_norm(grams.interaction, dim=(-2, -1)),
        torch.linalg.vector_norm(factors.value, dim=(-2, -1)),
    )
    for quantity in QUANTITIES:
        if quantity.scale == "interaction":
            columns[quantity.name] = columns[quantity.name] / norms[0]
    return columns, eigenvalues / norms[1][:, None]


def random_factors(dim: int, key: int, rank: int, draws: int, rng: np.random.Generator) -> Factors:
    """Random heads in the space that their own rows span."""
    size = 2 * key + 2 * rank
    if size < dim:
        rows = np.triu(rng.standard_normal((draws, size, size)), 1)
        index = np.arange(size)
        rows[:, index, index] = np.sqrt(rng.chisquare(dim - index, (draws, size)))
    else:
        rows = rng.standard_normal((draws, dim, size))
    columns = torch.from_numpy(rows).mT  # one row for each of the vectors
    query, keys, value, output = columns.split((key, key, rank, rank), dim=1)
    basis, triangle = torch.linalg.qr(output.mT)
    return Factors(query, keys, triangle @ value, basis, tuple(range(draws)))


def nulls(
    factors: Factors, own: dict[str, Tensor], *, draws: int = DRAWS, shifts: int = SHIFTS, seed: int = 0
) -> list[dict[str, dict[str, Any]]]:
    """For every head and quantity the two nulls, ``random`` and ``mismatched``, ready for JSON."""
    k, r = factors.query.shape[-2], factors.rank
    with DRAWING:
        drawn = random_heads(factors.dim, k, r, draws, seed)
    # |Q'K| from the Gram matrices of both
    interaction = (
        ((factors.query @ factors.query.mT) * (factors.key @ factors.key.mT))
        .sum((-2, -1))
        .clamp_min(0.0)
        .sqrt()
        .tolist()
    )
    value = torch.linalg.vector_norm(factors.value, dim=(-2, -1)).tolist()
    others = mismatched(factors, own, shifts)
    rows = []
    for head in range(len(factors.query)):
        scaled = drawn.scaled(interaction[head], value[head])
        row = {}
        for quantity in QUANTITIES:
            name, mine = quantity.name, float(own[quantity.name][head])
            found = {"random": Null.of(mine, scaled[name]), "mismatched": Null.of(mine, others[name][head])}
            row[name] = {kind: None if null is None else dict(vars(null)) for kind, null in found.items()}
        rows.append(row)
    return rows


def mismatched(factors: Factors, own: dict[str, Tensor], shifts: int = SHIFTS) -> dict[str, list[Tensor]]:
    """For every quantity and head the values of mismatched heads that hold one half of it, or of the other heads."""
    n = len(factors.query)
    chosen = range(1, n) if n - 1 <= shifts else sorted(_spread(n, shifts))
    pairs: dict[str, list[list[Tensor]]] = {}
    for shift in chosen:
        # the pair at i has the scores of i and the moves of i + shift
        for name, column in measured(factors.mismatched(shift), ("both",)).items():
            lists = pairs.setdefault(name, [[] for _ in range(n)])
            for head in range(n):
                lists[head] += [column[head], column[(head - shift) % n]]
    empty = torch.zeros(0, dtype=torch.float64)
    found = {name: [torch.stack(one) if one else empty for one in lists] for name, lists in pairs.items()}
    rest = {name: [torch.cat((column[:h], column[h + 1 :])) for h in range(n)] for name, column in own.items()}
    return {name: found.get(name, [empty] * n) for name in own} | {
        quantity.name: rest[quantity.name] for quantity in QUANTITIES if quantity.half != "both"
    }


def _spread(n: int, shifts: int) -> set[int]:
    """Shifts that lie evenly between one and n - 1."""
    return {1 + round(step * (n - 2) / max(shifts - 1, 1)) for step in range(shifts)}
