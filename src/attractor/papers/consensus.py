"""Consensus of tokens on ellipsoids [abella2024asymptotic]: a simulation of each of the paper's four results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from attractor.laws import Attention, Law, Schedule
from attractor.papers.figure import (
    SEED,
    Beside,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Verdict,
    Work,
)
from attractor.solvers import Trajectory, flow
from attractor.spaces import Ellipsoid
from attractor.states import Tokens
from attractor.theory import fit_decay_rate

Matrix = NDArray[np.float64]
TRACKS = 160  # saved times of a run
CHECKED = 1.0  # time of the comparison with SciPy


@dataclass(frozen=True)
class Setting:
    """One simulation: P_h(t), the common value U, the mask, the matrix of the ellipsoid, starts on it, and the rate that is predicted.

    Attributes
    ----------
    rate : exponent of the largest distance to the limit, from the linearisation at consensus.
    """

    interaction: Callable[[float], Matrix]
    value: Matrix
    causal: bool
    shape: Matrix
    start: Matrix
    rate: float
    words: str


def make_settings(seed: int) -> dict[str, Setting]:
    """Draw the four simulations."""
    draw = np.random.default_rng(seed)
    eye, axes = np.eye(3), np.diag([1.0, 2.0, 4.0])
    gradient = Setting(
        lambda t: axes[None], eye, False, axes, _on(axes, draw.standard_normal((8, 3))), -1.0, "P = W, one head"
    )
    swing = [draw.standard_normal((2, 3, 3)) for _ in range(2)]
    pace = draw.uniform(0.5, 2.0, (2, 1, 1))
    ahead = draw.standard_normal((10, 3))
    ahead[:, 0] = np.abs(ahead[:, 0])
    shape = np.diag([1.0, 1.5, 0.7])
    hemisphere = Setting(
        lambda t: swing[0] + swing[1] * np.sin(pace * t),
        eye / 2,
        False,
        shape,
        _on(shape, ahead),
        -1.0,
        "P(t) of two heads, in a hemisphere",
    )
    other = [draw.standard_normal((2, 3, 3)) for _ in range(2)]
    causal = Setting(
        lambda t: other[0] + other[1] * np.sin(pace * t), eye / 2, True, shape, _on(shape, draw.standard_normal((6, 3))), -0.5,
        "causal, P(t) of two heads",
    )  # fmt: skip
    turn = np.linalg.qr(draw.standard_normal((3, 3)))[0]
    top, fixed = turn[:, 0], draw.standard_normal((1, 3, 3))
    starts = draw.standard_normal((5, 3))
    starts *= np.sign(starts @ top)[:, None]
    starts[0] = turn @ np.array([1.0, 1.0, 0.5])  # the first token has the slowest decay; it must not begin without it
    value = turn @ np.diag([2.0, 1.0, 0.5]) @ turn.T
    symmetric = Setting(
        lambda t: fixed, value, True, eye, _on(eye, starts), -(2.0 - 1.0), "causal, U with eigenvalues 2, 1, 0.5"
    )
    return {"gradient": gradient, "hemisphere": hemisphere, "causal": causal, "symmetric value": symmetric}


UNTIL = {"gradient": 26.0, "hemisphere": 26.0, "causal": 48.0, "symmetric value": 27.0}


def _on(shape: Matrix, points: Matrix) -> Matrix:
    """Return points scaled onto the ellipsoid x' W x = 1."""
    return points / np.sqrt(((points @ shape) * points).sum(-1, keepdims=True))


def build_law(chosen: Setting) -> Law:
    """Return the law of a simulation: Q = I, K = P_h(t), V = U."""
    heads = len(chosen.interaction(0.0))
    eyes, values = np.broadcast_to(np.eye(3), (heads, 3, 3)), np.broadcast_to(chosen.value, (heads, 3, 3))
    mask = "causal" if chosen.causal else None

    def at(time: float) -> Law:
        parts: Any = (np.array(eyes), chosen.interaction(time), np.array(values))
        return Attention(*parts, scale=3**-0.5, mask=mask)

    return at(0.0) if np.array_equal(chosen.interaction(0.0), chosen.interaction(1.0)) else Schedule(at)


def simulate(chosen: Setting, until: float, rtol: float) -> Trajectory:
    """Integrate one simulation."""
    times = np.linspace(0.0, until, TRACKS)
    save = np.unique(np.concatenate((times, [CHECKED]))).tolist()
    space = Ellipsoid(torch.from_numpy(chosen.shape))
    tokens = Tokens(torch.from_numpy(chosen.start))
    return flow(build_law(chosen), tokens, space=space, save=save, rtol=rtol, atol=1e-14, stop=(), merge=False)


def integrate_by_scipy(chosen: Setting, until: float) -> Matrix:
    """Return tokens at a time by DOP853 of SciPy, on the sphere y = W^(1/2) x, with the attention written out."""
    values, vectors = np.linalg.eigh(chosen.shape)
    root = (vectors * np.sqrt(values)) @ vectors.T
    back = np.linalg.inv(root)
    U = root @ chosen.value @ back
    count = len(chosen.start)
    hidden = np.triu(np.ones((count, count), dtype=bool), 1) if chosen.causal else np.zeros((count, count), dtype=bool)

    def velocity(time: float, flat: Matrix) -> Matrix:
        y, drive = flat.reshape(count, 3), np.zeros((count, 3))
        for P in chosen.interaction(time):
            scores = y @ (back @ P @ back) @ y.T / np.sqrt(3)
            scores[hidden] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            drive += weights / weights.sum(1, keepdims=True) @ (y @ U.T)
        return (drive - (drive * y).sum(1, keepdims=True) * y).ravel()

    found = solve_ivp(velocity, (0.0, until), (chosen.start @ root).ravel(), method="DOP853", rtol=1e-11, atol=1e-13)
    return found.y[:, -1].reshape(count, 3) @ back


def compute(settings: Settings, work: Work) -> Data:
    """Integrate the simulations, fit the rate at which they reach consensus, and integrate a unit of time by SciPy."""
    rows = []
    made = make_settings(settings["seed"])
    for number, (name, chosen) in enumerate(made.items()):
        work(number, len(made))
        run = simulate(chosen, settings["until"] * UNTIL[name], settings["rtol"])
        times, points = run.times.numpy(), run.points.numpy()
        root = np.sqrt(np.diag(chosen.shape)) if np.allclose(chosen.shape, np.diag(np.diag(chosen.shape))) else None
        assert root is not None
        unit = points * root
        target = _limit(chosen, unit)
        gap = np.linalg.norm(unit - target[..., None, :], axis=-1).max(-1)
        place = int(np.flatnonzero(times == CHECKED)[0])
        rows.append(
            {
                "name": name,
                "words": chosen.words,
                "times": times.tolist(),
                "gap": gap.tolist(),
                "tracks": _rounded(unit[::2]),
                "predicted": chosen.rate,
                "rate": fit_decay_rate(run.times, torch.from_numpy(gap), 1e-10, 1e-5),
                "last": float(gap[-1]),
                "drift": float(np.abs(((points @ chosen.shape) * points).sum(-1) - 1).max()),
                "ours": points[place].tolist(),
                "other": integrate_by_scipy(chosen, CHECKED).tolist(),
            }
        )
    return {"rows": rows}


def _rounded(tracks: Matrix) -> list[list[list[float]]]:
    """Return tracks with the digits that a figure shows."""
    return [[[float(f"{value:.5g}") for value in token] for token in state] for state in tracks]


def _limit(chosen: Setting, unit: Matrix) -> Matrix:
    """Return the consensus point for each time: the first token of a causal run, the top eigenvector of U, or the direction "
    "of the sum."""
    if not np.allclose(chosen.value, chosen.value[0, 0] * np.eye(3)):
        vector = np.linalg.eigh(chosen.value)[1][:, -1]
        return np.broadcast_to(vector * np.sign(unit[-1, 0] @ vector), (len(unit), 3))
    if chosen.causal:
        return unit[:, 0]
    total = unit.sum(1)
    return total / np.linalg.norm(total, axis=-1, keepdims=True)


def compare(data: Data) -> tuple[Comparison, ...]:
    """Compare tokens at t = 1 with SciPy's."""
    rows = []
    for row in data["rows"]:
        ours, other = (np.array(row[name]) for name in ("ours", "other"))
        worst = np.unravel_index(np.abs(ours - other).argmax(), ours.shape)
        quantity = f"{row['name']}: coordinate of a token that differs most at t = {CHECKED:g}"
        rows.append(Comparison(quantity, float(ours[worst]), float(other[worst]), 1e-7, "SciPy, DOP853 on the sphere"))
    return tuple(rows)


def beside(data: Data) -> tuple[Beside, ...]:
    """Return measured rates beside those of the linearisation; the paper proves convergence without rates."""
    return tuple(
        Beside(
            row["name"],
            f"rate {format_rate(row['rate'])}, distance {row['last']:.1e} at the end",
            f"consensus (linearised rate {row['predicted']:g})",
        )
        for row in data["rows"]
    )


def format_rate(rate: float | None) -> str:
    """Return a fitted rate in words."""
    return "not measured" if rate is None else f"{rate:.4f}"


def judge(data: Data) -> Verdict:
    """Check that every simulation reaches consensus at the rate of the linearisation."""
    words, wrong = [], []
    for row in data["rows"]:
        rate = row["rate"]
        good = row["last"] < 1e-4 and rate is not None and abs(rate / row["predicted"] - 1) < 0.05
        words.append(
            f"{row['name']}: distance {row['last']:.1e} at t = {row['times'][-1]:g}, rate {format_rate(rate)} "
            f"({row['predicted']:g} predicted)"
        )
        if not good:
            wrong.append(row["name"])
    reason = f"{'; '.join(words)}."
    if wrong:
        return Verdict("differs", f"{reason} Not at consensus with the predicted rate: {', '.join(wrong)}.")
    correction = (
        " Corrections: the first result is a gradient flow only if W U is a multiple of P (here P = W), and the last "
        "needs a positive largest eigenvalue (consensus.T1, T4)."
    )
    return Verdict("reproduced with a correction", reason + correction)


def summarise(data: Data) -> tuple[Table, ...]:
    """Return rates and last distances."""
    rows = [
        (
            row["name"],
            row["words"],
            format_rate(row["rate"]),
            f"{row['predicted']:g}",
            f"{row['last']:.2g}",
            f"{row['drift']:.1g}",
        )
        for row in data["rows"]
    ]
    columns = ("result", "system", "rate", "predicted", "last distance", "error of x'Wx")
    return (Table("Largest distance of a token from consensus", columns, tuple(rows)),)


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the tracks of the tokens on the sphere y = W^(1/2) x, and the largest distance from consensus."""
    from attractor.plotting import Grid, StaticFigure, static_suffix, style, write_chart

    static_suffix(path)
    caption = (
        "Tokens on the sphere that the ellipsoid becomes in the coordinates y = W^(1/2) x; dots are starts, ringed dots ends. Below: "
        "largest distance of a token from consensus; dashed, the rate of the linearisation there."
    )
    with style.use_style():
        rows = data["rows"]
        grid = Grid.of(len(rows), 1.25, left=0.5, gap=0.42, right=0.1)
        tall, below = grid.wide * 1.05, 1.2
        block = tall + below + 0.95
        page = StaticFigure("Consensus on ellipsoids, one simulation for each result", caption, grid.rows * block)
        for number, row in enumerate(rows):
            line, left = grid.place(number)
            top = line * block
            ball: Any = page.panel(
                left - 0.15, top + 0.2, grid.wide + 0.2, tall, projection="3d", computed_zorder=False
            )
            ball.set_title(row["name"], fontsize=7.5, pad=0)
            _draw_ball(ball, np.array(row["tracks"]), style)
            axes = page.panel(left, top + 0.3 + tall, grid.wide, below)
            times, gap = np.array(row["times"]), np.array(row["gap"])
            shown = gap > 1e-11
            axes.plot(times[shown], gap[shown], color=style.PALETTE[0], lw=1.1)
            inside = np.flatnonzero((gap < 1e-3) & shown)
            if len(inside) > 1:
                first, last = times[inside[0]], times[inside[-1]]
                span = np.array([first, last])
                axes.plot(
                    span,
                    4 * gap[inside[0]] * np.exp(row["predicted"] * (span - first)),
                    "--",
                    color=style.QUIET,
                    lw=0.9,
                )
            axes.set_yscale("log")
            axes.set_xlabel("t")
            if number % grid.across == 0:
                axes.set_ylabel("distance")
        return (write_chart(page.figure, path),)


def _draw_ball(axes: Any, tracks: Matrix, style: Any) -> None:
    turn = np.linspace(0, 2 * np.pi, 73)
    for height in (-0.6, 0.0, 0.6):
        wide = np.sqrt(1 - height**2)
        axes.plot(wide * np.cos(turn), wide * np.sin(turn), height, color=style.HAIR, lw=0.5, zorder=0)
    for angle in (0.0, np.pi / 3, 2 * np.pi / 3):
        axes.plot(
            np.cos(turn) * np.cos(angle), np.cos(turn) * np.sin(angle), np.sin(turn), color=style.HAIR, lw=0.5, zorder=0
        )
    for token in range(tracks.shape[1]):
        colour = style.PALETTE[token % len(style.PALETTE)]
        axes.plot(*tracks[:, token].T, color=colour, lw=0.9)
        axes.scatter(*tracks[:1, token].T, color=colour, s=5)
        axes.scatter(*tracks[-1:, token].T, color=colour, s=14, edgecolors=style.INK, linewidths=0.4)
    axes.set_box_aspect((1, 1, 1), zoom=1.5)
    axes.set_axis_off()
    axes.view_init(elev=20, azim=35)


FIGURE = Figure(
    key="consensus-ellipsoid",
    title="Consensus on ellipsoids",
    question="Do tokens on an ellipsoid reach consensus under the hypotheses of each of the four results, and how fast?",
    source="abella2024asymptotic",
    reference="simulations of the four results",
    parameters=(
        SEED,
        Parameter("until", 1.0, "length of the runs, relative to ours", minimum=0.05),
        Parameter("rtol", 1e-10, "tolerance of the integrator", minimum=1e-13),
    ),
    unknown=(
        "sizes, matrices and starts of the paper's simulations; ours have three dimensions and 5 to 10 tokens, within the hypotheses.",
    ),
    cost=10.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=judge,
    compare=compare,
    beside=beside,
    small={"until": 0.2, "rtol": 1e-8},
)
