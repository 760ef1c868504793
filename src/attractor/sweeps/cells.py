"""Axes and cells of a sweep: their values, their keys and their seeds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from attractor.errors import InputError

Value = bool | int | float | str | None
KEY_LENGTH = 24  # hexadecimal digits: 96 bits
EXACT = 2**53  # whole numbers up to which a float is exact


def grid(first: float, last: float, count: int, scale: str = "linear") -> list[float]:
    """Return ``count`` numbers from ``first`` to ``last``.

    Parameters
    ----------
    first, last : the ends, both included.
    count : how many numbers.
    scale : "linear" for equal differences, "log" for equal ratios.
    """
    if isinstance(count, bool) or count != int(count) or count < 1:
        raise InputError(f"a grid has a whole number of values, at least one; got {count}")
    if not (math.isfinite(first) and math.isfinite(last)):
        raise InputError(f"a grid runs between finite numbers, got {first} and {last}")
    if scale not in ("linear", "log"):
        raise InputError(f"the scale of a grid is 'linear' or 'log', got {scale!r}")
    if scale == "linear":
        return np.linspace(first, last, int(count)).tolist()
    if not (first > 0 and last > 0):
        raise InputError(f"a grid with scale 'log' runs between positive numbers, got {first:g} and {last:g}")
    values = np.geomspace(first, last, int(count)).tolist()
    return [first, *values[1:-1], last] if count > 1 else [first]


def read_axes(over: Mapping[str, Any]) -> dict[str, tuple[Value, ...]]:
    """Return the values of each axis; a single value is an axis of one."""
    if not isinstance(over, Mapping) or not over:
        raise InputError("a sweep needs axes: over={'beta': at.grid(0.1, 9, 90), 'dim': [8, 128]}")
    axes: dict[str, tuple[Value, ...]] = {}
    for name, values in over.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError(f"an axis is named like an argument of the system, such as 'beta'; got {name!r}")
        if hasattr(values, "tolist"):
            values = values.tolist()
        if isinstance(values, (str, bool, int, float)) or values is None:
            values = [values]
        if not isinstance(values, Iterable) or isinstance(values, Mapping):
            raise InputError(f"the axis {name} must be a list of values, got {values!r}")
        plain = tuple(_plain(name, value) for value in values)
        if not plain:
            raise InputError(f"the axis {name} has no values; give at least one")
        axes[name] = tuple({canonical(value): value for value in plain}.values())
    return axes


def _plain(axis: str, value: Any) -> Value:
    value = value.item() if isinstance(value, np.generic) else value
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise InputError(f"values of the axis {axis} are numbers, texts, True, False or None; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"values of the axis {axis} must be finite, got {value}")
    return value


def canonical(value: Value) -> tuple[str, str]:
    """Return what identifies a value: numbers that are equal are the same, whether whole or not."""
    if isinstance(value, bool) or value is None:
        return "constant", str(value)
    if isinstance(value, (int, float)):
        return "number", repr(float(value) + 0.0) if abs(value) <= EXACT else str(value)
    return "text", value


@dataclass(frozen=True)
class Cell:
    """One point of the grid: the values of the axes, and the key of its results."""

    values: tuple[tuple[str, Value], ...]
    key: str

    @property
    def arguments(self) -> dict[str, Value]:
        """The values by the names of their axes."""
        return dict(self.values)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in self.values
        )


def identify(values: Iterable[tuple[str, Value]]) -> str:
    """Return the content of a cell as text, which does not depend on the order of its axes."""
    return json.dumps(sorted([name, *canonical(value)] for name, value in values))


def make_cell(values: Iterable[tuple[str, Value]], base: str) -> Cell:
    """Return the cell with these values in the sweep whose identity is ``base``."""
    values = tuple(values)
    return Cell(values, hashlib.sha256(f"{base}\n{identify(values)}".encode()).hexdigest()[:KEY_LENGTH])


def list_cells(axes: Mapping[str, Sequence[Value]], base: str, order: Sequence[str] | None = None) -> Iterator[Cell]:
    """All cells of the grid; the last axis of ``order`` (by default the last) runs fastest."""
    order = list(axes) if order is None else list(order)
    texts = [[json.dumps([name, *canonical(value)]) for value in axes[name]] for name in order]
    by_name = sorted(range(len(order)), key=lambda place: order[place])
    given = [order.index(name) for name in axes]
    pairs = [[(name, value) for value in axes[name]] for name in order]
    for places in product(*(range(len(axes[name])) for name in order)):
        content = f"{base}\n[{', '.join([texts[k][places[k]] for k in by_name])}]"
        key = hashlib.sha256(content.encode()).hexdigest()[:KEY_LENGTH]
        yield Cell(tuple([pairs[k][places[k]] for k in given]), key)


def read_cells(
    over: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, tuple[Value, ...]], list[tuple[tuple[str, Value], ...]]]:
    """Return the axes of a list of cells, and the values of each cell in their order."""
    rows = [dict(row) if isinstance(row, Mapping) else None for row in over]
    if not rows or rows[0] is None:
        raise InputError(
            "a list of cells is one of mappings, such as [{'beta': 1.0, 'dim': 2}, {'beta': 4.0, 'dim': 8}]"
        )
    names = list(rows[0])
    for row in rows:
        if row is None or set(row) != set(names):
            raise InputError(
                f"every cell of a list has values of the same axes: {', '.join(map(str, names))}; got {row}"
            )
    axes = read_axes({name: [row[name] for row in rows if row is not None] for name in names})
    return axes, [tuple((name, _plain(name, row[name])) for name in names) for row in rows if row is not None]


def derive_seed(seed: int, cell: Cell, start: int | None = None) -> int:
    """Return the seed of a cell, or of one of its starts: a number below 2^63 that depends on their content only."""
    content = f"{int(seed)}\n{identify(cell.values)}" + ("" if start is None else f"\n{start}")
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big") >> 1


def order_values(values: Iterable[Value]) -> list[Value]:
    """Sort the values of an axis: constants, numbers, texts."""
    return sorted(values, key=_rank)


def _rank(value: Value) -> tuple[int, float, str]:
    if value is None or isinstance(value, bool):
        return 0, 0.0, str(value)
    return (2, 0.0, value) if isinstance(value, str) else (1, float(value), "")
