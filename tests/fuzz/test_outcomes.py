"""Outcomes of random systems with the default stops against long runs without stops.

A case is drawn from its seed: law, kernel, mask, space, start, rate, time of the start, tolerances, merging, ensemble and dtype.
No early end may contradict the run without stops: tokens at consensus are together at the end, collapsed ones at zero, steady ones
where they were; and norms are called infinite only where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attractor as at

EVALUATIONS = 60_000  # of the run without stops, after which a case is left undecided
BOUNDED = ("softmax", "l2", "sigmoid", "capped")
KERNELS = (*BOUNDED, "exponential", "linear")


@dataclass(frozen=True, eq=False)
class Cubic(at.Law):
    """A law of one's own: x' = A x + c |x|^2 x, every token alone."""

    matrix: Tensor
    bend: float

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        points = tokens.points
        return points @ self.matrix.to(points).T + self.bend * points.square().sum(-1, keepdim=True) * points


@dataclass(frozen=True, eq=False)
class Case:
    """A random system and how it is run."""

    law: at.Law
    tokens: at.Tokens
    space: at.Space
    until: float
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def rtol(self) -> float:
        return self.options.get("rtol", 1e-5 if self.tokens.points.dtype == torch.float32 else 1e-8)


def draw_value(rng: np.random.Generator, d: int) -> np.ndarray:
    """A value matrix: c I, diagonal with both signs, symmetric, or without structure."""
    kind = rng.integers(5)
    if kind == 0:
        return rng.choice([1.0, -1.0]) * np.eye(d)
    if kind == 1:
        return np.diag(rng.choice([-10.0, -2.0, -1.0, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0], size=d))
    matrix = rng.normal(size=(d, d))
    if kind == 2:
        return (matrix + matrix.T) / 2
    if kind == 3:
        rotation = np.linalg.qr(matrix)[0]
        return rotation @ np.diag(rng.choice([-10.0, -1.0, -0.5, 0.1, 1.0], size=d)) @ rotation.T
    return matrix


def draw_law(rng: np.random.Generator, d: int, curved: bool, rate: float) -> at.Law:
    value = rate * draw_value(rng, d)
    kind = rng.integers(6)
    if kind == 0 and not curved:
        return at.Affine(value, rate * rng.normal(size=d) if rng.random() < 0.3 else None)
    if kind == 1:
        return Cubic(torch.from_numpy(value), float(rate * rng.choice([-1.0, 0.0, 1.0])))
    beta = rng.choice([0.1, 1.0, 1.0, 3.0])
    query = np.sqrt(beta) * (np.eye(d) if rng.random() < 0.5 else rng.normal(size=(d, d)) / np.sqrt(d))
    key = query if rng.random() < 0.5 else np.sqrt(beta) * rng.normal(size=(d, d)) / np.sqrt(d)
    mask = rng.choice([None, None, "causal"])
    law = at.Attention(query, key, value, kernel=str(rng.choice(KERNELS)), mask=mask)
    if kind == 2 and not curved:
        return law + at.Affine(-rate * rng.uniform(0.0, 2.0) * np.eye(d))
    return law


def draw_points(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Random tokens, tokens close together, or tokens close to axes."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.normal(size=(n, d))
    small = 10.0 ** -rng.uniform(2, 15)
    if kind == 1:
        return rng.normal(size=(1, d)) + small * rng.normal(size=(n, d))
    axes = np.eye(d)[rng.integers(d, size=n if kind == 2 else 1)] * np.ones((n, 1))
    return axes * rng.choice([1.0, -1.0] if kind == 2 else [1.0], size=(n, 1)) + small * rng.normal(size=(n, d))


def draw_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    rate = 10.0 ** rng.choice([-13, -3, 0, 0, 0, 0, 3, 13]) if rng.random() < 0.4 else 1.0
    curved = bool(d > 1 and rng.random() < 0.6)
    space: at.Space = at.Euclidean()
    if curved:
        space = at.Ellipsoid(np.diag(rng.uniform(0.5, 2.0, size=d))) if rng.random() < 0.2 else at.Sphere()
    law = draw_law(rng, d, curved, rate)
    members = 3 if rng.random() < 0.15 else 0
    points = np.stack([draw_points(rng, n, d) for _ in range(max(members, 1))])
    if not curved and rng.random() < 0.2:
        points *= 10.0 ** rng.uniform(-3, 2)
    points = points if members else points[0]
    single = bool(rng.random() < 0.1)
    until = float(rng.choice([0.1, 3.0, 20.0, 20.0, 60.0, 200.0])) / rate
    options: dict[str, Any] = {"start": float(rng.choice([0.0, 0.0, 0.0, 1e5])) if rate < 10.0 else 0.0}
    if not single and rng.random() < 0.3:
        options["rtol"] = float(10.0 ** -rng.uniform(4, 12))
    if rng.random() < 0.2:
        options["atol"] = float(10.0 ** -rng.uniform(2, 14))
    if curved and isinstance(law, at.Attention) and law.mask is None and rng.random() < 0.2:
        options["merge"] = 1e-4
    dtype = torch.float32 if single else torch.float64
    return Case(law, at.Tokens(points, dtype=dtype), space, options["start"] + until, options)


def spread(points: Tensor) -> float:
    """Largest distance of two tokens, relative to the largest norm."""
    distances = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")
    return float(distances.max()) / max(float(points.norm(dim=-1).max()), 1e-300)


def can_blow_up(law: at.Law) -> bool:
    """Whether velocities may grow faster than the tokens."""
    if isinstance(law, at.Attention):
        return law.kernel.name not in BOUNDED
    return law.bend > 0 if isinstance(law, Cubic) else any(map(can_blow_up, getattr(law, "laws", ())))


def differs(one: at.Outcome, other: at.Outcome, case: Case) -> bool:
    """Whether two times of blow-up differ by more than 1%."""
    return abs(one.time - other.time) > 1e-2 * max(other.time - case.options["start"], 1e-9 * abs(other.time))


def run_without_stops(case: Case) -> at.Trajectory:
    """The run without stops at its own tolerance: beside an unstable rest the motion depends on the tolerance."""
    options = {**case.options, "space": case.space, "until": case.until, "stop": (), "max_evaluations": EVALUATIONS}
    return at.flow(case.law, case.tokens, **options)


def is_determined(case: Case, true: at.Outcome) -> bool:
    """Whether the time of a blow-up follows from the start."""
    return not any(one.name == "blow_up" and differs(one, true, case) for one in run_without_stops(case).outcomes)


def find_error(
    case: Case, member: int, found: at.Outcome, final: Tensor, start: Tensor, true: at.Outcome, end: Tensor
) -> str:
    """What is wrong with an outcome and a last state, given those of the run without stops; empty if nothing is."""
    final, start, end = final.double(), start.double(), end.double()
    size, norm = float(start.norm(dim=-1).max()), float(end.norm(dim=-1).max())
    if found.name == "consensus":
        tolerance = max(1e-9, 20 * case.rtol) + case.options.get("merge", 0.1 * case.rtol)
        return "" if spread(end) <= 2 * tolerance else f"tokens are {spread(end):.3g} apart at the end"
    if found.name == "collapsed":
        limit = max(1e-7, 10 * case.rtol) * size
        return "" if norm <= 2 * limit else f"the largest norm is {norm:.3g} at the end, {size:.3g} at the start"
    if found.name == "steady":
        moved = float((final - end).norm(dim=-1).max())
        allowed = 1e3 * (case.rtol * max(norm, size) + case.options.get("atol", 1e-10))
        if moved > allowed:
            other = run_without_stops(case).final.points.reshape(-1, *final.shape)[member].double()
            moved = min(moved, float((final - other).norm(dim=-1).max()))
        return "" if moved <= allowed else f"a token moves by {moved:.3g} until the end"
    if found.name == "blow_up":
        if not can_blow_up(case.law):
            return "a law of linear growth has no blow-up"
        if true.name != "blow_up" or (differs(found, true, case) and is_determined(case, true)):
            return f"without stops: {true}"
        return ""
    if found.name == "diverged" and case.tokens.points.dtype == torch.float32 and norm > 1e14:
        return ""
    if found.name in ("diverged", "reached") and true.name != found.name:
        # close to the end either may come first
        return (
            ""
            if abs(found.time - true.time) <= 0.02 * (case.until - case.options["start"])
            else f"without stops: {true}"
        )
    return ""


def check(case: Case) -> tuple[str, str]:
    """The name of the outcome, and what is wrong with it."""
    run = at.flow(
        case.law, case.tokens, space=case.space, until=case.until, **case.options, max_evaluations=EVALUATIONS
    )
    exact = at.Tokens(case.tokens.points.double())
    long = at.flow(
        case.law,
        exact,
        space=case.space,
        until=case.until,
        start=case.options["start"],
        stop=(),
        merge=False,
        save=[case.until],
        rtol=1e-11,
        atol=1e-15 * max(float(exact.points.abs().max()), 1e-6),
        max_evaluations=EVALUATIONS,
    )
    shape = (-1, *exact.points.shape[-2:])
    start = run.points[0] if len(run.points) else case.tokens.points
    states = [points.reshape(shape) for points in (run.final.points, start, long.final.points)]
    errors, names = [], []
    members = zip(run.outcomes, long.outcomes, *states, strict=True)
    for member, (found, true, final, first, end) in enumerate(members):
        names.append(found.name)
        if "budget" not in (found.name, true.name) and true.name != "stalled":
            errors.append(find_error(case, member, found, final, first, true, end))
    return "+".join(names), "; ".join(filter(None, errors))


def test_outcomes_hold_until_the_end(fuzz: Any) -> None:
    wrong, counts = {}, dict.fromkeys(("consensus", "collapsed", "steady", "diverged", "blow_up", "reached"), 0)
    seeds = fuzz.seeds(60, 10_000)
    for seed in seeds:
        case = draw_case(seed)
        names, error = check(case)
        for name in names.split("+"):
            counts[name] = counts.get(name, 0) + 1
        if error:
            wrong[seed] = f"{names}: {error}"
    assert not wrong, f"{len(wrong)} of {len(seeds)} systems have a wrong outcome: {wrong}"
    if len(seeds) >= 100:
        assert all(counts.values()), f"some outcome never occurs: {counts}"
