"""The picture of a stability run, in words that explain it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.pictures.bounds import Bounded, draw_bounded

if TYPE_CHECKING:
    from attractor.meanfield.stability import Stability

TALL = 10.0  # logarithms above this are told, not drawn


def draw_stability(found: Stability, path: Any = None) -> Any:
    """The distance of two measures and the radius of their support, each under its bound."""
    ratio, bound = np.log(found.ratio), found.log_bound
    top = max(TALL, 4.0 * float(ratio.max()))
    drawn = np.where(bound <= top, bound, np.nan)
    rows = drawn.reshape(len(found.times), -1)
    drawn = np.where(np.isfinite(rows).all(-1, keepdims=True), rows, np.inf)
    last = float(bound.reshape(len(bound), -1)[-1].max())
    note = "" if np.isfinite(drawn).all() else f"goes on to {last:.3g}"
    kind = "bound" if found.explicit else "estimate from measured constants"
    panels = [
        Bounded(
            "how far two measures part", f"log of W{found.order:g} over its start", found.times, ratio, drawn, note
        ),
        Bounded("how far tokens get", "largest length", found.times, found.radius, found.radius_bound),
    ]
    caption = (
        f"First: the logarithm of the distance between two measures under one law, divided by its start; the {kind} is the integral of the "
        "Dobrushin constants over the ball that the support can have reached. Second: the longest token and its bound, exponential in "
        "time. Lines are pairs of runs; dashed: the bound."
    )
    return draw_bounded(panels, title="Stability of the mean-field flow", caption=caption, path=path)
