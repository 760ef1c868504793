r"""Clusters at low temperature, in logarithmic time.

Under softmax or exponential attention with P = beta I, V = c I on a sphere, clusters of tokens move at speeds
:math:`e^{-\beta(1-\cos\theta)}`, so that merges are at times exponential in beta. Here clusters are integrated in a clock :math:`\sigma`
with :math:`dt = e^{-g}d\sigma/c`, where :math:`g = \log\sum_{i\ne j}w_{ij}` follows the fastest pair; the logarithm of t is accumulated, so
that neither times nor weights leave floating point. Clusters at a chord of ``merge`` become one, at their centre of mass.

The time of the first merge has a certificate: alone, the angle of the pair falls at the rate
:math:`f(\theta) = \sin\theta\,(w_{12}+w_{21})`, and other clusters change that by at most R, as long as all other cosines stay below
:math:`c_{next}`; :math:`R = 4(1-m_1-m_2)e^{-\beta(1-c_{next})}/\min(m_1,m_2)` for softmax and :math:`2(M-m_1-m_2)e^{\beta c_{next}}`, M the
total mass, for the exponential kernel. The time lies between the integrals of :math:`1/(f+R)` and :math:`1/(f-R)`. :math:`c_{next}` is
taken from the start: until the merge no cluster is pulled over a distance longer than D, the second integral times
:math:`\frac{1-m}{m}e^{-\beta(1-c_{next})}` (softmax, m the smallest mass), so that other clusters come closer to the arc of the pair by
:math:`D + D/\cos(\theta_0/2)` at most, the second term for the points inside the arc. A D that fits is found by trial; where there is
none, there is no certificate. All times are compared with those of a second run, with half the merging distance and a tenth of the
tolerance: errors are of third order in the distance. This is an estimate.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attractor import memory
from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.laws import Attention, Law, has_kernel
from attractor.progress import progress_bar
from attractor.solvers.log_time import LogTime, exponential, format_log_time, log_of
from attractor.solvers.merging import EventLog, MergeTree
from attractor.solvers.outcome import Outcome, Statistics
from attractor.solvers.store import Definition, Store, read_definition, read_snapshot
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Space, Sphere
from attractor.states import Tokens

METHOD = "clusters"
TOLERANCE = 1e-6  # of the logarithm of merge times, from which the merging distance follows
LONGEST_CHORD = 1e-2  # merging distance at small beta
SAVED = 200  # intervals of the default grid
REST = 1e-13  # speed, relative to that of a pair alone, below which forces cancel to rounding
BEFORE = 12.0  # logarithm of the first saved time before the first motion
PAIR_BYTES = 64  # of arrays with an entry for every pair
CUBIC = 8 / 7  # error of a distance over the difference to that of its half, at third order
STEPS = 200_000  # of one member
ROOMS = tuple(10.0 ** np.arange(-12.0, -0.9, 0.25))  # tried distances that other clusters move before the first merge


@dataclass(frozen=True)
class ClusterLaw:
    """Parameters of the motion: y_i' = speed * sum_j w_ij y_j on the unit sphere, with scores beta <y_i, y_j>."""

    beta: float
    speed: float
    normalised: bool


@dataclass
class ClusterPath:
    """What one integration of one member produced; times are logarithms."""

    points: np.ndarray  # saved states (S, n, d)
    reached: int  # saved times that were reached
    tree: MergeTree
    final: np.ndarray
    outcome: Outcome
    crossings: list[float]  # log times at which merging pairs passed the reference chord
    first: tuple[np.ndarray, np.ndarray, tuple[int, int]] | None  # start, masses and pair of the first merge
    sigmas: np.ndarray  # clock sigma at the saved times, and at the end
    evaluations: int = 0
    steps: int = 0
    errors: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))  # and whether they are bounds


def log_time_obstacle(law: Law, state: Any, space: Space) -> str:
    """Why a run cannot be integrated in logarithmic time; empty if it can."""
    if not isinstance(state, Tokens):
        return f"it moves clusters of tokens, and the state is of the type {type(state).__name__}"
    if type(law) is not Attention:
        return f"it is known for Attention(...) alone, and the law is {type(law).__name__}"
    if type(space) is not Sphere:
        where = f"on the {space.name}" if space.is_curved else "in flat space"
        return f"tokens must live on a sphere: {where} they move at times of order one"
    if not has_kernel(law, "softmax", "exponential"):
        return f"it is known for the softmax and exponential kernels, not for {law.kernel.label}"
    if law.mask is not None:
        return f"every token must see every other, and the mask is {law.mask.name}"
    if law.positions is not None and law.positions.changes_dynamics:
        return f"{law.positions.name} positions act during the motion"
    if law.output_bias is not None or law.value_bias is not None or law.heads > 1 or law.query.ndim > 3:
        return "it needs one head without biases"
    beta = law.beta
    if beta is None or not beta > 0:
        return "scores must be beta <x, y> with beta > 0, P = beta I: otherwise tokens do not wait for each other"
    value = law._value_scalars
    if value is None or not float(value.reshape(-1)[0]) > 0:
        return "values must be V = c I with c > 0: otherwise clusters do not attract"
    return ""


def reject_options(
    options: dict[str, Any], noise: Any, events: Any, differentiable: bool, given: dict[str, bool]
) -> None:
    """Raise for options of ``flow`` that have no meaning in logarithmic time; ``given`` says whether further ones were given."""
    named = {
        "noise": noise is not None,
        "events": bool(events),
        "step": options["step"] is not None,
        "atol": options["atol"] is not None,
        "stop": options["stop"] is not None,
        "merge=False": options["merge"] is False,
        "adaptive=False": not options["adaptive"],
        "start": options["start"] != 0.0,
        "engine": options["engine"] is not None,
        **given,
    }
    wrong = [name for name, there in named.items() if there]
    if wrong:
        raise UnsupportedError(
            f"a run in logarithmic time follows clusters until they have merged, and takes no {', '.join(wrong)}: leave that out"
        )
    if options["method"] not in (None, METHOD):
        raise UnsupportedError(
            f"the method of a run until {options['until']} is {METHOD!r}: floating-point time ends at 1e300, so leave out "
            f"method={options['method']!r}"
        )
    if differentiable:
        raise UnsupportedError("gradients do not flow through merging; detach the law and the tokens first")


def integrate_clusters(
    definition: Definition, entered: Tokens, budget: tuple[float | None, float | None], progress: Any
) -> Trajectory:
    """Carry out a run in logarithmic time; ``entered`` are the tokens on the space, with ensemble axes flattened."""
    began = clock.perf_counter()
    law, space, options = definition.law, definition.space, definition.options
    assert isinstance(law, Attention)
    assert isinstance(space, Sphere)
    assert isinstance(definition.state, Tokens)
    assert law.beta is not None
    assert law._value_scalars is not None
    speed = float(law._value_scalars.reshape(-1)[0])
    motion = ClusterLaw(law.beta * space.radius**2, speed, law.kernel.normalised)
    rtol, chord = _tolerances(options, motion.beta, space.radius)
    until = log_of(options["until"])
    memory.check(
        PAIR_BYTES * float(entered.n) ** 2, entered.n, f"clusters of {entered.n:,} tokens in logarithmic time", power=2
    )
    points = entered.points.detach().cpu().double().numpy() / space.radius
    masses = entered.weights.expand(points.shape[:2]).cpu().double().numpy()
    if (masses <= 0).any():
        raise InputError("in logarithmic time every token needs a positive mass: leave out those that have none")
    if motion.normalised:
        masses = masses / masses.sum(-1, keepdims=True)
    times = _save_times(options["save"], until, points, masses, motion)
    paths = []
    with progress_bar("flow", progress is True, total=2.0 * len(points), count=False) as update:
        for member in range(len(points)):
            show = _show(update, 2 * member, until)
            limit = _Budget(began, *budget, used=sum(path.evaluations for path in paths))
            coarse = _Member(points[member], masses[member], motion, rtol, chord, chord, until, times, limit, show)
            path = coarse.run()
            if path.outcome.name != "budget":
                show = _show(update, 2 * member + 1, until)
                none = np.zeros(0)
                fine = _Member(
                    points[member], masses[member], motion, rtol / 10, chord / 2, chord, until, none, limit, show
                ).run()
                path.errors = _estimate_errors(path, fine, motion, chord)
                path.evaluations, path.steps = path.evaluations + fine.evaluations, path.steps + fine.steps
            paths.append(path)
    return _make_trajectory(definition, paths, times, clock.perf_counter() - began)


def _tolerances(options: dict[str, Any], beta: float, radius: float) -> tuple[float, float]:
    """Relative tolerance of a step, and the chord (on the unit sphere) at which clusters merge."""
    rtol = options["rtol"]
    if rtol is not None and not 1e-13 <= rtol < 1:
        raise InputError(f"rtol must be between 1e-13 and 1, got {rtol:g}")
    merge = options["merge"]
    if merge is None or merge is True:
        chord = min(LONGEST_CHORD, (TOLERANCE / beta**2) ** (1 / 3))
    elif isinstance(merge, (int, float)) and 1e-7 * radius <= merge < radius:
        chord = float(merge) / radius
    else:
        raise InputError(
            f"in logarithmic time merge is a distance between 1e-7 of the radius and the radius {radius:g}, got {merge}"
        )
    return max(1e-13, min(1e-11, 1e-2 * TOLERANCE / beta)) if rtol is None else float(rtol), chord


def _save_times(save: Any, until: float, points: np.ndarray, masses: np.ndarray, motion: ClusterLaw) -> np.ndarray:
    """Logarithms of the times to save; the first is that of zero."""
    first = min(0.0, *(-_Field(x, m, motion).start for x, m in zip(points, masses, strict=True))) - BEFORE
    first = min(first - math.log(motion.speed), until - 1.0)
    if save is None or (isinstance(save, (int, np.integer)) and not isinstance(save, bool)):
        count = SAVED if save is None else int(save)
        if count < 1:
            raise InputError(f"save must be at least one interval, got {save}")
        return np.concatenate(([-np.inf], np.linspace(first, until, count)))
    if isinstance(save, str) or not isinstance(save, (list, tuple)):
        raise InputError(f"save must be None, a number of intervals or a list of times, got {save!r}")
    found = np.array([log_of(time) if isinstance(time, LogTime) else log_of(float(time)) for time in save])
    if np.isnan(found).any() or (len(found) > 1 and (found[1:] <= found[:-1]).any()) or (found > until).any():
        raise InputError("save times must be finite, increasing and not after the end of the run")
    return found


class _Budget:
    """Seconds and evaluations that a run may take."""

    def __init__(self, began: float, seconds: float | None, evaluations: float | None, used: int) -> None:
        self.end = math.inf if seconds is None else began + seconds
        self.evaluations = math.inf if evaluations is None else evaluations - used

    def spent(self, evaluations: int) -> str:
        if evaluations >= self.evaluations:
            return "evaluations"
        return "time" if clock.perf_counter() >= self.end else ""


def _show(update: Callable[..., None], done: float, until: float) -> Callable[[float, int], None]:
    def show(log_time: float, clusters: int) -> None:
        share = min(max(log_time / until, 0.0), 1.0) if until > 0 else 0.0
        update(done + share, note=f"t = {format_log_time(log_time)}, {clusters} clusters")

    return show


class _Field:
    """The motion of clusters in the clock sigma; the vector is (points, q) with q = integral of e^(g0 - g)."""

    def __init__(self, points: np.ndarray, masses: np.ndarray, motion: ClusterLaw) -> None:
        self.shape, self.motion, self.log_masses = points.shape, motion, np.log(masses)
        self.evaluations = 0
        self.start = 0.0
        self.start = self.weigh(points)[1]

    def weigh(self, y: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
        """Weights of other clusters divided by their sum e^g, the number g, and 1 - cosines."""
        squares = (y * y).sum(1)
        away = 0.5 * np.maximum(squares[:, None] + squares[None] - 2.0 * (y @ y.T), 0.0)
        close = away < 1e-3  # there the difference of the points is accurate
        if close.sum() > len(y):
            i, j = np.nonzero(close)
            away[i, j] = 0.5 * ((y[i] - y[j]) ** 2).sum(1)
        logs = self.log_masses[None] - self.motion.beta * away
        if self.motion.normalised:
            top = logs.max(1, keepdims=True)
            logs = logs - (top + np.log(np.exp(logs - top).sum(1, keepdims=True)))
        else:
            logs = logs + self.motion.beta
        np.fill_diagonal(logs, -np.inf)
        top = logs.max()
        weights = np.exp(logs - top)
        total = weights.sum()
        return weights / total, float(top + math.log(total)), away

    def __call__(self, sigma: float, z: np.ndarray) -> np.ndarray:
        self.evaluations += 1
        x = z[:-1].reshape(self.shape)
        y = x / np.linalg.norm(x, axis=1, keepdims=True)
        weights, g, away = self.weigh(y)
        drift = weights @ y - (weights * (1.0 - away)).sum(1, keepdims=True) * y
        return np.append(drift.ravel(), math.exp(min(self.start - g, 700.0)))


class _Member:
    """Integration of one member of the ensemble."""

    def __init__(
        self,
        points: np.ndarray,
        masses: np.ndarray,
        motion: ClusterLaw,
        rtol: float,
        chord: float,
        reference: float,
        until: float,
        times: np.ndarray,
        budget: _Budget,
        show: Callable[[float, int], None],
    ) -> None:
        self.x: np.ndarray = points
        self.masses: np.ndarray = masses.copy()
        self.motion, self.rtol, self.chord = motion, rtol, chord
        self.reference, self.until, self.times, self.budget, self.show = reference, until, times, budget, show
        self.n = len(points)
        self.labels = np.arange(self.n)  # row of every token
        self.nodes = np.arange(self.n)
        self.tree = MergeTree(self.n)
        self.saved = np.zeros((len(times), *points.shape))
        self.place, self.log_time = 0, -math.inf
        self.sigmas, self.sigma = np.zeros(len(times)), 0.0  # at saved times, and at the start of the present part
        self.crossings: list[float] = []  # of the pair of every merge
        self.crossed: dict[tuple[int, int], float] = {}  # by the nodes of a pair
        self.first: tuple[np.ndarray, np.ndarray, tuple[int, int]] | None = None
        self.evaluations = self.steps = 0

    def run(self) -> ClusterPath:
        while self.place < len(self.times) and self.times[self.place] == -math.inf:
            self._save(self.x, 0.0)
        self._merge(self.x)
        outcome = None
        while outcome is None:
            if len(self.x) == 1:
                words = f"all tokens came together; clusters closer than {self.chord:.3g} were merged to one"
                outcome = self._outcome("consensus", words)
                break
            outcome = self._advance()
        reached = self.place
        while self.place < len(self.times):
            self._save(self.x, self.sigma)
        return ClusterPath(
            self.saved,
            reached,
            self.tree,
            self.x[self.labels],
            outcome,
            self.crossings,
            self.first,
            np.append(self.sigmas, self.sigma),
            self.evaluations,
            self.steps,
        )

    def _outcome(self, name: str, words: str) -> Outcome:
        return Outcome(name, exponential(self.log_time), words, log_time=self.log_time)

    def _save(self, x: np.ndarray, sigma: float) -> None:
        self.saved[self.place], self.sigmas[self.place] = x[self.labels], sigma
        self.place += 1

    def _advance(self) -> Outcome | None:
        """Integrate until clusters merge; return the outcome if the run ends before."""
        from scipy.integrate import DOP853

        field, k = _Field(self.x, self.masses, self.motion), self.x.size
        base = -field.start - math.log(self.motion.speed)  # log of dt / d sigma at the start of this part of the run
        begin, start = self.log_time, self.x.copy()
        atol = np.full(k + 1, self.rtol)
        atol[-1] = 1e-3 * self.rtol / max(self.motion.beta, 1.0)
        z = np.append(self.x.ravel(), 0.0)
        if np.abs(field(0.0, z)[:-1]).max() < REST:
            self.log_time = self.until
            return self._outcome(
                "steady", "the forces on every cluster cancel: this start is an equilibrium, to rounding"
            )
        solver = DOP853(field, 0.0, z, np.inf, rtol=self.rtol, atol=atol)  # type: ignore[arg-type]
        while True:
            failure = solver.step()
            self.steps += 1
            if failure is not None or not np.isfinite(solver.y).all() or self.steps > STEPS:
                self.evaluations += field.evaluations
                return self._outcome("stalled", "the step size fell to rounding before the tolerance was met")
            dense: Any = solver.dense_output()
            low, high = float(solver.t_old or 0.0), float(solver.t)
            shape = self.x.shape

            def points_at(sigma: float, dense: Any = dense, shape: tuple[int, ...] = shape) -> np.ndarray:
                x = dense(sigma)[:-1].reshape(shape)
                return x / np.linalg.norm(x, axis=1, keepdims=True)

            def log_at(sigma: float, dense: Any = dense) -> float:
                q = float(dense(sigma)[-1])
                return float(np.logaddexp(begin, base + math.log(q))) if q > 0 else begin

            gap, pair = _closest(points_at(high))
            if gap < self.reference:
                self._note_crossings(points_at, log_at, low, high)
            if gap < self.chord:
                high = _root(lambda s: _closest(points_at(s))[0] - self.chord, low, high)
            end = log_at(high)
            if end >= self.until:
                high = _root(lambda s: log_at(s) - self.until, low, high)
            while self.place < len(self.times) and self.times[self.place] <= min(end, self.until):
                time = self.times[self.place]
                sigma = high if time >= end else _root(lambda s, time=time: log_at(s) - time, low, high)
                self._save(points_at(sigma), self.sigma + sigma)
            self.show(end, len(self.x))
            if end >= self.until or gap < self.chord:
                self.x, self.log_time = points_at(high), min(end, self.until)
                self.sigma += high
                self.evaluations += field.evaluations
                if end >= self.until:
                    words = f"the requested time {format_log_time(self.until)} was reached"
                    return self._outcome("reached", words)
                if self.first is None:
                    self.first = (start, self.masses.copy(), pair)
                self._merge(self.x)
                return None
            if spent := self.budget.spent(self.evaluations + field.evaluations):
                self.x, self.log_time = points_at(high), end
                self.sigma += high
                self.evaluations += field.evaluations
                return self._outcome("budget", f"the budget of {spent} was spent")

    def _note_crossings(
        self, points_at: Callable[[float], np.ndarray], log_at: Callable[[float], float], low: float, high: float
    ) -> None:
        """Note when pairs came within the reference chord."""
        for i, j in np.argwhere(np.triu(_chords(points_at(high)) < self.reference, 1)).tolist():
            key = (int(self.nodes[i]), int(self.nodes[j]))
            if key not in self.crossed:

                def excess(sigma: float, i: int = i, j: int = j) -> float:
                    x = points_at(sigma)
                    return float(np.linalg.norm(x[i] - x[j])) - self.reference

                self.crossed[key] = log_at(_root(excess, low, high))

    def _merge(self, x: np.ndarray) -> None:
        """Replace clusters within the merging distance by one of their total mass at their centre of mass."""
        while len(x) > 1:
            gap, (keep, drop) = _closest(x)
            if gap > self.chord * (1.0 + 1e-9):
                break
            total = self.masses[keep] + self.masses[drop]
            centre = (self.masses[keep] * x[keep] + self.masses[drop] * x[drop]) / total
            x = x.copy()
            x[keep] = centre / np.linalg.norm(centre)
            rows = np.array([self.nodes[keep]]), np.array([self.nodes[drop]]), np.array([total])
            self.crossings.append(self.crossed.get((int(self.nodes[keep]), int(self.nodes[drop])), self.log_time))
            made = self.tree.extend(self.log_time, *rows)
            self.nodes[keep], self.masses[keep] = made[0], total
            self.nodes, self.masses, x = (np.delete(part, drop, axis=0) for part in (self.nodes, self.masses, x))
            self.labels = np.where(self.labels == drop, keep, self.labels)
            self.labels = np.where(self.labels > drop, self.labels - 1, self.labels)
        self.x = x


def _chords(x: np.ndarray) -> np.ndarray:
    """Chords of all pairs."""
    squares = (x * x).sum(1)
    return np.sqrt(np.maximum(squares[:, None] + squares[None] - 2.0 * (x @ x.T), 0.0))


def _closest(x: np.ndarray) -> tuple[float, tuple[int, int]]:
    """The smallest chord, and its pair i < j."""
    apart = _chords(x)
    apart[np.tril_indices(len(x))] = np.inf
    i, j = divmod(int(apart.argmin()), len(x))
    return float(np.linalg.norm(x[i] - x[j])), (i, j)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root in an interval at whose ends the function has different signs, or the end nearest to it."""
    from scipy.optimize import brentq

    first, last = function(low), function(high)
    if first == 0.0 or first * last > 0:
        return low if abs(first) < abs(last) else high
    found: Any = brentq(function, low, high, xtol=1e-15 * max(abs(high), 1.0), rtol=4 * np.finfo(float).eps)
    return float(found)


def _estimate_errors(path: ClusterPath, fine: ClusterPath, motion: ClusterLaw, chord: float) -> np.ndarray:
    """Errors of the logarithms of merge times, and whether they are bounds, (merges, 2).

    Estimates from a finer run, infinite where the runs differ; for the first merge a bound, where others are far enough from the pair.
    """
    times = path.tree.rows[:, 0]
    errors = np.stack((np.full(len(times), np.inf), np.zeros(len(times))), axis=1)
    for merge, time in enumerate(times.tolist()):
        if time == -math.inf:
            errors[merge] = 0.0, 1.0
        elif merge < len(fine.tree) and path.tree.leaves(merge) == fine.tree.leaves(merge):
            errors[merge, 0] = CUBIC * abs(time - fine.crossings[merge])
    moving = np.flatnonzero(times > -math.inf)
    if len(moving) and path.first is not None and moving[0] == 0:  # merges at the start move clusters
        low, high = certify_first_merge(*path.first, motion=motion, chord=chord)
        if math.isfinite(high):
            errors[0] = max(high - times[0], times[0] - low), 1.0
    return errors


def certify_first_merge(
    points: np.ndarray, masses: np.ndarray, pair: tuple[int, int], motion: ClusterLaw, chord: float
) -> tuple[float, float]:
    """Bounds on the logarithm of the time at which a pair is at a chord; the second is infinite where there are none."""
    (m1, m2), total, least = masses[list(pair)].tolist(), float(masses.sum()), float(masses.min())
    others = np.delete(points, pair, axis=0)
    x, y = points[pair[0]], points[pair[1]]
    start = 2.0 * math.atan2(float(np.linalg.norm(x - y)), float(np.linalg.norm(x + y)))
    end, shift = 2.0 * math.asin(chord / 2.0), math.log(motion.speed)
    nearest = nearest_angle(x, y, others)
    if len(others) > 1:
        cosines = others @ others.T
        nearest = min(nearest, math.acos(float(np.clip(cosines[~np.eye(len(others), dtype=bool)].max(), -1.0, 1.0))))
    for moved in (0.0,) if not len(others) else ROOMS:  # of each cluster until the merge
        closer = moved * (1.0 + 1.0 / max(math.cos(start / 2.0), 1e-12))
        c_next = math.cos(max(nearest - max(closer, 2.0 * moved), 0.0)) if len(others) else -1.0
        rest = max(total - m1 - m2, 0.0) if len(others) else 0.0
        low, high = bound_merging_time(start, end, (m1, m2), rest, c_next, motion.beta, motion.normalised)
        if not len(others):
            return low - shift, high - shift
        pull = math.log((total - least) / least) - motion.beta * (1.0 - c_next)
        if not motion.normalised:
            pull = math.log(total) + motion.beta * c_next
        if high + pull <= math.log(moved):
            return low - shift, high - shift
    return -math.inf, math.inf


def nearest_angle(x: np.ndarray, y: np.ndarray, others: np.ndarray) -> float:
    """The smallest angle between points (m, d) and the arc from x to y, all of length one; pi without points."""
    if not len(others):
        return math.pi
    side = y - (x @ y) * x
    side = side / max(float(np.linalg.norm(side)), 1e-300)
    a, b, whole = others @ x, others @ side, math.atan2(float(y @ side), float(x @ y))
    place = np.arctan2(b, a)
    inside = (place >= 0.0) & (place <= whole)
    return float(np.arccos(np.clip(np.where(inside, np.hypot(a, b), np.maximum(a, others @ y)), -1.0, 1.0)).min())


def bound_merging_time(
    start: float,
    end: float,
    masses: tuple[float, float],
    others: float,
    c_next: float,
    beta: float,
    normalised: bool = True,
) -> tuple[float, float]:
    r"""Bounds on the logarithm of the time in which the angle of two clusters falls from ``start`` to ``end`` (V = I).

    Parameters
    ----------
    masses, others : masses of the two clusters, and of all others together.
    c_next : what all other cosines stay below until then.
    normalised : softmax; False is the exponential kernel.

    Returns
    -------
    low, high : of :math:`\int d\theta/(f + R)` and :math:`\int d\theta/(f - R)`; high is infinite where R exceeds f.
    """
    if not start > end:
        return -math.inf, -math.inf
    (m1, m2), log_rest = masses, -math.inf
    if others > 0 and normalised:
        log_rest = math.log(4.0 * others / min(m1, m2)) - beta * (1.0 - c_next)
    elif others > 0:
        log_rest = math.log(2.0 * others) + beta * c_next

    def log_rate(angle: np.ndarray) -> np.ndarray:
        barrier = -beta * 2.0 * np.sin(angle / 2.0) ** 2
        if not normalised:
            return np.log(np.sin(angle)) + math.log(m1 + m2) + beta + barrier
        parts = (
            math.log(m2) + barrier - np.logaddexp(math.log(m1), math.log(m2) + barrier),
            math.log(m1) + barrier - np.logaddexp(math.log(m2), math.log(m1) + barrier),
        )
        return np.log(np.sin(angle)) + np.logaddexp(*parts)

    nodes, weights = np.polynomial.legendre.leggauss(20)
    # the integrand is steep at the start and, in logarithms, smooth at the end
    steep = start - (start - end) * np.geomspace(1e-12, 0.5, 200)
    edges = np.unique(np.concatenate((steep, np.geomspace(end, (start + end) / 2.0, 100), [start])))
    half = np.diff(edges) / 2.0
    angles = (edges[:-1] + half)[:, None] + half[:, None] * nodes
    rates = log_rate(np.minimum(angles, math.pi * (1 - 1e-15)))
    share = np.exp(np.minimum(log_rest - rates, 700.0))  # R / f
    logs = np.log(half[:, None] * weights) - rates
    low = float(np.logaddexp.reduce((logs - np.log1p(share)).ravel()))
    if (share >= 1.0).any():
        return low, math.inf
    return low, float(np.logaddexp.reduce((logs - np.log1p(-share)).ravel()))


def load_log_run(path: Any) -> Trajectory:
    """Read a stored run in logarithmic time."""
    store = Store(path)
    definition = read_definition(store)[0]
    logs, arrays = store.read_times(), read_snapshot(store)
    state = definition.state
    if arrays is None or not isinstance(state, Tokens):
        raise StoreError(
            f"the run in {path} has not ended, and a run in logarithmic time is stored at its end: run it again"
        )
    try:
        record = json.loads(str(arrays["json"]))
        outcomes = tuple(Outcome(**outcome) for outcome in record["outcomes"])
        members = range(len(outcomes))
        trees = [MergeTree(state.n, arrays[f"tree{k}"]) for k in members]
        errors = [arrays[f"errors{k}"] for k in members]
        final, sigma = (torch.from_numpy(arrays[name]) for name in ("final", "sigma"))
        stats = Statistics(**record["stats"])
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(f"the checkpoint of {path} does not belong to its run: {error}") from None
    return Trajectory(
        times=torch.from_numpy(logs).exp(),
        points=torch.from_numpy(arrays["complete"]).to(state.points),
        final=state.with_points(final.to(state.points)),
        outcomes=outcomes,
        stats=stats,
        law=definition.law,
        space=definition.space,
        initial=state,
        events=EventLog([], trees, log_errors=errors),
        definition=definition,
        given_log_times=torch.from_numpy(logs),
        given_sigma=sigma,
    )


def _make_trajectory(definition: Definition, paths: list[ClusterPath], times: np.ndarray, seconds: float) -> Trajectory:
    state, space = definition.state, definition.space
    assert isinstance(state, Tokens)
    assert isinstance(space, Sphere)
    shape = (*state.batch_shape, state.n, state.dim)
    points = np.stack([path.points for path in paths], axis=1) * space.radius
    finals = np.stack([path.final for path in paths]) * space.radius
    times, points = times.copy(), points.reshape(len(times), *shape)
    sigmas = np.stack([path.sigmas for path in paths], axis=-1)
    sigmas, last = sigmas[:-1], sigmas[-1:]
    ends = max(log_of(LogTime(path.outcome.log_time)) for path in paths if path.outcome.log_time is not None)
    explicit = isinstance(definition.options["save"], (list, tuple))
    if not explicit:  # the last state is at the end of the run
        kept = times < ends
        times = np.append(times[kept], ends)
        points = np.concatenate((points[kept], finals.reshape(1, *shape)))
        sigmas = np.concatenate((sigmas[kept], last))
    trees, errors = [path.tree for path in paths], [path.errors for path in paths]
    stats = Statistics(
        evaluations=sum(path.evaluations for path in paths),
        accepted=sum(path.steps for path in paths),
        seconds=seconds,
        method=METHOD,
        merges=sum(map(len, trees)),
        peak_memory=memory.peak(),
    )
    logs = torch.from_numpy(times)

    def restore(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(state.points)

    return Trajectory(
        times=logs.exp(),
        points=restore(points),
        final=state.with_points(restore(finals).reshape(shape)),
        outcomes=tuple(path.outcome for path in paths),
        stats=stats,
        law=definition.law,
        space=space,
        initial=state,
        events=EventLog([], trees, log_errors=errors),
        definition=definition,
        given_log_times=logs,
        given_sigma=torch.from_numpy(sigmas.reshape(len(times), *state.batch_shape)),
    )
