"""Positional encodings and collapse: random systems that collapse without positions, under every encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Absolute, Attention, Rotary
from attractor.papers.figure import SEED, Data, Figure, Parameter, Settings, Table, Update, Verdict
from attractor.registry import check_name
from attractor.solvers import Event, Trajectory, flow
from attractor.states import Tokens
from attractor.theory import Rng, fit_power, geometric_times, stack_laws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS, DIM = 6, 4
FAR = 12.0  # several times the start; accurate steps are tiny beyond it
EVALUATIONS = 5000  # for each system; one that needs more is undecided
KINDS: tuple[str, ...] = ("collapse", "plateau", "growth", "undecided")
ANGLES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, float(np.pi))
SPREADS = (0.0, 0.25, 0.5, 1.0)
Change = Callable[[Attention, Rng], Attention]


FAR_AWAY = Event(lambda tokens, time: FAR - float(tokens.points.norm(dim=-1).max()), "far away")


def replace_query(law: Attention, query: Tensor) -> Attention:
    """Return a law with another query and the same interaction Q'K."""
    return replace(law, query=query, key=torch.linalg.solve(query.mT, law.interaction))


def perturb_query(spread: float) -> Change:
    """Return a change that multiplies the query by the exponential of a Gaussian matrix."""

    def change(law: Attention, rng: Rng) -> Attention:
        factor = torch.linalg.matrix_exp(torch.from_numpy(spread * rng.standard_normal((DIM, DIM))))
        return replace_query(law, law.query @ factor)

    return change


def use_gaussian_query(law: Attention, rng: Rng) -> Attention:
    """Return the law with a Gaussian query, as at a usual initialisation."""
    return replace_query(law, torch.from_numpy(rng.standard_normal((DIM, DIM)) / DIM**0.5))


def keep(law: Attention, rng: Rng) -> Attention:
    """Return the law itself."""
    return law


def encodings(table: Tensor) -> list[tuple[str, Change, dict[str, Any]]]:
    """Return for every encoding its name, the change of the query, and the options of the law."""
    return [
        ("none", keep, {}),
        ("absolute, once", keep, {"positions": Absolute(table, when="input")}),
        ("absolute, every layer", keep, {"positions": Absolute(table)}),
        ("absolute, on q and k", keep, {"positions": Absolute(table, on="qk")}),
        ("rotary, orthogonal query", keep, {"positions": Rotary()}),
        ("rotary, Gaussian query", use_gaussian_query, {"positions": Rotary()}),
        ("causal", keep, {"mask": "causal"}),
        ("causal, rotary", use_gaussian_query, {"positions": Rotary(), "mask": "causal"}),
    ]


def compute(settings: Settings, progress: Update) -> Data:
    """Integrate random collapsing systems under every encoding, and over the phase diagram of rotary positions."""
    systems, horizon, seed, phase = (settings[name] for name in ("systems", "until", "seed", "phase"))
    table = Absolute.sinusoidal(TOKENS, DIM).table
    chosen = encodings(table)
    for name in settings["encodings"]:
        check_name(name, [row[0] for row in chosen], "encoding")
    chosen = [row for row in chosen if not settings["encodings"] or row[0] in settings["encodings"]]
    angles = ANGLES if phase else ()
    rows, cells = [], []
    for name, change, options in chosen:
        progress(len(rows), len(chosen) + len(angles))
        rows.append(_encoding(name, change, options, table, systems, horizon, seed))
    for index, angle in enumerate(angles):
        progress(len(rows) + index, len(chosen) + len(angles))
        cells += _cells(angle, phase, horizon, seed)
    return {"systems": systems, "horizon": horizon, "seed": seed, "encodings": rows, "phase": cells}


def _system(index: int, seed: int, change: Change, options: dict[str, Any]) -> tuple[Attention, Tensor]:
    """Draw law and tokens of one system, the same for every encoding."""
    rng = Rng.from_seed([seed, index])
    metric, interaction = rng.definite(DIM, -1.0), rng.definite(DIM) + rng.skew(DIM)
    law = rng.law(interaction, torch.linalg.solve(metric, interaction))
    points = torch.from_numpy(rng.standard_normal((TOKENS, DIM)))
    law = change(replace(law, query=(turn := rng.orthogonal(DIM)), key=turn @ interaction), rng)
    return replace(law, **options), points


def _integrate(drawn: Sequence[tuple[Attention, Tensor]], horizon: float, angle: float = 1.0) -> Trajectory:
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
        events=(FAR_AWAY,),
        max_evaluations=EVALUATIONS * len(drawn),
    )


def _classify(run: Trajectory, limit: Tensor, returns: bool = False) -> list[tuple[str, float, float]]:
    """Return for each member its kind, the exponent of t and the last distance to the limit.

    Integration ends far away. Members there that provably return (``returns``: T8, a causal mask and a stable value) are undecided.
    """
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
) -> Data:
    """Return how the systems end under one encoding, and medians of the exponent of t and of the distance to the limit."""
    run = _integrate([_system(index, seed, change, options) for index in range(systems)], horizon)
    limit = -table if name == "absolute, every layer" else torch.zeros_like(table)
    kinds, exponents, distances = zip(*_classify(run, limit, options.get("mask") == "causal"), strict=True)
    medians = {"exponent": float(np.median(exponents)), "distance": float(np.median(distances))}
    return {"name": name, "counts": _counts(kinds), **medians}


def _cells(angle: float, systems: int, horizon: float, seed: int) -> list[Data]:
    """Return one column of the phase diagram: all spreads of the query at one angle, integrated as one ensemble."""
    drawn = [
        _system(index, seed, perturb_query(spread), {"positions": Rotary(theta=100.0)})
        for spread in SPREADS
        for index in range(systems)
    ]
    kinds = [
        kind
        for kind, _, _ in _classify(_integrate(drawn, horizon, angle), torch.zeros(TOKENS, DIM, dtype=torch.float64))
    ]
    parts = [kinds[place * systems : (place + 1) * systems] for place in range(len(SPREADS))]
    return [
        {"angle": angle, "spread": spread, "counts": _counts(part)} for spread, part in zip(SPREADS, parts, strict=True)
    ]


def draw(data: Data, path: Path) -> tuple[Path, ...]:
    """Draw the shares of outcomes under every encoding, and the phase diagram."""
    from attractor.plotting import Grid, StaticFigure, static_suffix, style, write_chart

    static_suffix(path)
    hues = (style.PALETTE[0], style.PALETTE[4], style.PALETTE[1], style.FAINT)
    colours: dict[str, Any] = dict(zip(KINDS, hues, strict=True))
    with style.use_style():
        grid = Grid.of(2 if data["phase"] else 1, 2.0, left=1.42, gap=0.85)
        height = 1.9
        page = StaticFigure(_title(data), _caption(data), 0.2 + grid.rows * (height + 0.62))
        bars = page.panel(grid.left, 0.4, grid.wide, height - 0.15)
        _draw_bars(bars, data, colours)
        handles, names = bars.get_legend_handles_labels()
        page.legend(handles, names, 0.02, ncols=4, handlelength=1.0, columnspacing=1.0)
        if data["phase"]:
            row, left = grid.place(1)
            narrow = grid.across == 1  # the labels of the second panel are short
            box = (0.6, page.width - 0.75) if narrow else (left, grid.wide)
            _draw_phase(page.panel(box[0], 0.4 + row * (height + 0.6), box[1], height - 0.15), data, colours)
        return (write_chart(page.figure, path),)


def _title(data: Data) -> str:
    return f"{data['systems']} systems that collapse without positions, at t = {data['horizon']:g}"


def _caption(data: Data) -> str:
    phase = (
        " Each cell of the diagram shows such shares for full attention; cells differ in how the same interaction W is split between "
        "query and key."
        if data["phase"]
        else ""
    )
    return f"Shares of the outcomes under every encoding.{phase}"


def _draw_bars(axes: Axes, data: Data, colours: dict[str, Any]) -> None:
    names, start = [row["name"] for row in data["encodings"]], np.zeros(len(data["encodings"]))
    for kind in KINDS:
        share = np.array([row["counts"][kind] / data["systems"] for row in data["encodings"]])
        axes.barh(names, share, left=start, color=colours[kind], label=kind, height=0.7)
        start = start + share
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of systems")
    axes.tick_params(axis="y", length=0)


def _draw_phase(axes: Axes, data: Data, colours: dict[str, Any]) -> None:
    """Draw each cell as a stacked bar."""
    angles = sorted({cell["angle"] for cell in data["phase"]})
    spreads = sorted({cell["spread"] for cell in data["phase"]})
    for cell in data["phase"]:
        column, row, start = angles.index(cell["angle"]), spreads.index(cell["spread"]), 0.0
        for kind in KINDS:
            share = cell["counts"][kind] / max(1, sum(cell["counts"].values()))
            axes.barh(row, 0.92 * share, left=column - 0.46 + 0.92 * start, color=colours[kind], height=0.92)
            start += share
    axes.set_xticks(range(len(angles)), [f"{angle:.2g}" for angle in angles])
    axes.set_yticks(range(len(spreads)), [f"{spread:g}" for spread in spreads])
    axes.set_xlim(-0.5, len(angles) - 0.5)
    axes.set_ylim(-0.5, len(spreads) - 0.5)
    axes.set_xlabel("rotary: angle per position of the fastest pair")
    axes.set_ylabel("query away from orthogonal")
    axes.set_title("full attention, the same W split in two", loc="left")


def summarise(data: Data) -> tuple[Table, ...]:
    """Return how the systems ended under each encoding."""
    rows = [
        (row["name"], *map(str, row["counts"].values()), f"{row['exponent']:.3g}", f"{row['distance']:.3g}")
        for row in data["encodings"]
    ]
    return (Table(_title(data), ("positions", *KINDS, "exponent of t", "distance to the limit"), tuple(rows)),)


def judge(data: Data) -> Verdict:
    """Compare the outcomes with the paper: rotary positions prevent collapse, absolute positions shift the limit."""
    rows = {row["name"]: row["counts"] for row in data["encodings"]}
    rotary = [counts for name, counts in rows.items() if name.startswith("rotary")]
    if "none" not in rows or not rotary:
        return Verdict("no published result", "Without the encodings none and rotary there is nothing to compare.")
    systems = data["systems"]
    escaped = sum(systems - counts["collapse"] for counts in rotary)
    plateau, growth = (sum(counts[kind] for counts in rotary) for kind in ("plateau", "growth"))
    total = systems * len(rotary)
    reason = (
        f"Without positions {rows['none']['collapse']} of {systems} systems collapse; under rotary positions {escaped} of {total} "
        f"do not, {plateau} of them stay on a plateau and {growth} grow."
    )
    if rows["none"]["collapse"] < systems or not escaped:
        return Verdict("differs", reason)
    causal = rows.get("causal, rotary")
    if causal is not None:
        reason += (
            f" Correction: under a causal mask {causal['collapse']} of {systems} collapse with rotary positions all the same "
            "(regimes.T8), and a plateau is not the divergence that the paper speaks of."
        )
    return Verdict("reproduced with a correction", reason)


FIGURE = Figure(
    key="positions",
    title="Positional encodings and collapse",
    question="Do systems that collapse without positions (theorem regimes.T1) collapse under absolute and rotary positions?",
    source="pham2025dynamical",
    parameters=(
        SEED,
        Parameter("systems", 24, "random systems under each encoding", minimum=1),
        Parameter("phase", 12, "systems in each cell of the phase diagram; 0 for none", minimum=0),
        Parameter(
            "until", 100.0, "final time; a plateau cannot be distinguished from a collapse before 10", minimum=10.0
        ),
        Parameter("encodings", (), "names of encodings; all if empty"),
    ),
    cost=120.0,
    compute=compute,
    draw=draw,
    summarise=summarise,
    verdict=judge,
    small={"systems": 3, "phase": 1, "until": 20.0},
)
