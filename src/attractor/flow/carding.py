"""A run as a card for notebooks."""

from __future__ import annotations

from typing import Any

import torch

from attractor.cards import card, curve
from attractor.flow.trajectory import Trajectory
from attractor.states import Gaussian, Tokens

MOST = 1 << 24  # numbers in a run above which only a few saved times are looked at


def trajectory_card(run: Trajectory) -> str:
    """The outcome in words, sizes and costs, and one curve."""
    end, gaussian = run.outcome, isinstance(run.initial, Gaussian)
    rows: dict[str, Any] = {"outcome": f"{end.name.replace('_', ' ')} at t = {end.time:.6g}", "": end.message}
    members = "".join(f"{size} x " for size in run.initial.batch_shape)
    what = f"a Gaussian of dimension {run.dim}" if gaussian else f"{run.n:,} tokens of dimension {run.dim}"
    rows |= {
        "state": members + what,
        "space": run.space.name,
        "law": "a function" if run.law is None else repr(run.law),
    }
    rows |= {"saved": f"{len(run.times):,} times"}
    if run.stats.merges:
        rows["merges"] = run.stats.merges
    rows["took"] = f"{run.stats.evaluations:,} evaluations, {run.stats.seconds:.3g} s ({run.stats.method})"
    return card(type(run).__name__, rows, drawing(run))


def drawing(run: Trajectory) -> str:
    """Pairwise distance of tokens, or the trace of a covariance, at the saved times of the first member."""
    if len(run.times) < 2:
        return ""
    step = max(1, run.points.numel() // MOST)
    points = (
        run.points[::step].detach().reshape(len(run.times[::step]), -1, *run.points.shape[-2:])[:, 0].cpu().double()
    )
    if isinstance(run.initial, Gaussian):
        sizes = points[:, 1:].square().sum((-2, -1)).clamp_min(1e-300)
        if run.outcome.name == "blow_up":  # the last state is the blow-up itself
            sizes = sizes[:-1]
        return curve(sizes.log10(), "log10 of the trace of the covariance")
    from attractor.observables import pairwise_distance

    distances = pairwise_distance(Tokens.trusted(points, None, None))
    return curve(torch.as_tensor(distances), "mean squared distance of two tokens") if points.shape[1] > 1 else ""
