"""Limits of Gaussian flows: rank, isotropy, phase portraits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from attractor.errors import InputError
from attractor.laws import Attention, Closure, Law, closure_field, has_kernel
from attractor.meanfield.blowup import matrices
from attractor.solvers import Rule, Steady, Trajectory, View, flow
from attractor.states import Gaussian


def is_isotropic(covariance: ArrayLike, form: ArrayLike, tolerance: float = 1e-6, cut: float = 1e-7) -> bool:
    """Whether a bilinear form vanishes on the image of a covariance; eigenvalues below ``cut`` of the largest are not in it."""
    values, vectors = np.linalg.eigh(np.asarray(covariance, dtype=np.float64))
    U = vectors[:, values > cut * max(float(values[-1]), 1e-300)]
    form = np.asarray(form, dtype=np.float64)
    return bool(np.abs(U.T @ form @ U).max(initial=0.0) <= tolerance * max(float(np.abs(form).max()), 1e-300))


def stationary_residual(law: Law, state: Gaussian) -> float:
    r""":math:`|B\Sigma + \Sigma B^\top|/(2|B||\Sigma|)`, between 0 (the covariance rests) and 1; the mean is not looked at."""
    Closure(law)
    slope, _ = closure_field(law.member(torch.tensor([0])))(state.mean.numpy(), state.factor.numpy())
    Sigma = state.covariance.numpy()
    size = 2.0 * float(np.linalg.norm(slope)) * float(np.linalg.norm(Sigma))
    return float(np.linalg.norm(slope @ Sigma + Sigma @ slope.T)) / size if size > 0 else 0.0


def rank_bound(law: Attention, tolerance: float = 1e-12) -> int | None:
    """The largest rank of a limit under one head of softmax attention, or None where none is known."""
    V, A = matrices(law)
    if not has_kernel(law, "softmax") or len(V) > 1:
        return None
    if np.abs(V[0] - np.eye(len(V[0]))).max() <= tolerance:
        values = np.linalg.eigvalsh((A[0] + A[0].T) / 2.0)
        size = tolerance * max(float(np.abs(values).max()), 1e-300)
        plus, minus = int(np.sum(values > size)), int(np.sum(values < -size))
        return len(values) - plus - minus + min(plus, minus)
    invertible = np.linalg.cond(A[0]) < 1.0 / tolerance
    return len(A[0]) // 2 if invertible and len(A[0]) <= 3 else None  # false from d = 4 on


CUT = 1e-7  # of the largest eigenvalue
SMOOTH = 0.03  # distance of covariances of trace one between two points of a path
FALL = -0.3  # decades of an eigenvalue in a decade of time


def limit_rank(early: ArrayLike, late: ArrayLike) -> int:
    """How many eigenvalues stay, given covariances at times T and 10 T, or their eigenvalues."""
    before, after = _eigenvalues(early), _eigenvalues(late)
    if after[0] <= 0:
        return 0
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.log10(after / before)
    return int(np.sum((after > CUT * after[0]) & (fall > FALL)))


def _eigenvalues(covariance: ArrayLike) -> np.ndarray:
    """Return eigenvalues in descending order; an array is taken as eigenvalues already."""
    given = np.asarray(covariance, dtype=np.float64)
    values = np.linalg.eigvalsh(given) if given.ndim == 2 else given
    return np.sort(np.maximum(values, 0.0))[::-1]


UNITS = 1e6  # T in units of the inverse rate of the start
GROWN = 1e4  # standard deviations that grew so much are on their way to infinity
EVALUATIONS = 40_000
KINDS = {
    "collapse": "the covariance goes to zero",
    "low_rank": "the covariance has a limit of lower rank than its start",
    "full_rank": "the covariance has a limit of the rank of its start",
    "blow_up": "the covariance goes to infinity in finite time",
    "diverged": "the covariance grows without bound, as far as it was followed",
    "undecided": "the budget of evaluations was spent before it could be told",
}


@dataclass(frozen=True)
class Growth(Rule):
    """Standard deviations are ``times`` what they were: the run is not going to a limit near by."""

    times: float = GROWN
    name: ClassVar[str] = "grown"
    urgent: ClassVar[bool] = True

    def measure(self, view: View) -> np.ndarray:
        return self.times * np.maximum(view.size, 1e-300) / np.maximum(view.norms(), 1e-300)

    def message(self, view: View, index: int) -> str:
        return f"standard deviations grew {self.times:g}-fold"


@dataclass(frozen=True)
class Limit:
    """``kind`` is a key of KINDS; ``covariance`` that of time 10 T (or where the run ended), ``rank`` the estimate of what stays."""

    kind: str
    rank: int | None
    covariance: np.ndarray
    eigenvalues: np.ndarray
    time: float
    direction: tuple[float, ...] | None
    message: str
    evaluations: int
    path: np.ndarray | None = None

    @property
    def line(self) -> np.ndarray | None:
        """The unit vector of a limit of rank one."""
        if self.rank != 1:
            return None
        vector = np.linalg.eigh(self.covariance)[1][:, -1]
        return vector * np.sign(vector[np.abs(vector).argmax()])


def find_limit(
    law: Law,
    covariance: np.ndarray | Gaussian,
    *,
    horizon: float | None = None,
    rtol: float = 1e-8,
    evaluations: int = EVALUATIONS,
    path: bool = False,
) -> Limit:
    """Follow a centred Gaussian to a time T and to 10 T, and classify what becomes of its covariance.

    Parameters
    ----------
    law : a law under which Gaussians stay Gaussian.
    covariance : (d, d), or a Gaussian whose covariance is taken.
    horizon : T; by default a million units of the inverse initial rate.
    rtol, evaluations : tolerance and budget of the run.
    path : whether covariances on the way to T are kept.

    Returns
    -------
    Limit
        Growing runs end once standard deviations are 10,000 times those of the start; a blow-up is followed to its end.
    """
    given = covariance.covariance.numpy() if isinstance(covariance, Gaussian) else covariance
    start = Gaussian(np.zeros(len(given)), given)  # type: ignore[arg-type]
    if horizon is None:
        horizon = _horizon(law, start)
    save = _times(horizon) if path else [horizon, 10.0 * horizon]
    stop = [Steady(), Growth()]
    run = flow(law, start, save=save, rtol=rtol, stop=stop, max_evaluations=evaluations)
    way, spent, end = None, run.stats.evaluations, run.outcome
    if path and end.name != "grown":
        again = partial(flow, law, start, rtol=rtol, stop=stop, max_evaluations=evaluations)
        way = _smooth_way(lambda times: again(save=times), start, 0.0, run)
    early, late = (
        _spectrum(run.points[-2:-1]) if len(run.points) > 1 else _spectrum(run.points),
        _spectrum(run.points[-1:]),
    )
    if end.name == "grown":  # to blow-up, or on and on
        if path:  # the way is in its last moments, between the times that were saved
            follow = lambda times: flow(law, start, save=times, rtol=rtol, stop=())  # noqa: E731
            run = follow(end.time * (1.0 - np.geomspace(1.0, 1e-9, 160)[1:]))
            way = _smooth_way(follow, start, end.time, run)
        run = flow(law, start, until=10.0 * horizon, save=[], stop=[Growth(1e9)], max_evaluations=evaluations)
        spent, end = spent + run.stats.evaluations, run.outcome
    assert isinstance(run.final, Gaussian)
    kind, rank = _kind(end.name, start, early, late)
    covariance = run.final.covariance.numpy()
    return Limit(kind, rank, covariance, late, end.time, end.direction, end.message, spent, way)


def _times(horizon: float) -> list[float]:
    """Return save times up to T for a plot, dense at first, and 10 T."""
    return [float(time) for time in horizon * np.geomspace(1e-9, 1.0, 160)] + [10.0 * horizon]


def _smooth_way(follow: Callable[[np.ndarray], Trajectory], start: Gaussian, end: float, run: Trajectory) -> np.ndarray:
    """Covariances at the times of a run, and at as many more between them as a smooth curve needs.

    ``follow`` repeats the run with other save times; new times are geometric in their distance from ``end``: 0, or a blow-up.
    """
    way, times = run.covariances.numpy(), np.abs(end - run.times.numpy())
    first = start.covariance.numpy()[None]
    drawn = np.concatenate((first, way))
    traces = np.maximum(np.trace(drawn, axis1=1, axis2=2), 1e-300)
    shapes = drawn / traces[:, None, None]
    turns = np.linalg.norm(np.diff(shapes, axis=0), axis=(1, 2)) / SMOOTH
    grows = np.abs(np.diff(np.minimum(traces, 4.0 * traces[0]))) / (4 * SMOOTH * traces[0])
    counts = np.clip(np.ceil(np.maximum(turns, grows)), 1, 40).astype(int)
    if counts.max(initial=1) == 1:
        return way
    before = np.concatenate(([end], times[:-1]))
    pieces = [
        np.geomspace(one, other, count + 1)[1:] if min(one, other) > 0 else np.linspace(one, other, count + 1)[1:]
        for one, other, count in zip(before, times, counts, strict=True)
    ]
    return follow(np.abs(end - np.concatenate(pieces))).covariances.numpy()


def _kind(name: str, start: Gaussian, early: np.ndarray, late: np.ndarray) -> tuple[str, int | None]:
    if name == "blow_up":
        return "blow_up", None
    if name in ("diverged", "grown"):
        return "diverged", None
    if name not in ("reached", "steady", "collapsed"):
        return "undecided", None
    rank = limit_rank(early, late)
    full = int((start.factor.abs().amax(-2) > 0).sum())
    return ("collapse" if rank == 0 else "full_rank" if rank == full else "low_rank"), rank


def _horizon(law: Law, start: Gaussian) -> float:
    Closure(law)  # says why there is none
    slope, _ = closure_field(law.member(torch.tensor([0])))(start.mean.numpy(), start.factor.numpy())
    rate = float(np.linalg.norm(slope))
    return UNITS / rate if rate > 0 else UNITS


def _spectrum(points: torch.Tensor) -> np.ndarray:
    """Eigenvalues from the largest down of the last of some saved states, from the factor: small ones are not drowned."""
    return np.linalg.svd(points[-1, 1:].numpy())[1] ** 2 if len(points) else np.zeros(1)


APART = 1e-2  # radians between lines that are counted as different


@dataclass(frozen=True)
class PhasePortrait:
    """Starts (n, 2, 2) and what became of each."""

    starts: np.ndarray
    limits: tuple[Limit, ...]

    def summary(self) -> dict[str, Any]:
        """Counts of kinds and ranks, directions of limits of rank one, and the range of blow-up times."""
        times = [one.time for one in self.limits if one.kind == "blow_up"]
        ranks = Counter(one.rank for one in self.limits if one.rank is not None)
        return {
            "starts": len(self.starts),
            "kinds": dict(Counter(one.kind for one in self.limits).most_common()),
            "ranks": {str(rank): count for rank, count in sorted(ranks.items())},
            "lines": [[round(math.cos(angle), 12), round(math.sin(angle), 12)] for angle in self.angles()],
            "blow_up_times": [min(times), max(times)] if times else None,
        }

    def angles(self) -> list[float]:
        """Angles in [0, pi) of the lines that limits of rank one lie on, each once."""
        lines = [one.line for one in self.limits]
        found: list[float] = []
        for angle in sorted(math.atan2(line[1], line[0]) % math.pi for line in lines if line is not None):
            if all(min(abs(angle - other), math.pi - abs(angle - other)) > APART for other in found):
                found.append(angle)
        return found


def disc_grid(count: int) -> np.ndarray:
    """Covariances of trace one on a square grid of the open unit disc, ``count`` across, (n, 2, 2)."""
    if count < 1:
        raise InputError(f"a grid needs at least one start across, got {count}")
    places = np.linspace(-1.0, 1.0, count + 2)[1:-1]
    pairs = np.array([(u, w) for u in places for w in places if u * u + w * w < 0.999])
    u, w = pairs.T
    return np.stack((np.stack(((u + 1) / 2, w / 2), -1), np.stack((w / 2, (1 - u) / 2), -1)), -2)


def cone_coordinates(covariances: np.ndarray) -> np.ndarray:
    """Coordinates (..., 3) of covariances (..., 2, 2) in the cone."""
    one, other, mixed = covariances[..., 0, 0], covariances[..., 1, 1], covariances[..., 0, 1]
    return np.stack((one - other, 2.0 * mixed, one + other), axis=-1)


def phase_portrait(
    law: Law, starts: np.ndarray | int = 7, *, progress: Callable[[int, int], None] | None = None, **options: Any
) -> PhasePortrait:
    """Follow every start (or a grid so many across) to its limit, and keep its way."""
    if law.dim != 2:
        raise InputError(f"a phase portrait is one of covariances in the plane, the law has dimension {law.dim}")
    given = disc_grid(starts) if isinstance(starts, (int, np.integer)) else np.asarray(starts, dtype=np.float64)
    found: list[Limit] = []
    for number, start in enumerate(given):
        found.append(find_limit(law, start, path=True, **options))
        if progress is not None:
            progress(number + 1, len(given))
    return PhasePortrait(given, tuple(found))


def are_same_lines(angles: Sequence[float], directions: Sequence[Sequence[float]], tolerance: float = 1e-3) -> bool:
    """Whether lines at some angles are those with some directions, in any order."""
    wanted = [math.atan2(direction[1], direction[0]) % math.pi for direction in directions]
    near = [min(min(abs(a - b), math.pi - abs(a - b)) for b in wanted) < tolerance for a in angles] if wanted else []
    return len(wanted) == len(angles) and all(near)
