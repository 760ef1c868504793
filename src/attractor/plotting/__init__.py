"""Pictures of tokens along time: static, animated, interactive; one style for all of them, and for figures of your own."""

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
from attractor.plotting.covariances import (
    draw_cone,
    draw_densities,
    draw_map,
    draw_spectrum,
    line_density,
    plane_density,
)
from attractor.plotting.drawing import Grid, Still, draw, known_suffix, still_suffix, write_chart
from attractor.plotting.interactive import page_content, reading, shape_of
from attractor.plotting.preparation import prepare
from attractor.plotting.scene import Scene
from attractor.plotting.style import paper, sized
from attractor.plotting.traces import CLEAR, FONT, Reel, shown_curves

__all__ = [
    "CLEAR",
    "FONT",
    "Bounded",
    "Curve",
    "Decay",
    "Grid",
    "Interval",
    "Panel",
    "Reel",
    "Rows",
    "Scene",
    "Still",
    "draw",
    "draw_bounded",
    "draw_cone",
    "draw_counts",
    "draw_decays",
    "draw_densities",
    "draw_intervals",
    "draw_map",
    "draw_panels",
    "draw_spectrum",
    "known_suffix",
    "line_density",
    "page_content",
    "paper",
    "plane_density",
    "prepare",
    "reading",
    "shape_of",
    "shown_curves",
    "sized",
    "still_suffix",
    "write_chart",
]
