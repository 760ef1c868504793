"""Integration of Gaussians: rescaled variables, implicit method where stiff, blow-up detection."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attractor.laws import Closure, closure_field
from attractor.solvers.integration import Integration
from attractor.solvers.linear_response import SLACK, STILL
from attractor.solvers.outcome import Outcome
from attractor.solvers.termination import PATIENCE, ROUNDING, Rule, Steady, View

Field = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
TINY = 1e-300
LARGEST = 300.0  # largest logarithm of a size
DIFFERENCE = 1e-5  # step of the differences in the Jacobian
STIFF = 1e-3  # change in a step below which accuracy does not limit it
PARALLEL = 0.9  # cosine of columns above which they are made orthogonal
CALM = 20  # consecutive steps for stiffness to be detected


class RescaledGaussian:
    r"""A Gaussian in rescaled variables, in which blow-up takes infinite time.

    The vector is :math:`z = (l, s, a, m, \theta)` with factor :math:`L = e^s l` (d x rank), mean :math:`\alpha = e^m a` and time
    :math:`t = t_0 + u(e^\theta - 1)`, u the unit of time. The independent variable is :math:`\tau` with :math:`d\tau/dt` the rate
    at which the factor changes; all components then need the same absolute accuracy.
    """

    def __init__(self, field: Field, rank: int, dim: int, start: float, until: float) -> None:
        self.field, self.rank, self.dim = field, rank, dim
        self.start, self.slowest, self.unit = start, slowest_rate(start, until), until - start
        self.evaluations, self.strength = 0, 0.0  # strength is |B| at the last call of rest
        self.lifted = self.implicit = False

    def pack(self, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """The vector of a Gaussian at the start, whose rate there sets the unit of time."""
        self.unit = 1.0 / self.velocity(mean, factor)[2]
        size, length = max(float(np.linalg.norm(factor)), TINY), float(np.linalg.norm(mean))
        size, length = (size if size > TINY else 1.0), (length if length > 0 else 1.0)
        return np.concatenate(
            ((factor / size).ravel(), [np.log(size)], mean / length, [np.log(length), 0.0]), dtype=np.float64
        )

    def unpack(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and factor."""
        cut = self.rank * self.dim
        return math.exp(z[-2]) * z[cut + 1 : -2], math.exp(z[cut]) * z[:cut].reshape(self.dim, self.rank)

    def time(self, z: np.ndarray) -> float:
        return self.start + self.unit * math.expm1(z[-1])

    def clock(self, time: float) -> float:
        """theta at time t."""
        return math.log1p((time - self.start) / self.unit)

    def rate(self, slope: np.ndarray, factor: np.ndarray, pushed: np.ndarray) -> float:
        """d tau / dt, given B, L and B L."""
        size = float(np.vdot(factor, factor))
        plain = self.implicit or size == 0
        own = float(np.vdot(slope, slope)) if plain else float(np.vdot(pushed, pushed)) / size
        return math.sqrt(self.slowest**2 + own)

    def velocity(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """Velocities of mean and factor in t, and the rate d tau / dt."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        pushed = slope @ factor
        return drift, horizontal(slope, factor) if self.lifted else pushed, self.rate(slope, factor, pushed)

    def rest(self, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """``velocity`` with the shortest velocity of the factor, which is zero where the covariance is at rest."""
        self.evaluations += 1
        slope, drift = self.field(mean, factor)
        self.strength = float(np.linalg.norm(slope))
        return drift, horizontal(slope, factor), self.rate(slope, factor, slope @ factor)

    def __call__(self, tau: float, z: np.ndarray) -> np.ndarray:
        cut = self.rank * self.dim
        if not (z[cut] < LARGEST and z[-2] < LARGEST and z[-1] > -LARGEST and np.isfinite(z).all()):
            return np.full(len(z), np.nan)  # the solver then tries a shorter step
        shape, a = z[:cut], z[cut + 1 : -2]
        # the logarithms of sizes may fall below those of floating-point numbers, where the field is linear
        scale, length = math.exp(max(z[cut], -LARGEST)), math.exp(max(z[-2], -LARGEST))
        drift, turned, rate = self.velocity(length * a, scale * shape.reshape(self.dim, self.rank))
        y = turned.ravel() / (scale * rate)
        growth = float(shape @ y) / max(float(shape @ shape), TINY)
        b = drift / (length * rate)
        # part of the growth of the mean that its logarithm represents: all of it where the mean is large
        lift = float(a @ b) / (1.0 + float(a @ a))
        tick = math.exp(-z[-1]) / (rate * self.unit)
        return np.concatenate((y - growth * shape, [growth], b - lift * a, [lift, tick]))

    def jacobian(self, tau: float, z: np.ndarray) -> np.ndarray:
        """Jacobian of the vector field, by central differences; components are of order one, so all have the same step."""
        cut, columns = self.rank * self.dim, np.zeros((len(z), len(z)))
        still = not z[cut + 1 : -2].any() and not self(tau, z)[cut + 1 : -2].any()
        for index in range(cut + 1) if still else range(len(z)):
            above, below = z.copy(), z.copy()
            above[index] += DIFFERENCE
            below[index] -= DIFFERENCE
            columns[:, index] = (self(tau, above) - self(tau, below)) / (above[index] - below[index])
        return columns


def slowest_rate(start: float, until: float) -> float:
    """One over the length of a run, below the numbers whose squares overflow."""
    return min(1.0 / (until - start), 1e150)


def horizontal(slope: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """B L + L Omega: the shortest velocity of the factor that moves the covariance by B."""
    U, s, Wt = np.linalg.svd(factor, full_matrices=False)
    N = U.T @ slope @ U
    pairs = s[:, None] * s[None, :]
    squares = s[:, None] ** 2 + s[None, :] ** 2
    omega = -pairs * (N - N.T) / np.where(squares > TINY, squares, 1.0)
    return slope @ factor + (U * s) @ omega @ Wt


class StiffnessDetector:
    """Detects steps that are limited by stability: they change almost nothing and still do not grow."""

    def __init__(self) -> None:
        self.calm = self.brisk = 0

    def is_stiff(self, change: np.ndarray, step: float, ahead: float) -> bool:
        """Whether explicit steps are limited by stability, after a step that changed z by ``change`` with ``ahead`` of tau left."""
        small = float(np.abs(change).max(initial=0.0)) < STIFF and ahead > 50.0 * step
        self.calm = self.calm + 1 if small else 0
        return self.calm >= CALM

    def is_over(self, change: np.ndarray, step: float) -> bool:
        """Whether an explicit method would take longer steps, after a step of the implicit one."""
        large = float(np.abs(change).max(initial=0.0)) > 10.0 * STIFF and step < 1.0
        self.brisk = self.brisk + 1 if large else 0
        return self.brisk >= CALM


def has_parallel_columns(factor: np.ndarray) -> bool:
    """Whether columns of a factor are nearly parallel, so that small eigenvalues lose their digits."""
    lengths = np.linalg.norm(factor, axis=0)
    # the direction of a column far below the rounding of another has no digits
    unit = (factor / np.maximum(lengths, TINY))[:, lengths > 1e-10 * lengths.max(initial=0.0)]
    gram = np.abs(unit.T @ unit)
    np.fill_diagonal(gram, 0.0)
    return bool(gram.max(initial=0.0) > PARALLEL)


def orthogonalise(factor: np.ndarray) -> np.ndarray:
    """A factor of the same covariance with orthogonal columns."""
    U, s, _ = np.linalg.svd(factor, full_matrices=False)
    return U * s


TAIL = 1e-13  # time left at blow-up, relative to the time so far
SETTLED = 1e-11  # speed of the shape along tau below which it has converged at blow-up
RELATIVE = 3e-14  # relative tolerance, below the absolute one; the least that scipy accepts
NOISE = 2e-14  # speed of a factor, relative to B L, below which it is rounding
FAR = 1e5  # growth of standard deviations above which a run that has come to rest has diverged
LOOSER = 30.0  # tolerance of the implicit method relative to the explicit one: stiff components damp their errors
FAINTEST = -14.0  # logarithm of the smallest mean, relative to the first, that is renormalised
SHORT = 0.05  # length of a step along tau below which it makes no progress
STUCK = 1000  # consecutive short steps after which a run ends
ENDLESS = 10.0  # time left, in lengths of these steps, from which it does
LONG = 150  # steps after which the factor is kept from rotating where the covariance is at rest
UNSETTLED = 1e40  # growth of the rate at which a blow-up is reported although the shape still changes


COUNTERS = (
    "log_size", "offset", "repels", "size", "streak", "last", "first_rate", "growth", "steps", "asleep", "stuck", "advanced",
    "strongest", "first_length",
)  # fmt: skip
VARIABLES = ("unit", "slowest", "evaluations", "strength", "lifted", "implicit")
SOLVER = ("t", "y", "f", "h_abs", "t_old", "h_abs_old", "error_norm_old", "J", "current_jac")


class GaussianIntegration(Integration):
    """A run of Gaussians in progress, one member after the other; a checkpoint holds the solver of the present one."""

    member: GaussianMember | None = None
    stored: dict[str, np.ndarray] | None = None  # of the member that a checkpoint was in

    @property
    def method(self) -> str:
        return "rescaled"

    def can_restore(self, arrays: dict[str, np.ndarray]) -> bool:
        return "members" not in arrays or "gaussian" in arrays  # attractor 0.2 did not store the solver

    def snapshot(self) -> dict[str, np.ndarray]:
        return super().snapshot() | ({"gaussian": np.array("")} if self.member is None else self.member.snapshot())

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        super().restore(arrays)
        self.stored = arrays if "members" in arrays and str(arrays["gaussian"]) else None

    def advance(self, after_step: Callable[[Integration], None]) -> None:
        self.now = self.execution.clock(self)
        began = self.now - self.seconds
        self.termination.start_budget(self.now, self.field.evaluations)
        while len(self.members):
            stored, self.stored = self.stored, None
            self.member = GaussianMember(self, int(self.members[0]), stored)
            while self.member is not None:
                self.member.step()
                if self.ended[0]:
                    self.member = None
                    self._remove_ended()
                after_step(self)
                self.now = self.execution.clock(self)
                self.seconds = self.now - began
                if self.termination.spent_budget():
                    return

    def set_first(self, time: float, rows: torch.Tensor, accepted: int, rejected: int, evaluations: int) -> None:
        """Set time and state of the first row after a step, and add its costs."""
        self.t[0] = time
        self.y = self.y.clone()
        self.y[0] = rows
        self.accepted, self.rejected = self.accepted + accepted, self.rejected + rejected
        self.field.evaluations += evaluations


class GaussianMember:
    """Integration of one Gaussian, which is the first row of the run."""

    def __init__(self, run: GaussianIntegration, member: int, stored: dict[str, np.ndarray] | None = None) -> None:
        assert isinstance(run.plan.law, Closure)
        self.run, self.member, self.plan = run, member, run.plan
        rows = run.y[0].detach().cpu().double().numpy()
        self.columns = np.flatnonzero(np.abs(rows[1:]).max(axis=1) > 0)
        mean, factor = rows[0], rows[1:][self.columns].T if len(self.columns) else np.zeros((rows.shape[1], 1))
        law = run.plan.law.law.member(torch.tensor([member]))
        self.problem = RescaledGaussian(
            closure_field(law), factor.shape[1], len(mean), self.plan.start, self.plan.until
        )
        self.z = self.problem.pack(mean, factor)
        self.log_size = float(self.z[self.problem.rank * self.problem.dim])
        self.speed = self.problem.rest(mean, factor)
        slope, drift = self.problem.field(0.0 * mean, 0.0 * factor)
        self.offset = float(np.linalg.norm(drift))
        self.repels = not np.linalg.eigvals(slope).real.max() <= SLACK * np.linalg.norm(slope)  # at zero
        self.size = float(np.linalg.norm(rows, axis=1).max())
        self.streak, self.last, self.first_rate = 0, np.inf, self.speed[2]
        self.growth, self.steps, self.asleep, self.stuck, self.advanced = 0.0, 0, 0, 0, 0.0
        self.strongest, self.first_length = self.problem.strength, float(self.z[-2])
        self.stiffness = StiffnessDetector()
        self.solver = self._solver("DOP853")
        if stored is None:
            self._save_until(self.plan.start, None)
        else:
            self._restore(stored)

    def snapshot(self) -> dict[str, np.ndarray]:
        """The state of the member and of its solver, as arrays of a checkpoint."""
        words = {name: getattr(self, name) for name in COUNTERS}
        words["problem"] = {name: getattr(self.problem, name) for name in VARIABLES}
        words["stiffness"], words["method"] = vars(self.stiffness), type(self.solver).__name__
        solver = {name: getattr(self.solver, name, None) for name in SOLVER}
        if words["method"] == "Radau":
            for name in ("LU_real", "LU_complex"):
                parts = getattr(self.solver, name)
                solver |= {} if parts is None else {f"{name}0": parts[0], f"{name}1": parts[1]}
            sol = self.solver.sol
            solver |= (
                {} if sol is None else {f"sol_{name}": getattr(sol, name) for name in ("t_old", "t", "y_old", "Q")}
            )
        arrays = {f"solver_{name}": np.array(value) for name, value in solver.items() if value is not None}
        drift, turned, rate = self.speed
        arrays |= {"speed_drift": drift, "speed_turned": turned, "speed_rate": np.array(rate)}
        return arrays | {"gaussian": np.array(json.dumps(words, default=float))}

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Set the member to a snapshot, in which its last step ends."""
        from scipy.integrate._ivp.radau import RadauDenseOutput

        words, method = json.loads(str(arrays["gaussian"])), ""
        method, problem, stiffness = (words.pop(name) for name in ("method", "problem", "stiffness"))
        vars(self).update(words)
        vars(self.problem).update(problem)
        vars(self.stiffness).update(stiffness)
        solver = {name.removeprefix("solver_"): array for name, array in arrays.items() if name.startswith("solver_")}
        parts: dict[str, Any] = {name: array if array.ndim else array.item() for name, array in solver.items()}
        self.z = parts["y"]
        self.solver = self._solver(method, parts["h_abs"])
        vars(self.solver).update({name: parts.get(name) for name in SOLVER if name in parts or method == "Radau"})
        if method == "Radau":
            self.solver.LU_real, self.solver.LU_complex = (
                (parts[f"{name}0"], parts[f"{name}1"]) if f"{name}0" in parts else None
                for name in ("LU_real", "LU_complex")
            )
            if "sol_Q" in parts:
                self.solver.sol = RadauDenseOutput(*(parts[f"sol_{name}"] for name in ("t_old", "t", "y_old", "Q")))
        self.problem.evaluations, self.problem.strength = problem["evaluations"], problem["strength"]
        self.speed = arrays["speed_drift"], arrays["speed_turned"], float(arrays["speed_rate"])

    def _solver(self, name: str, step: float | None = None) -> Any:
        """A new solver from the present state; ``step`` is its first step."""
        from scipy import integrate

        tau = self.solver.t if self.steps else 0.0
        if name == "Radau":
            rtol, jacobian = LOOSER * self.plan.rtol, self.problem.jacobian
            return integrate.Radau(
                self.problem, tau, self.z, np.inf, rtol=RELATIVE, atol=rtol, jac=jacobian, first_step=step
            )
        options: Any = {"rtol": RELATIVE, "atol": self.plan.rtol, "first_step": step}
        return integrate.DOP853(self.problem, tau, self.z, np.inf, **options)

    def step(self) -> None:
        """Take one step, save what is due, check the rules and choose the method of the next step."""
        run, solver, before = self.run, self.solver, self.problem.evaluations
        old, slope, rate = self.z, np.array(solver.f), self.speed[2]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            failure = solver.step()
        if failure is not None or not np.isfinite(solver.y).all():
            return self._finish(
                Outcome("stalled", self.time, "the step size fell to rounding before the tolerance was met")
            )
        self.z, stepped = solver.y, self.problem.evaluations
        self.speed = self.problem.rest(*self.problem.unpack(self.z))
        tau = solver.t - solver.t_old
        self.growth = np.log(self.speed[2] / rate) / tau
        used = self.problem.evaluations - before
        rejected = max(0, (stepped - before) // 12 - 1) if type(solver).__name__ == "DOP853" else 0
        run.set_first(min(self.time, self.plan.until), self._rows(self.z), 1, rejected, used)
        if self.time >= self.plan.until:
            return self._reach()
        self._save_until(self.time, solver)
        self._check_rules()
        if not run.ended[0] and self._is_stuck(self.z - old - tau * slope, tau):
            return self._give_up()
        self._change_method(old, tau)
        return None

    def _change_method(self, old: np.ndarray, tau: float) -> None:
        """Choose the method and the variables of the next step.

        In a long run the factor is at rest where the covariance is; a stiff problem takes an implicit method; columns are made
        orthogonal when they become parallel.
        """
        self.steps += 1
        self.strongest = max(self.strongest, self.problem.strength)
        explicit, change = type(self.solver).__name__ == "DOP853", self.z[:-1] - old[:-1]
        ahead = self.speed[2] * (self.plan.until - self.time)
        stiff = self.stiffness.is_stiff(change, tau, ahead) if explicit else not self.stiffness.is_over(change, tau)
        parallel = has_parallel_columns(self.problem.unpack(self.z)[1])
        lifted = self.problem.lifted or stiff or self.steps >= LONG
        short = self._is_mean_short()
        if explicit != stiff and not parallel and not short and lifted == self.problem.lifted:
            return
        if short:
            cut, length = (
                self.problem.rank * self.problem.dim + 1,
                float(np.linalg.norm(self.z[self.problem.rank * self.problem.dim + 1 : -2])),
            )
            self.z = np.concatenate((self.z[:cut], self.z[cut:-2] / length, [self.z[-2] + np.log(length), self.z[-1]]))
        if parallel:
            cut = self.problem.rank * self.problem.dim
            shape = self.z[:cut].reshape(self.problem.dim, self.problem.rank)
            self.z = np.concatenate((orthogonalise(shape).ravel(), self.z[cut:]))
        self.problem.lifted, self.problem.implicit, rate = lifted, stiff, self.speed[2]
        # differences need a rate that does not bend within their step
        self.problem.slowest = max(slowest_rate(self.plan.start, self.plan.until), self.strongest if stiff else 0.0)
        self.speed = self.problem.rest(*self.problem.unpack(self.z))
        tau *= self.speed[2] / rate
        self.stiffness = StiffnessDetector() if explicit == stiff else self.stiffness
        self.solver = self._solver("Radau" if stiff else "DOP853", tau)

    def _is_mean_short(self) -> bool:
        """Whether the mean must be renormalised; a mean that tends to zero is not."""
        cut = self.problem.rank * self.problem.dim + 1
        return 0.0 < float(np.linalg.norm(self.z[cut:-2])) < 0.3 and self.z[-2] - self.first_length > FAINTEST

    @property
    def time(self) -> float:
        return self.problem.time(self.z)

    def _rows(self, z: np.ndarray) -> torch.Tensor:
        mean, factor = self.problem.unpack(z)
        rows = np.zeros((len(mean) + 1, len(mean)))
        rows[0] = mean
        if len(self.columns):
            rows[1 + self.columns] = factor.T
        return torch.from_numpy(rows).to(self.run.y)

    # ------------------------------------------------------------------ saved times

    def _save_until(self, time: float, solver: Any) -> None:
        run, members = self.run, np.array([self.member])
        inside: Any = None
        while run.recorder.due(members, np.array([time]))[0]:
            when = float(run.recorder.times[run.recorder.next[self.member]])
            if solver is None or when == self.time:
                z = self.z
            else:
                inside = inside or solver.dense_output()
                z = self._at(when, solver, inside)
            run.recorder.write(members, self._rows(z)[None])

    def _at(self, when: float, solver: Any, inside: Any) -> np.ndarray:
        """The vector at a time inside the last step, where theta(tau) is solved on the interpolant."""
        from scipy.optimize import brentq

        low, high, theta = solver.t_old, solver.t, self.problem.clock(when)
        if inside(low)[-1] >= theta:
            tau = low
        else:
            tau = brentq(lambda tau: float(inside(tau)[-1]) - theta, low, high, xtol=4e-16 * max(1.0, high), rtol=1e-15)  # type: ignore[arg-type]
        z = inside(tau)
        slope = self.problem(tau, z)  # type: ignore[arg-type]
        return z + ((theta - z[-1]) / slope[-1]) * slope

    def _reach(self) -> None:
        """End the member at the requested time, which lies inside the last step."""
        z = self._at(self.plan.until, self.solver, self.solver.dense_output())
        self._save_until(self.plan.until, self.solver)
        message = f"the requested time {self.plan.until:g} was reached"
        self.z = z
        self._finish(Outcome("reached", self.plan.until, message), self.plan.until)

    # ------------------------------------------------------------------ ends

    def _check_rules(self) -> None:
        """Check for blow-up, divergence and the rules of the run, in this order."""
        rate = self.speed[2]
        tail = 1.0 / max(rate * self.growth, TINY)
        if self.growth > 0 and tail <= TAIL * max(abs(self.time), 1.0 / self.first_rate):
            turning = float(np.abs(self._shape_speed()).max())
            if turning < SETTLED or rate > UNSETTLED * self.first_rate:
                return self._finish(self._blow_up(self.time + tail, turning))
            return None
        mean, factor = self.problem.unpack(self.z)
        largest = max(float(np.linalg.norm(mean)), float(np.linalg.norm(factor, axis=0).max()))
        if largest > self.plan.bound:
            return self._finish(self._diverged(mean, factor))
        if self._is_noise(mean, factor):
            return None
        for rule in self.plan.rules:
            self._check_rule(rule)
            if self.run.ended[0]:
                return None
        return None

    def _is_noise(self, mean: np.ndarray, factor: np.ndarray) -> bool:
        """Whether the velocity is below rounding; if so for several steps, end the member."""
        drift, moved, _ = self.speed
        floor = NOISE * self.problem.strength
        asleep = float(np.linalg.norm(moved)) <= floor * float(np.linalg.norm(factor))
        asleep = asleep and float(np.linalg.norm(drift)) <= floor * float(np.linalg.norm(mean))
        self.asleep = self.asleep + 1 if asleep else 0
        if self.asleep < PATIENCE:
            return False
        grown = float(np.exp(self.z[self.problem.rank * self.problem.dim] - self.log_size))
        if grown > FAR:
            message = f"standard deviations grew {grown:.3g}-fold, past what can be told from rest: they grow on, without a sign of blow-up"
            self._finish(Outcome("diverged", self.time, message))
        elif any(isinstance(rule, Steady) for rule in self.plan.rules):
            message = f"nothing moves any more that can be told from rounding at t = {self.time:.6g}, of t = {self.plan.until:g} asked for"
            self._rest(message)
        return bool(self.run.ended[0])

    def _rest(self, message: str) -> None:
        """End the member at rest: its state fills the saved times that are left."""
        run, members = self.run, np.array([self.member])
        while run.recorder.due(members, np.array([self.plan.until]))[0]:
            run.recorder.write(members, self._rows(self.z)[None])
        self._finish(Outcome("steady", self.time, message))

    def _is_stuck(self, bend: np.ndarray, tau: float) -> bool:
        """Whether many short steps along an almost straight path are a small part of what is left: rounding of the law limits them."""
        short = float(np.abs(bend[:-1]).max(initial=0.0)) < STIFF and tau < SHORT
        self.stuck, self.advanced = (self.stuck + 1, self.advanced + tau) if short else (0, 0.0)
        return self.stuck >= STUCK and self.speed[2] * (self.plan.until - self.time) > ENDLESS * self.advanced

    def _give_up(self) -> None:
        """End a member whose steps are limited by rounding: diverged if it has grown, otherwise stalled."""
        sizes = np.linalg.svd(self.problem.unpack(self.z)[1], compute_uv=False)
        grown = float(np.exp(self.z[self.problem.rank * self.problem.dim] - self.log_size))
        ratio = f"{sizes[0] / max(float(sizes[-1]), TINY):.3g}"
        why = f"standard deviations have a ratio of {ratio}, and the rounding of the law limits the steps"
        if grown > FAR:
            self._finish(
                Outcome(
                    "diverged",
                    self.time,
                    f"standard deviations grew {grown:.3g}-fold, without a sign of blow-up; {why}",
                )
            )
        else:
            self._finish(Outcome("stalled", self.time, why))

    def _shape_speed(self) -> np.ndarray:
        """Velocity of the shape of the covariance along tau."""
        _, factor = self.problem.unpack(self.z)
        size = max(float(np.linalg.norm(factor)), TINY)
        shape, moved = factor / size, self.speed[1] / (size * self.speed[2])
        return moved - float(np.vdot(shape, moved)) * shape

    def _blow_up(self, time: float, turning: float) -> Outcome:
        mean, factor = self.problem.unpack(self.z)
        mean_only = float(mean @ mean) > float(np.sum(factor * factor))
        direction = mean / np.linalg.norm(mean) if mean_only else np.linalg.svd(factor)[0][:, 0]
        direction = direction * np.sign(direction[np.abs(direction).argmax()])
        entries = ", ".join(f"{entry:.6g}" for entry in direction)
        sizes = np.linalg.svd(factor, compute_uv=False)
        several = int(np.sum(sizes > 1e-4 * sizes[0])) if not mean_only else 1
        moving = f" and {several - 1} more direction{'s' if several > 2 else ''}" if several > 1 else ""
        moving += "; the shape still turns there" if turning >= SETTLED else ""
        return Outcome(
            "blow_up",
            time,
            f"the covariance goes to infinity at t = {time:.12g}, before the requested t = {self.plan.until:g}, along "
            f"({entries}){moving}",
            tuple(float(entry) for entry in direction),
        )

    def _diverged(self, mean: np.ndarray, factor: np.ndarray) -> Outcome:
        bound = self.plan.bound
        if float(np.linalg.norm(factor, axis=0).max()) > bound:
            what = f"standard deviations grew past {bound:.3g}, without a sign of blow-up in finite time"
        else:
            size = float(np.sum(factor * factor))
            what = f"the mean grew past {bound:.3g} while the covariance has trace {size:.6g}; a mean of zero lets it be followed on"
        return Outcome("diverged", self.time, what)

    def _check_rule(self, rule: Rule) -> None:
        drift, turned, _ = self.speed
        mean, factor = self.problem.unpack(self.z)
        points = torch.from_numpy(np.vstack((mean[None], factor.T)))[None]
        speeds = torch.from_numpy(np.vstack((drift[None], turned.T)))[None]
        when, size = np.array([self.time]), np.array([self.size])
        view = View(when, points, speeds, None, self.plan.space, self.plan.until, size, self.plan.start)
        measure = float(rule.measure(view)[0])
        met = measure <= 1.0
        if isinstance(rule, Steady):
            self.streak = self.streak + 1 if met and measure <= 1.5 * self.last else 0
            self.last = measure
            met = self.streak >= PATIENCE
        elif rule.limit(view) is not None:
            left = self.plan.until - self.time
            met = met and not self.repels and (self.offset <= ROUNDING or self.offset * left <= STILL * self.size)
        if met and isinstance(rule, Steady):
            self._rest(message_of(rule, view))
        elif met and (rule.urgent or not self.run.recorder.pending(self.run.members[:1])[0]):
            self._finish(Outcome(rule.name, self.time, message_of(rule, view)))

    def _finish(self, outcome: Outcome, end: float | None = None) -> None:
        self.run.finish(0, outcome, self._rows(self.z), outcome.time if end is None else end)


def message_of(rule: Rule, view: View) -> str:
    """The message of a rule, worded for a Gaussian."""
    return (
        rule.message(view, 0).replace("all tokens went", "the Gaussian went").replace("no token moves", "nothing moves")
    )
