"""The picture of the study of positions: how systems end under each encoding, and the phase diagram of rotary positions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.theory.positional import KINDS, PositionalStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(study: PositionalStudy, path: Path | None = None) -> Any:
    """The picture of a study as a figure, or the path it was written to."""
    from attractor.pictures import style
    from attractor.pictures.still import Grid, Still, still_suffix, written

    if path is not None:
        still_suffix(path)
    hues = (style.PALETTE[0], style.PALETTE[4], style.PALETTE[1], style.FAINT)
    colours: dict[str, Any] = dict(zip(KINDS, hues, strict=True))
    title = f"{study.systems} systems that collapse without positions, at t = {study.horizon:g}"
    with style.applied():
        grid = Grid.of(2 if study.phase else 1, 2.0, left=1.42, gap=0.85)
        tall = 1.9
        page = Still(title, _caption(study), 0.2 + grid.rows * (tall + 0.62))
        bars = page.panel(grid.left, 0.4, grid.wide, tall - 0.15)
        _bars(bars, study, colours)
        handles, names = bars.get_legend_handles_labels()
        page.legend(handles, names, 0.02, ncols=4, handlelength=1.0, columnspacing=1.0)
        if study.phase:
            row, left = grid.place(1)
            narrow = grid.across == 1  # the second panel has short labels and may begin further left
            box = (0.6, page.width - 0.75) if narrow else (left, grid.wide)
            _phase(page.panel(box[0], 0.4 + row * (tall + 0.6), box[1], tall - 0.15), study, colours)
        return written(page.figure, path)


def _caption(study: PositionalStudy) -> str:
    phase = (
        " Each cell of the diagram is a pile of the same colours: full attention whose interaction W is the same and is split in two "
        "ways between query and key."
        if study.phase
        else ""
    )
    return f"Shares of the outcomes under every encoding.{phase}"


def _bars(axes: Axes, study: PositionalStudy, colours: dict[str, Any]) -> None:
    names, start = [row.name for row in study.encodings], np.zeros(len(study.encodings))
    for kind in KINDS:
        share = np.array([row.counts[kind] / study.systems for row in study.encodings])
        axes.barh(names, share, left=start, color=colours[kind], label=kind, height=0.7)
        start = start + share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of systems")
    axes.tick_params(axis="y", length=0)


def _phase(axes: Axes, study: PositionalStudy, colours: dict[str, Any]) -> None:
    """Each cell a small pile of shares."""
    angles = sorted({cell.angle for cell in study.phase})
    spreads = sorted({cell.spread for cell in study.phase})
    for cell in study.phase:
        column, row, start = angles.index(cell.angle), spreads.index(cell.spread), 0.0
        for kind in KINDS:
            share = cell.counts[kind] / max(1, sum(cell.counts.values()))
            axes.barh(row, 0.92 * share, left=column - 0.46 + 0.92 * start, color=colours[kind], height=0.92)
            start += share
    axes.set_xticks(range(len(angles)), [f"{angle:.2g}" for angle in angles])
    axes.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
    axes.set_xlim(-0.5, len(angles) - 0.5)
    axes.set_ylim(-0.5, len(spreads) - 0.5)
    axes.set_xlabel("rotary: angle per position of the fastest pair")
    axes.set_ylabel("query away from orthogonal")
    axes.set_title("full attention, the same W split in two", loc="left")
