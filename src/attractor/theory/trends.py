"""What conclusions measure along a trajectory: monotone quantities and slopes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attractor.flow import Trajectory
from attractor.flow.stops import Event
from attractor.states import Tokens

FAR = 300.0


def _room(tokens: Tokens, time: float) -> float:
    return FAR - float(tokens.points.norm(dim=-1).max())


# Far out every softmax is a switch and an accurate step is tiny: for tokens that run away, this is far enough.
RUNAWAY = {"events": (Event(_room, "far away"),)}


def alive(run: Trajectory) -> slice:
    """The saved times before the run ended; later rows repeat its last state."""
    return slice(0, int((run.times <= run.outcome.time * (1 + 1e-12)).sum()))


def smallest_increase(values: Tensor, scale: Tensor | float = 1.0) -> float:
    """Smallest increment along the first axis (time), relative to the scale at the later time; 0 where there is none."""
    steps = values[1:] - values[:-1]
    if steps.numel() == 0:
        return 0.0
    sizes = torch.as_tensor(scale, dtype=values.dtype)
    return float((steps / (sizes[1:] if sizes.ndim else sizes).clamp_min(1e-300)).min())


def largest_norms(run: Trajectory) -> Tensor:
    """Norm of the longest token at each saved time before the end, (S,)."""
    return run.points[alive(run)].norm(dim=-1).amax(-1)


def power(times: Tensor, values: Tensor, share: float = 0.1) -> float:
    """Exponent p of values ~ t^p, fitted where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].log().numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def exponential(times: Tensor, values: Tensor, share: float = 0.5) -> float:
    """Rate r of values ~ e^{rt}, fitted where t is above ``share`` of the last time."""
    late = times >= share * times[-1]
    return float(np.polyfit(times[late].numpy(), values[late].clamp_min(1e-300).log().numpy(), 1)[0])


def decades(horizon: float, count: int = 60, first: float = 1e-3) -> list[float]:
    """Save times that resolve every decade: 0 and a geometric grid."""
    return [0.0, *np.geomspace(first * horizon, horizon, count).tolist()]
