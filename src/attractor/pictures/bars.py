"""Counts side by side: one group of bars for each case, one colour for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attractor.pictures import style
from attractor.pictures.cone import heading, still
from attractor.pictures.draw import written
from attractor.pictures.figure import picture_class, save


def draw_counts(
    panels: Mapping[str, Mapping[str, Mapping[str, int]]],
    path: Path | str | None = None,
    *,
    title: str = "",
    caption: str = "",
) -> Any:
    """One panel for each name: ``panels[name][series][label]`` is a count; labels share the axis, series the colours."""
    place = None if path is None else still(path)
    labels = sorted({label for panel in panels.values() for counts in panel.values() for label in counts}, key=_order)
    series = list(dict.fromkeys(name for panel in panels.values() for name in panel))
    with style.applied():
        figure = picture_class()(figsize=(7.0, 3.0))
        width = 0.92 / max(len(panels), 1)
        for number, (name, panel) in enumerate(panels.items()):
            axes = figure.add_axes((0.065 + number * width, 0.17, width - 0.045, 0.56))
            for index, one in enumerate(series):
                counts = [panel.get(one, {}).get(label, 0) for label in labels]
                places = np.arange(len(labels)) + (index - (len(series) - 1) / 2) * 0.8 / len(series)
                drawn = axes.bar(places, counts, 0.8 / len(series), color=style.PALETTE[index % len(style.PALETTE)])
                axes.bar_label(drawn, [str(count) if count else "" for count in counts], fontsize=5)
            axes.set_xticks(range(len(labels)), labels, rotation=0)
            axes.set_title(name, pad=3, parse_math=False)
        handles = [
            figure.axes[0].bar([0], [0], color=style.PALETTE[k % len(style.PALETTE)]) for k in range(len(series))
        ]
        figure.legend(handles, series, loc="lower left", frameon=False, ncols=4, fontsize=6.5)  # type: ignore[arg-type]
        heading(figure, title, caption)
    return figure if place is None else written(place, lambda temporary: save(figure, temporary, 200, place.suffix[1:]))


def _order(label: str) -> tuple[int, str]:
    return (int(label), "") if label.isdigit() else (1000, label)
