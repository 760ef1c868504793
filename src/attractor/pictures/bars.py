"""Counts side by side: one group of bars for each case, one colour for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.still import Grid, Still, written

TALL, STEP = 1.6, 2.15  # inches


def draw_counts(
    panels: Mapping[str, Mapping[str, Mapping[str, int]]],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
) -> Any:
    """One panel for each name: ``panels[name][series][label]`` is a count; labels share the axis, series the colours."""
    labels = sorted({label for panel in panels.values() for counts in panel.values() for label in counts}, key=_order)
    series = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    with style.applied():
        grid = Grid.of(len(panels), 0.3 * len(labels), left=0.42, gap=0.35)
        page = Still(title, caption, grid.rows * STEP + 0.22)
        for number, (name, panel) in enumerate(panels.items()):
            row, left = grid.place(number)
            _panel(page.panel(left, 0.25 + row * STEP, grid.wide, TALL), panel, labels, series)
            page.figure.axes[-1].set_title(name, pad=3, parse_math=False)
        colours = [style.PALETTE[k % len(style.PALETTE)] for k in range(len(series))]
        handles = [page.figure.axes[0].bar([0], [0], color=colour) for colour in colours]
        page.legend(handles, series, grid.rows * STEP, ncols=2 if page.width < 5 else 4)
        return written(page.figure, path)


def _panel(axes: Any, panel: Mapping[str, Mapping[str, int]], labels: list[str], series: list[str]) -> None:
    each = 0.8 / len(series)
    for index, one in enumerate(series):
        counts = [panel.get(one, {}).get(label, 0) for label in labels]
        places = np.arange(len(labels)) + (index - (len(series) - 1) / 2) * each
        drawn = axes.bar(places, counts, each, color=style.PALETTE[index % len(style.PALETTE)])
        axes.bar_label(drawn, [str(count) if count else "" for count in counts], fontsize=5)
    axes.set_xticks(range(len(labels)), labels, rotation=0)


def _order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (1000, label)
