"""Figures of mean-field studies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.plotting import (
    Bounded,
    Decay,
    Grid,
    StaticFigure,
    draw_bounded,
    draw_decays,
    draw_densities,
    line_density,
    plane_density,
    style,
    write_chart,
)
from attractor.solvers import Trajectory
from attractor.states import Gaussian, Tokens

if TYPE_CHECKING:
    from attractor.meanfield.blowup import PastBlowUp
    from attractor.meanfield.convergence import Rates
    from attractor.meanfield.perturbations import Stability


def plot_densities(
    run: Trajectory,
    path: Any = None,
    *,
    snapshots: int = 6,
    times: Sequence[float] | None = None,
    gaussian: Trajectory | None = None,
) -> Any:
    """Small multiples of the density of a run in one or two dimensions: .png, .pdf or .svg, or the figure itself.

    ``times`` chooses the saved states nearest to them, otherwise ``snapshots`` of them equally far apart; ``gaussian`` is a run of a
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
    densities = None if gaussian is None else normal_densities(gaussian, saved[chosen])
    words = "" if gaussian is None else " Dashed: the Gaussian that the same law moves, until it blows up."
    return draw_densities(
        saved[chosen].tolist(),
        run.points[chosen].detach().cpu().double().numpy(),
        run.masses.detach().cpu().double().numpy() if run.tokens.masses is not None else None,
        title=f"The density of {run.n:,} tokens",
        caption=f"{caption} of the tokens at a few times; 0.2% of the mass may lie outside of each frame.{words}",
        reference=densities,
        path=path,
    )


def normal_densities(gaussian: Trajectory, times: np.ndarray) -> Any:
    """Densities of the saved states of a Gaussian run nearest to the times; none after its end."""
    if not isinstance(gaussian.initial, Gaussian) or gaussian.initial.batch_shape:
        raise InputError("gaussian=... is one run of a Gaussian")
    saved, end = gaussian.times.numpy(), float(gaussian.outcome.time)
    lost = gaussian.outcome.name in ("blow_up", "diverged", "stalled")

    def density(k: int, x: np.ndarray) -> np.ndarray | None:
        index = int(np.abs(saved - times[k]).argmin())
        # a time that the run did not save is not the time of any of its states
        if (lost and times[k] >= end * (1 - 1e-6)) or abs(saved[index] - times[k]) > 1e-9 * max(1.0, abs(times[k])):
            return None
        mean, shape = gaussian.means[index].numpy(), gaussian.covariances[index].numpy()
        if np.linalg.eigvalsh(shape)[0] <= 1e-12 * np.trace(shape):
            return None
        offset = (x if len(mean) > 1 else x[..., None]) - mean
        exponent = np.einsum("...a,ab,...b->...", offset, np.linalg.inv(shape), offset) / 2
        return np.exp(-exponent) / np.sqrt(np.linalg.det(2 * np.pi * shape))

    return density


SHOWN = (0.0, 0.5, 0.9, 1.0, 1.2)  # shares of the blow-up time whose densities are drawn


def draw_past_blow_up(found: PastBlowUp, path: Any = None) -> Any:
    """Variance along time above, densities of the largest system below (in one or two dimensions)."""
    drawn = found.run.dim <= 2
    last = f"{found.sizes[-1]:,}"
    below = f" Below: the density of one run of {last} tokens; dashed: the Gaussian, while it exists." if drawn else ""
    caption = (
        f"Above: total variance along time, in units of the time T* = {found.blow_up:.6g} at which the Gaussian is infinite (dashed). "
        f"Lines are medians over {found.variance.shape[1]} draws, bands their range: tokens stay finite, and how large they are near T* "
        f"is decided by the few longest tokens of a draw.{below}"
    )
    with style.use_style():
        chosen = _times(found) if drawn else []
        grid = Grid.of(len(chosen) or 1, 0.9, left=0.25, gap=0.15, right=0.1, most=5)
        page = StaticFigure(
            "Tokens past the blow-up of their Gaussian", caption, 2.9 + (1.6 * grid.rows + 0.25) * drawn
        )
        _curves(page.panel(0.6, 0.15, page.width - 0.85, 2.2), found)
        _densities(page, found, chosen, grid)
        return write_chart(page.figure, path)


def _curves(axes: Any, found: PastBlowUp) -> None:
    shares = found.times / found.blow_up
    finite = np.isfinite(found.gaussian)
    top = 3.0 * float(found.variance.max())
    seen = finite & (found.gaussian < top)
    axes.plot(shares[seen], found.gaussian[seen], "--", color=style.INK, linewidth=1.1, label="Gaussian")
    for index, n in enumerate(found.sizes):
        colour = style.PALETTE[index % len(style.PALETTE)]
        runs = found.variance[index]
        axes.fill_between(shares, runs.min(0), runs.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(shares, found.median[index], color=colour, linewidth=1.2, label=f"n = {n:,}")
    axes.axvline(1.0, color=style.FAINT, linewidth=0.8, zorder=0)
    axes.annotate("blow-up of the Gaussian", (1.0, 0.03), xycoords=("data", "axes fraction"), textcoords="offset points",
                  xytext=(3, 0), fontsize=6.5, color=style.QUIET)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xlabel("t / T*", parse_math=False)
    axes.set_ylabel("total variance")
    axes.legend(frameon=False, fontsize=6.5, loc="upper left")


def _times(found: PastBlowUp) -> list[int]:
    """The saved times whose densities are drawn."""
    saved = found.run.times.numpy()
    return list(dict.fromkeys(int(np.abs(saved - share * found.blow_up).argmin()) for share in SHOWN))


def _densities(page: StaticFigure, found: PastBlowUp, chosen: list[int], grid: Grid) -> None:
    saved = found.run.times.numpy()
    reference = normal_densities(found.gaussian_run, saved[chosen])
    weights = np.full(found.run.n, 1.0 / found.run.n)
    for number, index in enumerate(chosen):
        row, left = grid.place(number)
        axes = page.panel(left, 3.15 + 1.6 * row, grid.wide, 1.15)
        axes.set_title(f"t = {saved[index] / found.blow_up:.3g} T*", pad=3, fontsize=7, parse_math=False)
        panel = line_density if found.run.dim == 1 else plane_density
        points = found.run.points[index].detach().cpu().double().numpy()
        panel(axes, points, weights, lambda x, k=number: reference(k, x))
        axes.tick_params(labelsize=5.5)


LABELS = {"w2": "W2", "sliced": "sliced W2", "energy": "energy distance", "mean": "mean", "covariance": "covariance"}
REFERENCES = {
    "closure": "the Gaussian that the same law moves (W2 and energy distance: n tokens drawn from it)",
    "pair": "an independent system of the same size",
}


def draw_rates(rates: Rates, path: Any = None) -> Any:
    """Errors against n, one panel for each measure."""
    decays = []
    for name, errors in rates.errors.items():
        slope = rates.slopes[name]
        decays.append(Decay(LABELS[name], errors, rates.rms(name), slope.value, slope.low, slope.high))
    law = rates.definition.get("law")
    kernel = getattr(getattr(law, "kernel", None), "name", "a law of")
    reference = REFERENCES.get(str(rates.against), f"a system of {rates.against} tokens")
    caption = (
        f"Distance at t = {rates.until:g} between n tokens and {reference}. Dots are runs, {rates.repeats} for each n; discs their root "
        "mean square; the line is the power of n that fits it best, with the 95% interval of its exponent; dashed: the power "
        f"-1/2 of independent samples. {' '.join(note[:1].upper() + note[1:] + '.' for note in rates.notes)}"
    )
    title = f"The mean-field limit under {kernel} attention"
    return draw_decays(rates.sizes, decays, title=title, caption=caption.strip(), path=path)


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
