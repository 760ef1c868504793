r"""What positions do to a collapse: random systems that T1 sends to zero, followed under every way of telling tokens where they stand.

Absolute positions added once leave the law alone; added at every layer they move the limit to :math:`-p_l`; on queries and keys only they
destroy the common potential. Rotary positions have no common metric at all, and what they do depends on how W is split into
query and key; under a causal mask the value decides and they change nothing (T8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.attention import Absolute, Attention, Rotary
from attractor.errors import InputError
from attractor.flow import Trajectory, flow
from attractor.flow.stops import Event
from attractor.states import Tokens
from attractor.theory.ensembles import stacked
from attractor.theory.sampling import Draw, definite, law_of, orthogonal, skew
from attractor.theory.trends import decades, power

TOKENS, DIM = 6, 4
FAR = 12.0  # several times the start: what gets there grows, and an accurate step is tiny beyond
EVALUATIONS = 5000  # for each system; one that needs more is undecided
KINDS: tuple[str, ...] = ("collapse", "plateau", "growth", "undecided")
ANGLES = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6, float(np.pi))
SPREADS = (0.0, 0.25, 0.5, 1.0)
Change = Callable[[Attention, Draw], Attention]


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

    def change(law: Attention, draw: Draw) -> Attention:
        factor = torch.linalg.matrix_exp(torch.from_numpy(spread * draw.standard_normal((DIM, DIM))))
        return resplit(law, law.query @ factor)

    return change


def gaussian(law: Attention, draw: Draw) -> Attention:
    """A Gaussian query, as at a usual initialisation."""
    return resplit(law, torch.from_numpy(draw.standard_normal((DIM, DIM)) / DIM**0.5))


def same(law: Attention, draw: Draw) -> Attention:
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
    draw = np.random.default_rng([seed, index])
    metric, interaction = definite(draw, DIM, -1.0), definite(draw, DIM) + skew(draw, DIM)
    law = law_of(draw, interaction, torch.linalg.solve(metric, interaction))
    points = torch.from_numpy(draw.standard_normal((TOKENS, DIM)))
    law = change(replace(law, query=(turn := orthogonal(draw, DIM)), key=turn @ interaction), draw)
    return replace(law, **options), points


def _follow(drawn: Sequence[tuple[Attention, Tensor]], horizon: float, angle: float = 1.0) -> Trajectory:
    tokens = Tokens(torch.stack([points for _, points in drawn]), positions=angle * torch.arange(TOKENS))
    law = stacked([law for law, _ in drawn])
    return flow(
        law,
        tokens,
        until=horizon,
        save=decades(horizon),
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
        exponent = power(run.times[1:], gaps[1:])
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
