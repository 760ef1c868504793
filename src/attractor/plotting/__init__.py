"""Figures of tokens along time (static, animated, interactive), charts, and the plot style of the package."""

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
    draw_circle,
    draw_cone,
    draw_cones,
    draw_densities,
    draw_map,
    draw_spectrum,
    line_density,
    plane_density,
)
from attractor.plotting.drawing import Grid, StaticFigure, check_suffix, draw, static_suffix, write_chart
from attractor.plotting.heat_maps import HeatMap, draw_heat_maps, is_geometric, is_numeric
from attractor.plotting.interactive import animation_content, page_classes, usage_note
from attractor.plotting.preparation import prepare
from attractor.plotting.scene import Scene
from attractor.plotting.style import paper, use_width
from attractor.plotting.traces import CLEAR, FONT, AnimationFrames, PlotlySpec, shown_curves

__all__ = [
    "CLEAR",
    "FONT",
    "AnimationFrames",
    "Bounded",
    "Curve",
    "Decay",
    "Grid",
    "HeatMap",
    "Interval",
    "Panel",
    "PlotlySpec",
    "Rows",
    "Scene",
    "StaticFigure",
    "animation_content",
    "check_suffix",
    "draw",
    "draw_bounded",
    "draw_circle",
    "draw_cone",
    "draw_cones",
    "draw_counts",
    "draw_decays",
    "draw_densities",
    "draw_heat_maps",
    "draw_intervals",
    "draw_map",
    "draw_panels",
    "draw_spectrum",
    "is_geometric",
    "is_numeric",
    "line_density",
    "page_classes",
    "paper",
    "plane_density",
    "prepare",
    "shown_curves",
    "static_suffix",
    "usage_note",
    "use_width",
    "write_chart",
]
