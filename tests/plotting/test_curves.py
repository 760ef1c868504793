"""Small multiples of curves."""

from __future__ import annotations

import pytest

from attractor.plotting.charts import Curve, Panel, draw_panels


@pytest.mark.parametrize(("high", "plain"), [(0.8, True), (80.0, False)])
def test_a_short_logarithmic_axis_has_plain_numbers(high: float, plain: bool) -> None:
    curve = Curve([1.0, 10.0, 100.0], [0.6, 0.7, high])
    figure = draw_panels([Panel((curve,), log_x=True, log_y=True)], "a title", "a caption")
    figure.canvas.draw()
    axes = figure.axes[-1]
    written = [text.get_text() for text in axes.get_yticklabels(which="both") if text.get_text()]
    assert (set("".join(written)) <= set("0123456789.")) == plain
    assert "10" in "".join(text.get_text() for text in axes.get_xticklabels())
