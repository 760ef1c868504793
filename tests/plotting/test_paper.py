"""What a journal asks of a figure: its width, embedded fonts, colours that the colour-blind tell apart, nothing cut off."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import matplotlib
import numpy as np
import pytest
from benchmarks.program import draw as draw_bench

from attractor.errors import InputError
from attractor.papers.positions import KINDS
from attractor.papers.positions import draw as draw_positions
from attractor.plotting import Scene, draw, paper, style
from attractor.plotting.charts import (
    Bounded,
    Curve,
    Decay,
    Interval,
    Panel,
    Rows,
    draw_bounded,
    draw_counts,
    draw_decays,
    draw_intervals,
    draw_panels,
)
from attractor.plotting.covariances import draw_cone, draw_densities, draw_map, draw_spectrum
from attractor.plotting.style import use_width

ROOT = Path(__file__).parents[2]
REPORT = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text(encoding="utf-8"))
GROWTH = [
    {"name": f"a law of growth, number {k}", "variable": name, "status": "timed", "sizes": [1, 10, 100], "costs": [1, 8, 90],
     "slope": 1.0, "tail": 1.0, "cost": "seconds"}
    for name in ("n", "d", "beta") for k in range(2)
]  # fmt: skip
WORDS = {
    "title": "A title that is long enough to need more than one line of a single column of a journal",
    "caption": "What it shows. " * 9,
}
ROWS = Rows("panel", [Interval(0.1, -0.3, 0.4, 0.2)] * 4)
times = np.linspace(0.0, 1.0, 5)
numbers = np.random.default_rng(0)
covered = np.column_stack([0.5 * np.cos(6 * times), 0.5 * np.sin(6 * times), 1 + times])
places = numbers.uniform(-0.7, 0.7, (20, 2))
decay = Decay("sliced W2", np.exp(numbers.normal(size=(3, 4))), np.array([1.0, 0.7, 0.5]), -0.5, -0.62, -0.41)
counts = dict.fromkeys(KINDS, 3)
STUDY = {
    "systems": 12,
    "horizon": 100.0,
    "encodings": [{"name": f"encoding, number {k}", "counts": counts} for k in range(8)],
    "phase": [{"angle": 0.1, "spread": 0.5, "counts": counts}],
}


def positions_figure() -> Any:
    """The figure of the entry, which writes it to a file."""
    with mock.patch("attractor.plotting.write_chart", lambda figure, path: figure):
        return draw_positions(STUDY, Path("positions.png"))[0]


PICTURES: dict[str, Callable[[], Any]] = {
    "spectrum": lambda: draw_spectrum(times, np.exp(numbers.normal(size=(5, 3))), numbers.normal(size=(5, 3)), end=1.0, **WORDS),
    "cone": lambda: draw_cone([covered, covered[::-1]], ["blow_up", "low_rank"], **WORDS),
    "map": lambda: draw_map(places, np.where(places[:, 0] > 0.4, np.inf, 1 + places[:, 1] ** 2), **WORDS),
    "far map": lambda: draw_map(places, np.exp(9 * places[:, 1]), **WORDS),
    "counts": lambda: draw_counts({f"d = {d}": {"accurate": {"1": 9, "2": 100}, "emulated": {"2": 7}} for d in (3, 4, 5)}, **WORDS),
    "bounds": lambda: draw_bounded([Bounded("measured", "length", times, times[:, None], 1 + times[:, None], "goes on")] * 2, **WORDS),
    "decays": lambda: draw_decays([100, 200, 400], [decay] * 5, **WORDS),
    "density on a line": lambda: draw_densities(times, numbers.normal(size=(5, 50, 1)), **WORDS),
    "density in the plane": lambda: draw_densities(times[:4], numbers.normal(size=(4, 50, 2)), **WORDS),
    "curves": lambda: draw_panels([Panel((Curve(list(times), list(times), "a line"),), y="value", title="one of them")] * 3, **WORDS),
    "intervals": lambda: draw_intervals(["of a head"] * 4, ["spectrum", "null"] * 2, [ROWS] * 2, x="correlation", **WORDS),
    "positions": positions_figure,
    "benchmark": lambda: draw_bench({**REPORT, "growth": GROWTH}),
}  # fmt: skip


def overhang(figure: Any) -> float:
    """How far, in inches, what is drawn sticks out of the page."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box, (wide, tall) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    return max(-box.x0, -box.y0, box.x1 - wide, box.y1 - tall)


@pytest.mark.parametrize("width", ["one", "two"])
@pytest.mark.parametrize("name", PICTURES)
def test_a_figure_has_the_width_of_its_columns_and_nothing_is_cut(name: str, width: str) -> None:
    with use_width(width):
        figure = PICTURES[name]()
    assert figure.get_size_inches()[0] == pytest.approx(style.COLUMNS[width])
    assert overhang(figure) <= 0.01


@pytest.mark.parametrize("width", ["one", "two"])
@pytest.mark.parametrize(
    ("dim", "space"), [(1, "euclidean"), (2, "euclidean"), (2, "sphere"), (5, "euclidean"), (3, "ellipsoid")]
)
def test_tokens_fit_their_columns(make_scene: Callable[..., Scene], dim: int, space: str, width: str) -> None:
    with paper(width):
        figure = draw(make_scene(dim, space))
    assert figure.get_size_inches()[0] == pytest.approx(style.COLUMNS[width])
    assert overhang(figure) <= 0.01


def test_fonts_are_embedded_as_truetype(tmp_path: Path) -> None:
    draw_spectrum(times, np.ones((5, 2)), np.ones((5, 2)), tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/FontFile2" in content, "no TrueType font is embedded"
    assert b"/Type3" not in content


def test_a_vector_figure_needs_no_font_and_holds_no_pixels(tmp_path: Path) -> None:
    draw_spectrum(times, np.ones((5, 2)), np.ones((5, 2)), tmp_path / "figure.svg")
    content = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert "<path" in content
    assert "<text" not in content
    assert "<image" not in content


# Linear RGB as a protanope and a deuteranope see it (Vienot, Brettel and Mollon, 1999).
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "deuteranopia": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
}


def lab(linear: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB under D65: distances in it are those that the eye sees."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = np.cbrt(np.clip(xyz / np.array([0.9505, 1.0, 1.089]), 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_the_colours_differ_for_every_eye(kind: str) -> None:
    seen = []
    for colour in style.PALETTE[:5]:
        encoded = style.rgb(colour)
        linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
        seen.append(lab(BLINDNESS[kind] @ linear))
    least = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert least > 12.0  # about five times what can just be told apart side by side


def test_paper_dresses_figures_of_ones_own_and_gives_the_settings_back() -> None:
    from matplotlib.figure import Figure

    before = matplotlib.rcParams.copy()
    with paper("one") as size:
        figure = Figure()
        line = figure.subplots().plot([0, 1])[0]
        assert tuple(figure.get_size_inches()) == pytest.approx(size)
        assert size[0] == style.COLUMNS["one"]
        assert line.get_color() == style.PALETTE[0]
        with paper(5.0):
            assert style.inches() == 5.0
        assert style.inches() == style.COLUMNS["one"]
    assert style.inches() == style.COLUMNS["two"]
    assert {name for name in before if matplotlib.rcParams[name] != before[name]} <= {"backend"}


@pytest.mark.parametrize("width", ["three", "1", "nan", "1000"])
def test_a_width_that_is_none_is_refused(width: str) -> None:
    with pytest.raises(InputError, match="width"), paper(width):
        pass


@pytest.mark.parametrize("signs", [(1.0, 1.0), (1.0, -1.0)])
def test_means_that_grow_have_ticks_that_are_apart(signs: tuple[float, float]) -> None:
    """A mean that grows by four powers of ten: labels do not overlap, and half of the panel is not left empty."""
    growing = np.geomspace(0.5, 5e3, 30)[:, None] * np.array(signs)
    figure = draw_spectrum(np.linspace(0, 1, 30), np.ones((30, 2)), growing, title="t")
    figure.canvas.draw()
    axes = next(axes for axes in figure.axes if axes.get_title() == "coordinates of the mean")
    boxes = sorted(
        (label.get_window_extent() for label in axes.get_yticklabels() if label.get_text()), key=lambda box: box.y0
    )
    inside = [box for box in boxes if axes.bbox.y0 <= (box.y0 + box.y1) / 2 <= axes.bbox.y1]
    assert len(inside) >= 3
    assert all(low.y1 <= high.y0 for low, high in pairwise(inside))
    assert axes.get_ylim()[0] > 0 or signs[1] < 0
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["1", "2"]
