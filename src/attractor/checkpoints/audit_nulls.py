"""Nulls beside the heads of a layer: random heads, and mismatched ones where they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attractor.theory.weights.factors import Factors
from attractor.theory.weights.nulls import beside, drawn_like, nulls, others
from attractor.theory.weights.products import SmallMatrices
from attractor.theory.weights.quantities import NAMES


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
