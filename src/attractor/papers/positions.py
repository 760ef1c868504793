"""Positional encodings and collapse: random systems under every encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws import Absolute, Attention, Rotary
from attractor.solvers import Event, Trajectory, flow
from attractor.states import Tokens
from attractor.theory import Rng, fit_power, geometric_times, stack_laws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS, DIM = 6, 4
FAR = 12.0  # several times the start: what gets there grows, and an accurate step is tiny beyond
EVALUATIONS = 5000  # for each system; one that needs more is undecided
KINDS: tuple[str, ...] = ("collapse", "plateau", "growth", "undecided")
ANGLES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, float(np.pi))
SPREADS = (0.0, 0.25, 0.5, 1.0)
Change = Callable[[Attention, Rng], Attention]


def _room(tokens: Tokens, time: float) -> float:
    return FAR - float(tokens.points.norm(dim=-1).max())


GROWN = Event(_room, "far away")


@dataclass(frozen=True)
class Encoding:
    """How many systems ended how, and the median over them of the exponent of t (last decade) and of the distance to the limit."""

    name: str
    counts: dict[str, int]
    exponent: float
    distance: float


@dataclass(frozen=True)
class Cell:
    """One place of the phase diagram: angle per position, how far the query is from orthogonal, and how the systems ended."""

    angle: float
    spread: float
    counts: dict[str, int]


@dataclass(frozen=True)
class PositionalStudy:
    """What ``positional_study`` returns."""

    systems: int
    horizon: float
    seed: int
    encodings: tuple[Encoding, ...]
    phase: tuple[Cell, ...]

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def resplit(law: Attention, query: Tensor) -> Attention:
    """The same interaction with another query: the key makes up for it."""
    return replace(law, query=query, key=torch.linalg.solve(query.mT, law.interaction))


def split(spread: float) -> Change:
    """Queries that leave the orthogonal ones by the exponential of a Gaussian matrix."""

    def change(law: Attention, rng: Rng) -> Attention:
        factor = torch.linalg.matrix_exp(torch.from_numpy(spread * rng.standard_normal((DIM, DIM))))
        return resplit(law, law.query @ factor)

    return change


def gaussian(law: Attention, rng: Rng) -> Attention:
    """A Gaussian query, as at a usual initialisation."""
    return resplit(law, torch.from_numpy(rng.standard_normal((DIM, DIM)) / DIM**0.5))


def same(law: Attention, rng: Rng) -> Attention:
    return law


def encodings(table: Tensor) -> list[tuple[str, Change, dict[str, Any]]]:
    """Name, split of W, and options of the law."""
    return [
        ("none", same, {}),
        ("absolute, once", same, {"positions": Absolute(table, when="input")}),
        ("absolute, every layer", same, {"positions": Absolute(table)}),
        ("absolute, on q and k", same, {"positions": Absolute(table, on="qk")}),
        ("rotary, orthogonal query", same, {"positions": Rotary()}),
        ("rotary, Gaussian query", gaussian, {"positions": Rotary()}),
        ("causal", same, {"mask": "causal"}),
        ("causal, rotary", gaussian, {"positions": Rotary(), "mask": "causal"}),
    ]


def positional_study(
    systems: int = 24,
    horizon: float = 100.0,
    seed: int = 0,
    phase: int = 6,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> PositionalStudy:
    """Follow ``systems`` random collapsing systems under every encoding (or those named), and ``phase`` of them over the phase diagram;
    ``progress(done, all)`` is told of each encoding and each angle."""
    for name, amount, least in (("systems", systems, 1), ("horizon", horizon, 10.0), ("phase", phase, 0)):
        if not amount >= least:
            raise InputError(f"{name} must be at least {least}, got {amount}")
    table = Absolute.sinusoidal(TOKENS, DIM).table
    chosen = [encoding for encoding in encodings(table) if names is None or encoding[0] in names]
    angles = ANGLES if phase else ()
    rows, cells = [], []
    for name, change, options in chosen:
        progress(len(rows), len(chosen) + len(angles))
        rows.append(_encoding(name, change, options, table, systems, horizon, seed))
    for place, angle in enumerate(angles):
        progress(len(rows) + place, len(chosen) + len(angles))
        cells += _cells(angle, phase, horizon, seed)
    return PositionalStudy(systems, horizon, seed, tuple(rows), tuple(cells))


def _system(index: int, seed: int, change: Change, options: dict[str, Any]) -> tuple[Attention, Tensor]:
    """Law and tokens of one system: the same for every encoding."""
    rng = Rng.from_seed([seed, index])
    metric, interaction = rng.definite(DIM, -1.0), rng.definite(DIM) + rng.skew(DIM)
    law = rng.law(interaction, torch.linalg.solve(metric, interaction))
    points = torch.from_numpy(rng.standard_normal((TOKENS, DIM)))
    law = change(replace(law, query=(turn := rng.orthogonal(DIM)), key=turn @ interaction), rng)
    return replace(law, **options), points


def _follow(drawn: Sequence[tuple[Attention, Tensor]], horizon: float, angle: float = 1.0) -> Trajectory:
    tokens = Tokens(torch.stack([points for _, points in drawn]), positions=angle * torch.arange(TOKENS))
    law = stack_laws([law for law, _ in drawn])
    return flow(
        law,
        tokens,
        until=horizon,
        save=geometric_times(horizon),
        rtol=1e-6,
        atol=1e-9,
        stop=(),
        events=(GROWN,),
        max_evaluations=EVALUATIONS * len(drawn),
    )


def _ends(run: Trajectory, limit: Tensor, returns: bool = False) -> list[tuple[str, float, float]]:
    """For each member how it ended, the exponent of t and the last distance to the limit. Members that went far away and of which it is
    proved that they come back (``returns``: T8, a causal mask and a stable value) are undecided, since they are followed no further."""
    ended = []
    for index, outcome in enumerate(run.outcomes):
        gaps = (run.points[:, index] - limit).norm(dim=-1).amax(-1)
        far, spent = outcome.name == "event" or float(gaps[-1]) >= FAR, outcome.name == "budget"
        exponent = fit_power(run.times[1:], gaps[1:])
        kind = (
            "growth"
            if far and not returns
            else "undecided"
            if far or spent
            else _kind(exponent, float(gaps[-1] / gaps[0]))
        )
        ended.append((kind, exponent, float(gaps[-1])))
    return ended


def _kind(exponent: float, left: float) -> str:
    if exponent <= -0.25 or left < 1e-4:
        return "collapse"
    if exponent >= 0.1:
        return "growth"
    return "plateau" if abs(exponent) < 0.1 else "undecided"


def _counts(kinds: Sequence[str]) -> dict[str, int]:
    return {kind: sum(found == kind for found in kinds) for kind in KINDS}


def _encoding(
    name: str, change: Change, options: dict[str, Any], table: Tensor, systems: int, horizon: float, seed: int
) -> Encoding:
    run = _follow([_system(index, seed, change, options) for index in range(systems)], horizon)
    limit = -table if name == "absolute, every layer" else torch.zeros_like(table)
    kinds, exponents, distances = zip(*_ends(run, limit, options.get("mask") == "causal"), strict=True)
    return Encoding(name, _counts(kinds), float(np.median(exponents)), float(np.median(distances)))


def _cells(angle: float, systems: int, horizon: float, seed: int) -> list[Cell]:
    """All spreads at one angle, as one ensemble."""
    drawn = [
        _system(index, seed, split(spread), {"positions": Rotary(theta=100.0)})
        for spread in SPREADS
        for index in range(systems)
    ]
    kinds = [
        kind for kind, _, _ in _ends(_follow(drawn, horizon, angle), torch.zeros(TOKENS, DIM, dtype=torch.float64))
    ]
    parts = [kinds[place * systems : (place + 1) * systems] for place in range(len(SPREADS))]
    return [Cell(angle, spread, _counts(part)) for spread, part in zip(SPREADS, parts, strict=True)]


def draw(study: PositionalStudy, path: Path | None = None) -> Any:
    """The picture of a study as a figure, or the path it was written to."""
    from attractor.plotting import Grid, StaticFigure, static_suffix, style, write_chart

    if path is not None:
        static_suffix(path)
    hues = (style.PALETTE[0], style.PALETTE[4], style.PALETTE[1], style.FAINT)
    colours: dict[str, Any] = dict(zip(KINDS, hues, strict=True))
    title = f"{study.systems} systems that collapse without positions, at t = {study.horizon:g}"
    with style.use_style():
        grid = Grid.of(2 if study.phase else 1, 2.0, left=1.42, gap=0.85)
        tall = 1.9
        page = StaticFigure(title, _caption(study), 0.2 + grid.rows * (tall + 0.62))
        bars = page.panel(grid.left, 0.4, grid.wide, tall - 0.15)
        _bars(bars, study, colours)
        handles, names = bars.get_legend_handles_labels()
        page.legend(handles, names, 0.02, ncols=4, handlelength=1.0, columnspacing=1.0)
        if study.phase:
            row, left = grid.place(1)
            narrow = grid.across == 1  # the second panel has short labels and may begin further left
            box = (0.6, page.width - 0.75) if narrow else (left, grid.wide)
            _phase(page.panel(box[0], 0.4 + row * (tall + 0.6), box[1], tall - 0.15), study, colours)
        return write_chart(page.figure, path)


def _caption(study: PositionalStudy) -> str:
    phase = (
        " Each cell of the diagram is a pile of the same colours: full attention whose interaction W is the same and is split in two "
        "ways between query and key."
        if study.phase
        else ""
    )
    return f"Shares of the outcomes under every encoding.{phase}"


def _bars(axes: Axes, study: PositionalStudy, colours: dict[str, Any]) -> None:
    names, start = [row.name for row in study.encodings], np.zeros(len(study.encodings))
    for kind in KINDS:
        share = np.array([row.counts[kind] / study.systems for row in study.encodings])
        axes.barh(names, share, left=start, color=colours[kind], label=kind, height=0.7)
        start = start + share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of systems")
    axes.tick_params(axis="y", length=0)


def _phase(axes: Axes, study: PositionalStudy, colours: dict[str, Any]) -> None:
    """Each cell a small pile of shares."""
    angles = sorted({cell.angle for cell in study.phase})
    spreads = sorted({cell.spread for cell in study.phase})
    for cell in study.phase:
        column, row, start = angles.index(cell.angle), spreads.index(cell.spread), 0.0
        for kind in KINDS:
            share = cell.counts[kind] / max(1, sum(cell.counts.values()))
            axes.barh(row, 0.92 * share, left=column - 0.46 + 0.92 * start, color=colours[kind], height=0.92)
            start += share
    axes.set_xticks(range(len(angles)), [f"{angle:.2g}" for angle in angles])
    axes.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
    axes.set_xlim(-0.5, len(angles) - 0.5)
    axes.set_ylim(-0.5, len(spreads) - 0.5)
    axes.set_xlabel("rotary: angle per position of the fastest pair")
    axes.set_ylabel("query away from orthogonal")
    axes.set_title("full attention, the same W split in two", loc="left")
