"""Tokens under one unnormalised attention layer in the plane [pham2025dynamical]: convergence, divergence, positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from attractor.laws import Absolute, Attention, Rotary
from attractor.papers.figure import (
    SEED,
    Comparison,
    Data,
    Figure,
    Parameter,
    Settings,
    Table,
    Verdict,
    Work,
)
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory import fit_power, geometric_times

Matrix = NDArray[np.float64]
CHECKED = 0.5  # time of the comparison with SciPy
FAR = 8.0  # tracks are drawn up to so many times the start


@dataclass(frozen=True)
class Run:
    """One system: A, W, the start, and how positions enter; ``limit`` is where tokens are expected, zero by default.

    The value is A^-1 W and the query I, so that scores are x_l' W x_i.
    """

    name: str
    metric: Matrix
    interaction: Matrix
    start: Matrix
    until: float
    positions: Literal["none", "rotary", "input", "every"] = "none"
    causal: bool = False
    limit: Matrix | None = None
    table: Matrix = field(default_factory=lambda: np.zeros((0, 2)))

    @property
    def value(self) -> Matrix:
        return np.asarray(np.linalg.solve(self.metric, self.interaction), dtype=np.float64)


def turn(degrees: float) -> Matrix:
    """Return a rotation of the plane."""
    angle = np.radians(degrees)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _definite(draw: np.random.Generator, sign: float = 1.0) -> Matrix:
    basis = turn(float(draw.uniform(0, 180)))
    return sign * basis @ np.diag(draw.uniform(0.5, 1.5, 2)) @ basis.T


def convergence_runs(seed: int, tokens: int) -> list[Run]:
    """Draw A symmetric negative and W with a positive symmetric part; and rotations, where A is not symmetric."""
    draw = np.random.default_rng(seed)
    metric, skew = _definite(draw, -1.0), 0.4 * np.array([[0.0, 1.0], [-1.0, 0.0]])
    start = draw.standard_normal((tokens, 2))
    rows = [Run("A symmetric", metric, _definite(draw) + skew, start, 3e3)]
    return rows + [Run(f"rotation by {angle} degrees", -turn(-angle), turn(angle), start, 3e3) for angle in (44, 46)]


def divergence_runs(seed: int, tokens: int) -> list[Run]:
    """Draw A with two, one and no positive eigenvalue; the last with W negative, from two sides."""
    draw = np.random.default_rng(seed)
    basis, start = turn(30.0), 0.5 * draw.standard_normal((tokens, 2))
    mixed = basis @ np.diag([1.0, -1.0]) @ basis.T
    interaction = _definite(draw)
    side = start * np.sign(start @ basis[:, :1])  # all on one side of the unstable direction
    return [
        Run("A positive", _definite(draw), interaction, start, 12.0),
        Run("A indefinite, one side", mixed, interaction, side, 12.0),
        Run("A positive, W negative", _definite(draw), -interaction, start, 12.0),
    ]


def rotary_runs(seed: int, tokens: int) -> list[Run]:
    """Take collapsing systems with and without rotary positions, also under a causal mask."""
    draw = np.random.default_rng(seed)
    start, eye = draw.standard_normal((tokens, 2)), np.eye(2)
    return [
        Run("no positions", -eye, eye, start, 1e3),
        Run("rotary", -eye, eye, start, 1e3, "rotary"),
        Run("rotary, causal", -eye, eye, start, 1e3, "rotary", causal=True),
    ]


def absolute_runs(seed: int, tokens: int) -> list[Run]:
    """Take a collapsing system with sinusoidal positions, added once at the input or in every layer."""
    draw = np.random.default_rng(seed)
    start, eye = 0.5 * draw.standard_normal((tokens, 2)), np.eye(2)
    table = Absolute.sinusoidal(tokens, 2).table.numpy()
    return [
        Run("no positions", -eye, eye, start, 1e3),
        Run("added at the input", -eye, eye, start, 1e3, "input", table=table),
        Run("added in every layer", -eye, eye, start, 1e3, "every", limit=-table, table=table),
    ]


def integrate(run: Run) -> tuple[Matrix, Matrix, str]:
    """Return times, tokens and the name of the outcome of a system."""
    options: dict[str, Any] = {"mask": "causal" if run.causal else None}
    if run.positions == "rotary":
        options["positions"] = Rotary()
    elif run.positions != "none":
        when: Any = run.positions
        options["positions"] = Absolute(torch.from_numpy(run.table), when=when)
    law = Attention(
        torch.eye(2, dtype=torch.float64), torch.from_numpy(run.interaction), torch.from_numpy(run.value), **options
    )
    tokens = Tokens(torch.from_numpy(run.start), positions=torch.arange(len(run.start), dtype=torch.float64))
    save = sorted(
        {*geometric_times(run.until, 140, 1e-4), *np.linspace(0.0, min(run.until, 30.0), 121).tolist(), CHECKED}
    )
    found = flow(
        law, tokens, save=save, rtol=1e-9, atol=1e-12, stop=(), events=(), merge=False, max_evaluations=200_000
    )
    return found.times.numpy(), found.points.numpy(), found.outcome.name


def integrate_by_scipy(run: Run, until: float) -> Matrix:
    """Return tokens at a time by DOP853 of SciPy, with the attention written out."""
    count = len(run.start)
    hidden = np.triu(np.ones((count, count), dtype=bool), 1) & run.causal
    turns = np.stack([turn(np.degrees(float(place))) for place in range(count)])
    shift = run.table if run.positions == "every" else 0.0

    def velocity(time: float, flat: Matrix) -> Matrix:
        x = flat.reshape(count, 2) + shift
        query, key = x, x @ run.interaction.T
        if run.positions == "rotary":
            query, key = (np.einsum("nij,nj->ni", turns, part) for part in (query, key))
        scores = np.where(hidden, -np.inf, query @ key.T)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        return (weights / weights.sum(1, keepdims=True) @ x @ run.value.T).ravel()

    start = run.start + (run.table if run.positions == "input" else 0.0)
    return (
        solve_ivp(velocity, (0.0, until), start.ravel(), method="DOP853", rtol=1e-11, atol=1e-13)
        .y[:, -1]
        .reshape(count, 2)
    )


def compute(build: Callable[[int, int], list[Run]], settings: Settings, work: Work) -> Data:
    """Integrate the systems, and fit how the distance from the expected limit changes."""
    runs, rows = build(settings["seed"], settings["tokens"]), []
    for number, run in enumerate(runs):
        work(number, len(runs))
        times, points, outcome = integrate(run)
        sizes = np.linalg.norm(points - (0.0 if run.limit is None else run.limit), axis=-1)
        size, inner = sizes.max(-1), sizes.min(-1)
        near = size <= FAR * size[0]
        late = torch.from_numpy(times[1:]), torch.from_numpy(size[1:])
        place = int(np.flatnonzero(times == CHECKED)[0]) if CHECKED in times else None
        rows.append(
            {
                "name": run.name,
                "outcome": outcome,
                "times": times.tolist(),
                "size": size.tolist(),
                "inner": inner.tolist(),
                "tracks": [[[float(f"{value:.5g}") for value in token] for token in state] for state in points[near]],
                "limit": None if run.limit is None else run.limit.tolist(),
                "power": fit_power(*late),
                "value_rate": float(np.linalg.eigvals(run.value).real.max()),
                "metric": np.linalg.eigvalsh(run.metric + run.metric.T).tolist(),
                "interaction": np.linalg.eigvalsh(run.interaction + run.interaction.T).tolist(),
                "ours": None if place is None else points[place].tolist(),
                "other": None if place is None else integrate_by_scipy(run, CHECKED).tolist(),
            }
        )
    return {"rows": rows}


def compare(data: Data) -> tuple[Comparison, ...]:
    """Compare tokens at t = 0.5 with SciPy's."""
    rows = []
    for row in data["rows"]:
        if row["ours"] is not None:
            ours, other = np.array(row["ours"]), np.array(row["other"])
            worst = np.unravel_index(np.abs(ours - other).argmax(), ours.shape)
            quantity = f"{row['name']}: coordinate of a token that differs most at t = {CHECKED:g}"
            rows.append(Comparison(quantity, float(ours[worst]), float(other[worst]), 1e-6, "SciPy, DOP853"))
    return tuple(rows)


def _left(row: Data) -> float:
    return row["size"][-1] / row["size"][0]


def _falls(row: Data) -> bool:
    """Whether tokens approach their limit: by a power of t, or exponentially."""
    return row["power"] < -0.3 or _left(row) < 1e-4


def judge_convergence(data: Data) -> Verdict:
    """Check that the symmetric system collapses, and what the rotations do."""
    good, below, above = data["rows"]
    reason = (
        f"Claimed: tokens converge to zero if A_sym < 0 and W_sym > 0. With A symmetric they do, like t^{good['power']:.2f} "
        "(theory: -0.5). "
        f"Rotations satisfy both conditions with an A that is not symmetric: by 44 degrees the largest norm is "
        f"{_left(below):.2g} of the start at "
        f"the end, by 46 degrees it grows {_left(above):.2g}-fold, since the value has the rate {above['value_rate']:.2g} > 0."
    )
    if not _falls(good) or not _falls(below):
        return Verdict("differs", reason)
    if _left(above) > 1:
        return Verdict(
            "reproduced with a correction", f"{reason} Correction: A or W must be symmetric (regimes.T1, T2)."
        )
    return Verdict("reproduced", reason)


def judge_divergence(data: Data) -> Verdict:
    """Check that every system with a positive eigenvalue of A grows."""
    words = [f"{row['name']}: {_left(row):.2g}-fold by t = {row['times'][-1]:.3g}" for row in data["rows"]]
    reason = f"Claimed: tokens diverge if the value has a positive eigenvalue and they start separated. Norms grow {'; '.join(words)}."
    if not all(_left(row) > 10 for row in data["rows"]):
        return Verdict("differs", reason)
    stable = data["rows"][2]["value_rate"]
    return Verdict(
        "reproduced with a correction",
        f"{reason} Corrections: with W positive, A decides alone (regimes.T5); with A positive and W negative tokens diverge "
        "although the value is "
        f"stable (rate {stable:.2g}), into opposite groups (regimes.T4).",
    )


def judge_rotary(data: Data) -> Verdict:
    """Check that rotary positions stop the collapse under full attention, and not under a causal mask."""
    plain, rotary, causal = data["rows"]
    reason = (
        f"Claimed: rotary positions prevent convergence. Without positions tokens collapse like t^{plain['power']:.2f}; with "
        "rotary positions the "
        f"largest norm is {_left(rotary):.2g} of the start at the end (exponent {rotary['power']:.2g}); under a causal mask it "
        f"is {_left(causal):.2g}."
    )
    if not _falls(plain) or _falls(rotary):
        return Verdict("differs", reason)
    if _falls(causal):
        words = "Corrections: tokens rest on a plateau instead of diverging, and a causal mask restores the collapse (regimes.T8)."
        return Verdict("reproduced with a correction", f"{reason} {words}")
    return Verdict("reproduced", reason)


def judge_absolute(data: Data) -> Verdict:
    """Check that absolute positions in every layer shift the limit to -p, and at the input do not."""
    plain, once, every = data["rows"]
    reason = (
        f"Claimed: absolute positions shift the equilibrium. Added in every layer, tokens approach -p like "
        f"t^{every['power']:.2f}; added once at "
        f"the input, they approach 0 like t^{once['power']:.2f}, as without positions ({plain['power']:.2f})."
    )
    if not all(_falls(row) for row in data["rows"]):
        return Verdict("differs", reason)
    return Verdict(
        "reproduced with a correction",
        f"{reason} Correction: the released code adds them at the input, where nothing is shifted.",
    )


def summarise(data: Data) -> tuple[Table, ...]:
    """Return signs of A and W, rates and outcomes."""
    signs = lambda values: "".join("+" if value > 0 else "-" for value in values)  # noqa: E731
    rows = [
        (
            row["name"],
            signs(row["metric"]),
            signs(row["interaction"]),
            f"{row['value_rate']:.3g}",
            f"{row['power']:.3g}",
            f"{_left(row):.3g}",
        )
        for row in data["rows"]
    ]
    columns = ("system", "A_sym", "W_sym", "rate of V", "exponent of t", "left at the end")
    return (Table("Distance from the limit", columns, tuple(rows)),)


def draw(grows: bool, data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the tracks of the tokens in the plane, and their distances from the limit."""
    from attractor.plotting import Grid, StaticFigure, static_suffix, style, write_chart

    static_suffix(path)
    entry = find(data)
    distance = "from the expected limit (crosses)" if any(row["limit"] for row in data["rows"]) else "from zero"
    caption = (
        f"Tracks of the tokens in the plane; dots are starts, ringed dots ends. Below: largest and smallest distance {distance}"
        f"{'' if grows else '; dashed, t^(-1/2)'}."
    )
    with style.use_style():
        rows = data["rows"]
        grid = Grid.of(len(rows), 1.5, left=0.5, gap=0.55, right=0.1)
        tall, below = min(grid.wide, 2.0), 1.25
        block = tall + below + 1.15
        page = StaticFigure(entry.title, caption, grid.rows * block)
        for number, row in enumerate(rows):
            line, left = grid.place(number)
            top = line * block
            plane = page.panel(left, top + 0.25, grid.wide, tall)
            _draw_tracks(plane, row, grows, style)
            plane.set_title(row["name"], loc="left")
            axes = page.panel(left, top + tall + 0.65, grid.wide, below)
            times = np.array(row["times"])[1:]
            size, inner = np.array(row["size"])[1:], np.array(row["inner"])[1:]
            seen = (size < 1e12) & (size > 1e-12)
            axes.fill_between(
                times[seen], np.maximum(inner[seen], 1e-12), size[seen], color=style.PALETTE[5], alpha=0.35, linewidth=0
            )
            axes.plot(times[seen], size[seen], color=style.PALETTE[0], lw=1.1)
            if not grows:
                axes.plot(times[-60:], 2 * row["size"][0] * (times[-60:]) ** -0.5, "--", color=style.QUIET, lw=0.9)
                axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("t")
            if number % grid.across == 0:
                axes.set_ylabel("distance")
        return (write_chart(page.figure, path),)


def _draw_tracks(axes: Any, row: Data, grows: bool, style: Any) -> None:
    tracks = np.array(row["tracks"])
    reach = (
        4.0 * np.abs(tracks[0]).max()
        if grows
        else 1.1 * max(np.abs(tracks).max() if _left(row) < 5 else 0.0, np.abs(tracks[0]).max())
    )
    for token in range(tracks.shape[1]):
        colour = style.PALETTE[token % len(style.PALETTE)]
        axes.plot(*tracks[:, token].T, color=colour, lw=0.8)
        axes.plot(*tracks[0, token], ".", color=colour, ms=4)
        if np.abs(tracks[-1, token]).max() <= reach:
            axes.plot(*tracks[-1, token], "o", color=colour, ms=4, mec=style.INK, mew=0.5)
    if row["limit"] is not None:
        axes.plot(*np.array(row["limit"]).T, "x", color=style.INK, ms=4, mew=0.8)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
    axes.set_aspect("equal", adjustable="datalim")


def find(data: Data) -> Figure:
    """Return the entry of data."""
    return next(entry for entry in FIGURES if entry.key == data["key"])


def _entry(name: str, title: str, question: str, build: Any, judge: Callable[[Data], Verdict], tokens: int) -> Figure:
    return Figure(
        key=f"tokens-{name}",
        title=title,
        question=question,
        source="pham2025dynamical",
        reference=f"simulations of tokens: {name}",
        parameters=(
            SEED,
            Parameter("tokens", tokens, "tokens of each system", minimum=2),
        ),
        unknown=(
            "dimensions, matrices and starts of the paper's simulations; ours are in the plane, within its hypotheses.",
        ),
        cost=5.0,
        compute=partial(compute, build),
        draw=partial(draw, name == "divergence"),
        summarise=summarise,
        verdict=judge,
        compare=compare,
        small={"tokens": 3},
    )


FIGURES = (
    _entry(
        "convergence", "Tokens that converge to zero",
        "Do tokens converge to zero where A is negative and W positive?",
        convergence_runs, judge_convergence, 10,
    ),
    _entry(
        "divergence", "Tokens that diverge",
        "Do tokens diverge where A has a positive eigenvalue?",
        divergence_runs, judge_divergence, 10,
    ),
    _entry(
        "rotary", "Rotary positions against convergence",
        "Do tokens that converge without positions still converge with rotary positions?",
        rotary_runs, judge_rotary, 6,
    ),
    _entry(
        "absolute", "Absolute positions and the limit",
        "Where do tokens converge to with absolute positions?",
        absolute_runs, judge_absolute, 6,
    ),
)  # fmt: skip
