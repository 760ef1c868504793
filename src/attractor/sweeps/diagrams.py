"""Phase diagrams: heat maps of a sweep with intervals, contour lines and predictions; pages; refinement of boundaries."""

from __future__ import annotations

import inspect
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.plotting import HeatMap, draw_heat_maps, is_geometric, is_numeric
from attractor.registry import find, unknown
from attractor.sweeps.cells import Cell, Value, canonical
from attractor.sweeps.results import Estimate, Sweep

if TYPE_CHECKING:
    from attractor.report import Report

TIME = "time"
MOST_PANELS = 12
FINE = 160  # points of each axis at which a prediction is evaluated for its lines
CHANGE = 0.1  # share of the range of values by which neighbours differ at a boundary


@dataclass(frozen=True)
class Theory:
    """A prediction that is drawn over a diagram.

    Attributes
    ----------
    label : what it is, for the caption.
    value : function of values of axes, called with those that it names: the predicted value of the observable.
    threshold : function of an axis and others: the predicted place of a boundary on the other axis of the diagram.
    axis : name of the axis that ``threshold`` is a place on; None for the vertical one.
    """

    label: str
    value: Callable[..., float] | None = None
    threshold: Callable[..., float] | None = None
    axis: str | None = None


def _cluster_count(beta: float, dim: int = 2) -> float:
    from attractor.meanfield import cluster_count

    if dim != 2:
        raise InputError(
            f"cluster_count predicts clusters on the circle, in dimension 2, and the sweep has dimension {dim:g}"
        )
    return float(cluster_count(float(beta)))


def _critical_noise(beta: float, dim: int, kernel: str = "softmax") -> float:
    from attractor.meanfield import critical_noise

    return critical_noise(float(beta), kernel, int(dim))


@lru_cache(maxsize=4096)
def _orthogonal_time(beta: float, n: int, kernel: str, cosine: float) -> float:
    """When n orthogonal tokens have a common cosine, by its equation (consensus.T6-equiangular)."""
    from scipy.integrate import quad

    if kernel not in ("softmax", "exponential"):
        raise InputError(f"the prediction orthogonal_tokens is known for softmax and exponential, not for {kernel}")

    def slowness(g: float) -> float:
        other = math.exp(-beta * (1.0 - g))  # weight of another token relative to the own one
        weight = other / (1.0 + (n - 1) * other) if kernel == "softmax" else math.exp(beta * g) / n
        return 1.0 / (2.0 * weight * (1.0 - g) * (1.0 + (n - 1) * g))

    return float(quad(slowness, 0.0, cosine, limit=200)[0])


def _consensus_of_orthogonal(beta: float, tokens: int, kernel: str = "softmax", space: str = "sphere") -> float:
    if space != "sphere":
        raise InputError(f"the prediction orthogonal_tokens is about tokens on the sphere, and the space is {space}")
    return _orthogonal_time(float(beta), int(tokens), kernel, 0.999)


THEORIES: dict[str, Theory] = {
    "cluster_count": Theory(
        "the number of clusters that uniform tokens on the circle form first, argmax k^2 I_k(beta)", _cluster_count
    ),
    "critical_noise": Theory(
        "the noise above which the uniform density is stable", threshold=_critical_noise, axis="noise"
    ),
    "orthogonal_tokens": Theory(
        "the time at which orthogonal tokens, the limit of high dimension, have the cosine 0.999",
        threshold=_consensus_of_orthogonal,
        axis=TIME,
    ),
}


@dataclass(frozen=True)
class Diagram:
    """A phase diagram.

    Attributes
    ----------
    sweep : the results.
    name : the observable.
    x, y : names of the axes, one of which may be "time".
    maps : one for each combination of values of the other axes.
    others : these values.
    theory : the prediction that is drawn, or None.
    when : the time of the values in words.
    """

    sweep: Sweep
    name: str
    x: str
    y: str
    maps: tuple[HeatMap, ...]
    others: tuple[Mapping[str, Value], ...]
    theory: Theory | None = None
    when: str = ""

    @property
    def caption(self) -> str:
        """What the figure shows."""
        starts = self.sweep.starts
        infinite = any(np.isposinf(one.values).any() for one in self.maps)
        words = (
            f"{'Median' if infinite else 'Mean'} of {self.name} {self.when}{' ' * bool(self.when)}over {starts:,} start"
            f"{'s' * (starts != 1)} of each cell"
        )
        words += ", with the colour of the largest value where it is infinite." if infinite else "."
        if any((np.isnan(one.values) & ~one.gaps).any() for one in self.maps):
            words += " Grey: cells without a value, most of them failed."
        levels = self.maps[0].levels
        if levels:
            words += f" White: contour line{'s' * (len(levels) > 1)} at {', '.join(f'{level:g}' for level in levels)}"
            words += "; dotted: those of the ends of intervals of 95 %." if starts > 1 else "."
        return words + (f" Dashed: {self.theory.label}." if self.theory else "")

    def plot(self, path: str | os.PathLike[str] | None = None, *, title: str = "", dpi: int = 200) -> Any:
        """Draw the diagram to .png, .pdf or .svg; return the path, or the figure without one."""
        names = (self.x, self.y)
        title = title or f"{self.name} over {self.x} and {self.y}"
        return draw_heat_maps(self.maps, names, self.name, path, title=title, caption=self.caption, dpi=dpi)

    def report(self, command: str = "") -> Report:
        """Return the page: values under the pointer, and for a click the command of one system of a cell."""
        from attractor.report import Measure, Report

        found = self.sweep
        failed = len(found.failed)
        facts: dict[str, Any] = {
            "cells": len(found.cells),
            "starts": found.starts,
            "seed": found.manifest["base"]["seed"],
        }
        facts |= {"failed": failed} if failed else {}
        page = Report(
            f"{self.name} over {self.x} and {self.y}", command, kicker="attractor sweep", lead=self.caption, facts=facts
        )
        section = page.section("Diagram")
        cells = {tuple(canonical(value) for value in cell.arguments.values()): cell for cell in found.cells}
        for one, other in zip(self.maps, self.others, strict=True):
            low, high = one.low, one.high
            assert low is not None
            assert high is not None
            measures: dict[str, Any] = {
                self.name: Measure(_finite(one.values)[::-1], words=f"{self.name}, over starts")
            }
            if found.starts > 1:
                measures["lower end"] = Measure(_finite(low)[::-1], words="lower end of the interval of 95 %")
                measures["upper end"] = Measure(_finite(high)[::-1], words="upper end of the interval of 95 %")
            if one.predicted is not None:
                measures["predicted"] = Measure(one.predicted[::-1], words=self.theory.label if self.theory else "")
            section.heatmap(
                measures,
                rows=[_word(value) for value in one.y][::-1],
                columns=[_word(value, 3) for value in one.x],
                axes=(self.y, self.x),
                caption=f"{one.title + ': ' if one.title else ''}click on a cell for the command of one system.",
                alt=f"Heat map of {self.name} over {self.x} and {self.y} {one.title}.",
                detail=self._detail(one, other, cells),
            )
        if found.failed:
            rows = [{"cell": str(failure.cell), "reason": failure.reason} for failure in found.failed[:200]]
            page.section("Failed cells").table(rows, ("cell", "reason"), caption="Cells that could not be computed.")
        return page

    def _detail(
        self, one: HeatMap, other: Mapping[str, Value], cells: Mapping[Any, Cell]
    ) -> Callable[[int, int], dict[str, Any]]:
        order = list(self.sweep.axes)

        def rows(line: int, column: int) -> dict[str, Any]:
            place = len(one.y) - 1 - line, column
            given = {**other, self.x: one.x[column], self.y: one.y[place[0]]}
            shown: dict[str, Any] = {name: _word(value) for name, value in given.items()}
            cell = cells.get(tuple(canonical(given[name]) for name in order if name in given))
            value = float(one.values[place])
            if cell is None or math.isnan(value):
                return shown | {self.name: "not computed"}
            shown[self.name] = _number(value)
            if self.sweep.starts > 1 and one.low is not None and one.high is not None:
                shown["interval of 95 %"] = f"{_number(float(one.low[place]))} to {_number(float(one.high[place]))}"
            if one.predicted is not None:
                shown["predicted"] = _number(float(one.predicted[place]))
            return shown | {"one system": rerun_command(self.sweep, cell)}

        return rows


def _word(value: Any, digits: int = 6) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return "never" if math.isinf(value) else format_number(value)


def _finite(values: np.ndarray) -> np.ndarray:
    """Infinite values as gaps: a scale of colours has no place for them."""
    return np.where(np.isfinite(values), values, np.nan)


def rerun_command(found: Sweep, cell: Cell, start: int = 0) -> str:
    """Return what computes one system of a cell: a command, or a line of Python for a function."""
    words = found.manifest.get("rerun", "")
    if words:
        for name, value in cell.values:
            option = f"--{name.replace('_', '-')}"
            words += (
                f" {option}"
                if value is True
                else ""
                if value in (False, None)
                else f" {option} {shlex.quote(str(value))}"
            )
        if "starts" in found.manifest.get("given", ()):  # starts of noisy systems are members of one ensemble
            seed = found.seed(cell)
            return f"{words} --ensemble {start + 1} --member {start} --seed {seed} --noise-seed {seed}"
        return f"{words} --seed {found.seed(cell, start)}"
    name = str(found.manifest["base"]["system"]).rpartition(".")[2]
    given = ", ".join(f"{key}={value!r}" for key, value in cell.values)
    taken = found.manifest.get("given", ())
    if "starts" in taken:
        given += f", seed={found.seed(cell)}, starts={start + 1}"
    elif "seed" in taken:
        given += f", seed={found.seed(cell, start)}"
    return f"{name}({given})"


def diagram(
    found: Sweep,
    name: str | None = None,
    x: str | None = None,
    y: str | None = None,
    *,
    time: float | None = None,
    levels: Sequence[float] = (),
    theory: str | Theory | Callable[..., float] | None = None,
) -> Diagram:
    """Return a phase diagram of a sweep.

    Parameters
    ----------
    found : the results.
    name : an observable, or "outcome_consensus", ...; the first one by default.
    x, y : axes; by default those with the most values, first the first. "time" is that of the saved states.
    time : of the values; the last one by default.
    levels : values whose contour lines are drawn.
    theory : "cluster_count", "critical_noise", "orthogonal_tokens", a :class:`Theory`, or a function of axes that predicts the observable.
    """
    name = found.observables[0] if name is None else name
    cells, estimates = found.summary(name)
    if not cells:
        raise InputError(f"no cell has {name}: {found.failed[0].reason if found.failed else 'the sweep is empty'}")
    axes: dict[str, list[Any]] = dict(found.axes)
    saved = found.cell_times()
    along_time = TIME in (x, y)
    if along_time:
        if len({times.tobytes() for times in saved.values()}) > 1:
            raise InputError("the cells have different saved times: time is no axis of their diagram; give one of them")
        times = next(iter(saved.values()))
        if estimates[0].value.shape[1] != len(times) or len(times) < 2:
            raise InputError(f"{name} has one value for each run, or the sweep saved one time; time is no axis of it")
        axes[TIME] = times.tolist()
    for axis in (x, y):
        if axis is not None and axis not in axes:
            raise unknown(axis, axes, "axis", "axes")
    # the widest numeric axes, in the order in which they were given
    ranked = sorted(
        (axis for axis in axes if axis not in (x, y)),
        key=lambda axis: -len(axes[axis]) if is_numeric(axes[axis]) else 0,
    )
    free = iter(sorted(ranked[: 2 - (x is not None) - (y is not None)], key=list(axes).index))
    x = x or next(free, None)
    y = y or next(free, None)
    if x is None or y is None or x == y:
        raise InputError(f"a diagram has two axes, and the sweep has {', '.join(axes)}")
    rest = [axis for axis in axes if axis not in (x, y, TIME)]
    panels = [dict(zip(rest, values, strict=True)) for values in product(*(axes[axis] for axis in rest))]
    if len(panels) > MOST_PANELS:
        raise InputError(
            f"the other axes ({', '.join(rest)}) have {len(panels)} combinations, and {MOST_PANELS} panels are drawn at most"
        )
    drawn = _theory(theory)
    whole_runs = name.startswith("outcome_") or found.manifest["observables"].get(name) == "measure"
    indices = _time_indices(saved, None if whole_runs else time)
    places = {axis: {canonical(value): k for k, value in enumerate(values)} for axis, values in axes.items()}
    maps = []
    for panel in panels:
        wanted = {axis: canonical(value) for axis, value in panel.items()}
        arrays = np.full((3, len(axes[y]), len(axes[x])), np.nan)
        absent = np.ones(arrays.shape[1:], dtype=bool)
        for cell in found.cells:
            given = cell.arguments
            if all(canonical(given[axis]) == value for axis, value in wanted.items()):
                absent[_place_of(given, places, (x, y))] = False
        for cell, estimate in zip(cells, estimates, strict=True):
            given = cell.arguments
            if all(canonical(given[axis]) == value for axis, value in wanted.items()):
                _place(arrays, estimate, given, places, (x, y), indices.get(cell.key))
        varying = [axis for axis in rest if len(axes[axis]) > 1]
        title = ", ".join(f"{axis} = {_word(panel[axis])}" for axis in varying)
        one = HeatMap(axes[x], axes[y], *arrays, title=title, levels=tuple(levels), absent=absent)
        maps.append(_add_theory(one, drawn, {**found.manifest.get("fixed", {}), **panel}, (x, y)))
    lasts = {float(times[-1]) for times in saved.values() if len(times)}
    when = (
        ""
        if whole_runs or along_time or not lasts
        else "at the end of each run"
        if len(lasts) > 1
        else f"at t = {max(lasts):g}"
    )
    when = when if time is None or whole_runs else f"at t = {time:g}"
    return Diagram(found, name, x, y, tuple(maps), tuple(panels), drawn, when)


def _time_indices(saved: Mapping[str, np.ndarray], time: float | None) -> dict[str, int]:
    """The index of a time among the saved ones of every cell that has it; of the last one by default."""
    if time is None:
        return dict.fromkeys(saved, -1)
    found, nearest = {}, []
    for key, times in saved.items():
        if len(times) == 0:
            raise InputError("the sweep has numbers of whole runs, without a time")
        place = int(np.argmin(np.abs(times - time)))
        nearest.append(float(times[place]))
        if abs(times[place] - time) <= 1e-6 * max(1.0, abs(time)):
            found[key] = place
    if not found:
        closest_time = min(nearest, key=lambda value: abs(value - time))
        raise InputError(f"the sweep did not save t = {time:g}; the nearest saved time is {closest_time:g}")
    return found


def _place(
    arrays: np.ndarray,
    estimate: Estimate,
    given: Mapping[str, Value],
    places: Mapping[str, Mapping[Any, int]],
    axes: tuple[str, str],
    which: int | None,
) -> None:
    """Write the value and the interval of a cell into the arrays (3, y, x); none if it lacks the time."""
    line, column = _place_of(given, places, axes)
    for array, part in zip(arrays, (estimate.value, estimate.low, estimate.high), strict=True):
        if TIME in axes:
            array[line, column] = part[0]
        elif which is not None:
            array[line, column] = part[0][which]


def _place_of(
    given: Mapping[str, Value], places: Mapping[str, Mapping[Any, int]], axes: tuple[str, str]
) -> tuple[Any, Any]:
    """The line and the column of a cell."""
    line, column = (slice(None) if axis == TIME else places[axis][canonical(given[axis])] for axis in axes[::-1])
    return line, column


def _theory(theory: str | Theory | Callable[..., float] | None) -> Theory | None:
    if theory is None or isinstance(theory, Theory):
        return theory
    if isinstance(theory, str):
        return find(theory, THEORIES, "theory", "theories")
    if not callable(theory):
        raise InputError(f"theory is a name, a Theory or a function of axes, got {theory!r}")
    return Theory(getattr(theory, "__name__", "prediction").replace("_", " "), theory)


def _call(function: Callable[..., float], given: Mapping[str, Any]) -> float:
    """Call a prediction with the axes that it names."""
    parameters = inspect.signature(function).parameters
    lacking = [name for name, part in parameters.items() if part.default is part.empty and name not in given]
    if lacking:
        raise InputError(f"the prediction depends on {', '.join(lacking)}, and the sweep gives {', '.join(given)}")
    return float(function(**{name: given[name] for name in parameters if name in given}))


def _add_theory(one: HeatMap, theory: Theory | None, panel: Mapping[str, Value], axes: tuple[str, str]) -> HeatMap:
    """Add a prediction to a panel: its values in the cells, and lines from a finer grid."""
    if theory is None:
        return one
    known: dict[Any, float] = {}

    def call(function: Callable[..., float], x: Any, y: Any) -> float:
        given = {**panel, axes[0]: x, axes[1]: y}
        used = tuple(given.get(name) for name in inspect.signature(function).parameters)
        if used not in known:
            known[used] = _call(function, given)
        return known[used]

    if not is_numeric(one.x):
        raise InputError(f"a prediction is drawn over numbers, and the axis {axes[0]} has texts")
    fine_x = _fine(one.x)
    if theory.threshold is not None:
        if theory.axis == axes[0] and is_numeric(one.y):
            fine_y = _fine(one.y)
            return replace(one, curve=(np.array([call(theory.threshold, None, float(y)) for y in fine_y]), fine_y))
        if theory.axis not in (None, axes[1]) or axes[1] in inspect.signature(theory.threshold).parameters:
            raise InputError(
                f"the prediction is a place on the axis {theory.axis or 'of the boundary'}, and the axes are {axes[0]} and {axes[1]}"
            )
        return replace(one, curve=(fine_x, np.array([call(theory.threshold, float(x), None) for x in fine_x])))
    assert theory.value is not None
    values = np.array([[call(theory.value, x, y) for x in one.x] for y in one.y])
    if not is_numeric(one.y) or min(len(one.x), len(one.y)) < 2:
        return replace(one, predicted=values)
    fine_y = _fine(one.y)
    lines = np.array([[call(theory.value, float(x), float(y)) for x in fine_x] for y in fine_y])
    return replace(one, predicted=values, lines=(fine_x, fine_y, lines))


def _fine(values: Sequence[Any]) -> np.ndarray:
    numbers = np.asarray(values, dtype=float)
    if len(numbers) > 2 and (numbers > 0).all() and is_geometric(numbers):
        return np.geomspace(numbers.min(), numbers.max(), FINE)
    return np.linspace(numbers.min(), numbers.max(), FINE)


def refine_cells(found: Sweep, name: str, axes: Sequence[str] | None = None) -> list[dict[str, Value]]:
    """Return the values of new cells: halfway between neighbours on numeric axes that differ.

    Neighbours differ if their intervals of 95 % are disjoint and the values are apart by more than a tenth of the range.
    """
    cells, estimates = found.summary(name)
    names = (
        [axis for axis, values in found.axes.items() if is_numeric(values) and len(values) > 1]
        if axes is None
        else list(axes)
    )
    numbers = {
        cell.key: [float(part[0, -1]) for part in (e.value, e.low, e.high)]
        for cell, e in zip(cells, estimates, strict=True)
    }
    finite = [value for value, _, _ in numbers.values() if math.isfinite(value)]
    if not finite:
        return []
    least = CHANGE * (max(finite) - min(finite))
    known = {tuple(canonical(value) for _, value in cell.values) for cell in found.cells}
    new: dict[Any, dict[str, Value]] = {}
    for axis in names:
        values = np.array(found.axes[axis], dtype=float)
        log = len(values) > 2 and bool((values > 0).all()) and is_geometric(values)
        lines: dict[Any, list[Cell]] = {}
        for cell in cells:
            lines.setdefault(tuple((key, canonical(value)) for key, value in cell.values if key != axis), []).append(
                cell
            )
        for line in lines.values():
            line.sort(key=lambda cell: float(cell.arguments[axis]))  # type: ignore[arg-type]
            for first, second in pairwise(line):
                if not _differ(numbers[first.key], numbers[second.key], least):
                    continue
                low, high = first.arguments[axis], second.arguments[axis]
                middle: Any = math.sqrt(float(low) * float(high)) if log else 0.5 * (float(low) + float(high))  # type: ignore[arg-type]
                if isinstance(low, int) and isinstance(high, int):
                    middle = round(middle)
                    if middle in (low, high):
                        continue
                given = {**first.arguments, axis: middle}
                content = tuple(canonical(value) for value in given.values())
                if content not in known:
                    new[content] = given
    return list(new.values())


def _differ(first: Sequence[float], second: Sequence[float], least: float) -> bool:
    """Whether two values with intervals are different."""
    if any(map(math.isnan, (*first, *second))):
        return False
    if math.isinf(first[0]) or math.isinf(second[0]):
        return math.isinf(first[0]) != math.isinf(second[0])
    return abs(first[0] - second[0]) > least and (first[2] < second[1] or second[2] < first[1])
