"""The picture of the study of positions: how systems end under each encoding, and the phase diagram of rotary positions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.theory.positional import KINDS, PositionalStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".pdf", ".svg")


def draw(study: PositionalStudy, path: Path) -> Path:
    """Write the picture of a study."""
    from attractor.pictures import style
    from attractor.pictures.figure import picture_class, save
    from attractor.pictures.writing import atomic, target

    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the study is drawn as {', '.join(SUFFIXES)}, not as {path.suffix or 'nothing'!r}")
    place, figure_class = target(path), picture_class()
    colours: dict[str, Any] = dict(
        zip(KINDS, (style.PALETTE[0], style.PALETTE[4], style.PALETTE[1], style.FAINT), strict=True)
    )
    with style.applied():
        figure = figure_class(figsize=(7.0, 2.9))
        _bars(figure.add_axes((0.2, 0.17, 0.3, 0.66)), study, colours)
        if study.phase:
            _phase(figure.add_axes((0.63, 0.17, 0.35, 0.66)), study, colours)
        figure.text(
            0.01,
            0.97,
            f"{study.systems} systems that collapse without positions, at t = {study.horizon:g}",
            va="top",
            fontsize=8,
        )
        with atomic(place) as temporary:
            save(figure, temporary, 200, path.suffix.lower()[1:])
    return place


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
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.68, 1.0),
        ncol=4,
        frameon=False,
        fontsize=6.5,
        handlelength=1.0,
        columnspacing=1.0,
    )


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
