"""The density of a run of tokens along time, beside that of a Gaussian that the same law moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attractor.errors import InputError
from attractor.flow import Trajectory
from attractor.pictures.densities import draw_densities
from attractor.states import Gaussian, Tokens


def plot_densities(
    run: Trajectory,
    path: Any = None,
    *,
    snapshots: int = 6,
    times: Sequence[float] | None = None,
    beside: Trajectory | None = None,
) -> Any:
    """Small multiples of the density of a run in one or two dimensions: .png, .pdf or .svg, or the figure itself.

    ``times`` chooses the saved states nearest to them, otherwise ``snapshots`` of them equally far apart; ``beside`` is a run of a
    Gaussian whose density is drawn dashed at the same times, as long as it has one.
    """
    if not isinstance(run.initial, Tokens) or run.initial.batch_shape:
        raise InputError("densities are drawn of one run of tokens; of an ensemble take run.member(0)")
    if snapshots < 1 or len(run.times) == 0:
        raise InputError("densities need a run with saved states, and at least one snapshot")
    saved = run.times.numpy()
    wanted = np.linspace(saved[0], saved[-1], snapshots) if times is None else np.asarray(times, dtype=float)
    chosen = np.unique(np.abs(saved[:, None] - wanted).argmin(0))
    caption = "Histogram (bars) and kernel estimate" if run.dim == 1 else "Kernel estimate of the density (shades)"
    reference = None if beside is None else normal_densities(beside, saved[chosen])
    words = "" if beside is None else " Dashed: the Gaussian that the same law moves, until it blows up."
    return draw_densities(
        saved[chosen].tolist(),
        run.points[chosen].detach().cpu().double().numpy(),
        run.masses.detach().cpu().double().numpy() if run.tokens.masses is not None else None,
        title=f"The density of {run.n:,} tokens",
        caption=f"{caption} of the tokens at a few times; 0.2% of the mass may lie outside of each frame.{words}",
        reference=reference,
        path=path,
    )


def normal_densities(beside: Trajectory, times: np.ndarray) -> Any:
    """Densities of the saved states of a Gaussian run nearest to the times; none after its end."""
    if not isinstance(beside.initial, Gaussian) or beside.initial.batch_shape:
        raise InputError("beside=... is one run of a Gaussian")
    saved, end = beside.times.numpy(), float(beside.outcome.time)
    lost = beside.outcome.name in ("blow_up", "diverged", "stalled")

    def density(k: int, x: np.ndarray) -> np.ndarray | None:
        index = int(np.abs(saved - times[k]).argmin())
        # a time that the run did not save is not the time of any of its states
        if (lost and times[k] >= end * (1 - 1e-6)) or abs(saved[index] - times[k]) > 1e-9 * max(1.0, abs(times[k])):
            return None
        mean, shape = beside.means[index].numpy(), beside.covariances[index].numpy()
        if np.linalg.eigvalsh(shape)[0] <= 1e-12 * np.trace(shape):
            return None
        offset = (x if len(mean) > 1 else x[..., None]) - mean
        exponent = np.einsum("...a,ab,...b->...", offset, np.linalg.inv(shape), offset) / 2
        return np.exp(-exponent) / np.sqrt(np.linalg.det(2 * np.pi * shape))

    return density
