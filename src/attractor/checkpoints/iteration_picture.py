"""An iteration as a picture: the metric on both axes on which one of the two laws is straight, and the signed cosines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.pictures.curves import Curve, Panel, draw_panels

if TYPE_CHECKING:
    from attractor.checkpoints.iterate import Iteration


def draw_iteration(found: Iteration, path: str | Path | None = None) -> Any:
    """The figure, or the path it was written to (.png, .pdf or .svg)."""
    k, metric, law = np.arange(len(found.metric)), found.metric, found.law
    shown = (k >= 1) & (metric > 0)
    first, last = law.window
    fits = [
        Curve(span.tolist(), fit.at(span).tolist(), f"{fit.law}, residual {fit.residual:.2g}", dashed=True)
        for fit in law.fits.values()
        for span in [np.geomspace(first, max(last, first + 1), 200)]
    ]
    curve = Curve(k[shown].tolist(), metric[shown].tolist(), "measured")
    named = {"cosine_min": "smallest", "cosine": "mean"}
    cosines = [Curve(k.tolist(), found.curves[name].mean(0).tolist(), label) for name, label in named.items()]
    words = "1 - mean |cos(x₁, xⱼ)|"
    panels = [
        Panel((curve, *fits[:1]), "pass", words, "straight if exponential", log_y=True),
        Panel((curve, *fits[1:]), "pass", "", "straight if a power", log_x=True, log_y=True),
        Panel(tuple(cosines), "pass", "", "signed cosines of pairs"),
    ]
    return draw_panels(
        panels,
        f"{'/'.join(Path(found.model).parts[-2:])}: tokens through {found.layers} blocks, again and again",
        _caption(found),
        path,
    )


def _caption(found: Iteration) -> str:
    protocol, law = found.protocol, found.law
    parts = ["with feed-forward" if protocol.feedforward else "without feed-forward"]
    parts.append("the final norm between passes" if protocol.final_norm else "no final norm between passes")
    if protocol.redraw:
        parts.append("weights drawn anew before every pass")
    elif protocol.random:
        parts.append("random weights")
    many = f"Mean over {len(found.prompts)} prompts. " if len(found.prompts) > 1 else ""
    return f"{protocol.passes} passes, {', '.join(parts)}, seed {protocol.seed}. {many}Law: {law.name}, {law.message}."
