"""How much of an audit a page has room for: a page stays below 8 MB whatever the model.

Of a large model first the spectra are thinned, then panels of nulls shortened, then layers left out, evenly; the page says so. What a
head takes is measured on a few of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attractor.checkpoints.audit_grid import Grid
from attractor.report.heatmap import apart, gathered, measured, panel

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit

PAGE = 8_000_000  # bytes
REST = 5_100_000  # the drawing library, words, tables and figures
FEW = 24  # heads that are measured
LEVELS = ((None, False), (96, False), (64, False), (48, True), (32, True), (24, True), (16, True))


@dataclass(frozen=True)
class Room:
    """Every so many layers, so many points of a spectrum (None: all), and whether panels of nulls are short."""

    every: int = 1
    points: int | None = None
    judged: bool = False

    def grid(self, audit: Audit) -> Grid:
        return Grid(audit, self.every, self.points, self.judged)

    def words(self, audit: Audit) -> str | None:
        """What is left out, in a sentence."""
        layers = len({row["layer"] for row in (*audit.heads, *audit.undefined)})
        parts = [f"one layer of {self.every} of all {layers}"] * (self.every > 1)
        longest = max((len(values) for values in (audit.spectra[0] if audit.spectra else ())), default=0)
        if self.points is not None and self.points < longest:
            parts.append(f"{self.points} eigenvalues of every spectrum, the extreme ones among them")
        if self.judged:
            parts.append("fewer nulls in the panels")
        if not parts:
            return None
        return (
            f"To stay below {PAGE // 1_000_000} MB this page shows {', '.join(parts)}; --json and --csv have the numbers of all heads, "
            "and at.audit(...).spectra all eigenvalues."
        )


def room_for(audit: Audit, share: int = 1) -> Room:
    """The most that fits where ``share`` audits are on one page."""
    budget, layers = 0.93 * (PAGE - REST) / share, len({row["layer"] for row in audit.heads})
    if not audit.heads:
        return Room()
    fixed = _measures(Grid(audit))
    costs = [(points, judged, fixed + _panels(Grid(audit, 1, points, judged))) for points, judged in LEVELS]
    for every in range(1, layers + 1):
        shown = len(audit.heads) * -(-layers // every) / layers
        for points, judged, cost in costs:
            if cost * shown <= budget:
                return Room(every, points, judged)
    return Room(layers, *LEVELS[-1])


def _panels(grid: Grid) -> float:
    """Bytes that the panels and the picture of a head take."""
    places = [(row, column) for row in range(len(grid.layers)) for column in grid.heads if grid.row(row, column)]
    few = places[:: max(1, len(places) // FEW)]
    total = sum(_size(gathered([[panel(one(*place)) for place in few]])[0]) for one in (grid.detail, grid.against))
    if grid.audit.spectra:
        total += _size(apart([[grid.picture(*place) for place in few]])[0])
    return total / len(few)


def _measures(grid: Grid) -> float:
    """Bytes that the numbers of a cell take by which it is coloured."""
    values = {**grid.values(), "label": grid.label(), **(grid.deviations() if "nulls" in grid.audit.heads[0] else {})}
    size = len(grid.layers), len(grid.heads)
    found = [measured(name, measure, size) for name, measure in values.items()]
    return sum(_size([one["values"], one["shown"]]) for one in found) / (size[0] * size[1])


def _size(content: Any) -> int:
    return len(json.dumps(content, ensure_ascii=False).encode())
