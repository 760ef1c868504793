r"""Integration of densities on the circle by a spectral method.

The density :math:`f = \frac1{2\pi}\sum_k c_k e^{ik\theta}` of infinitely many tokens solves

.. math:: \partial_t f = -\partial_\theta(u f) + \epsilon\,\partial_\theta^2 f

with the speed u that the law gives to each angle (Vlasov without noise, Fokker-Planck with it). Products are formed on a grid of N
angles and cut off at the order N/3. Noise is integrated exactly: with :math:`g(t) = \int\epsilon`, the method of Dormand and Prince is
applied to :math:`e^{k^2 g(t)}c_k` (an integrating factor). Steps satisfy a tolerance for the error of the coefficients and stay below
:math:`1/(N/3\,\max|u|)`, the limit of stability. :math:`c_0 = 1` exactly.

Without noise clusters become narrower without end. A run ends as "unresolved" where the highest coefficients exceed 1e-8.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.laws import AbsentLaw, CircleField, Law, Schedule, Stack
from attractor.serialization import move_tensors
from attractor.solvers.integration import Execution, Integration, Plan
from attractor.solvers.noise import AbsentNoise, Noise, Redrawn
from attractor.solvers.outcome import Outcome
from attractor.solvers.saving import Recorder, save_times
from attractor.solvers.steppers.stepper import stepper_named
from attractor.solvers.store import Definition
from attractor.solvers.termination import CALM_GROWTH, PATIENCE, Steady
from attractor.spaces import Sphere
from attractor.states import RESOLVED, Density, Tokens, grid_values, modes_tail

# Dormand and Prince 5(4): nodes, rows of A (the last one has the weights of order 5), and the weights of the error
NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
ROWS = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
GAUSS = np.stack(np.polynomial.legendre.leggauss(8), axis=1) / 2.0 + np.array([0.5, 0.0])  # nodes and weights on [0, 1]
RTOL, FINEST = 1e-11, 1e-14  # default and smallest error of the coefficients in a step
FIRST = 1e-4  # first step, relative to the time in which a coefficient changes by one
STABLE = 1.0  # step times speed times highest order
SHRINK, GROW = 0.2, 5.0  # factors of a step
LEAST_STEP = 1e-13  # relative to the time, below which a step is not resolved
TENFOLD = math.log(10.0)
DIFFERENCE = 1e-6  # of the coefficients, in the derivative that judges a rest


class DensityField:
    """The rate of change of Fourier coefficients, and the integral of the strength of noise."""

    def __init__(self, law: Law, size: int, noise: Noise | None) -> None:
        self.law, self.size, self.noise = law, size, noise
        self.orders = np.arange(size // 3 + 1)
        self.evaluations = 0
        self._circle: CircleField | None = None
        self._of: Law | None = None

    def speed(self, values: np.ndarray) -> np.ndarray:
        """Speeds of the angles (members, N)."""
        if self._circle is None or self._of is not self.law:
            self._circle, self._of = CircleField(self.law, self.size), self.law
        self.evaluations += len(values)
        return self._circle.velocity(values)

    def rate(self, modes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rates of the coefficients (members, order + 1) without noise, and the largest speeds (members,)."""
        values = grid_values(modes, self.size)
        speed = self.speed(values)
        flux = np.fft.rfft(speed * values)[:, : len(self.orders)] * (2.0 * np.pi / self.size)
        return -1j * self.orders * flux, np.abs(speed).max(1)

    def spread(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        r"""The integral of the strength of noise between times (members,)."""
        if self.noise is None:
            return np.zeros(len(start))
        if self.noise.constant:
            return self.strength(0.0) * (end - start)
        return np.array(
            [
                (b - a) * sum(weight * self.strength(a + node * (b - a)) for node, weight in GAUSS)
                for a, b in zip(start.tolist(), end.tolist(), strict=True)
            ]
        )

    def strength(self, time: float) -> float:
        """The strength of noise at a time."""
        return 0.0 if self.noise is None else float(self.noise.at(time)[0])

    def total_rate(self, time: float, modes: np.ndarray) -> np.ndarray:
        """Rates with noise."""
        return self.rate(modes)[0] - self.strength(time) * self.orders**2 * modes

    def growth(self, time: float, modes: np.ndarray) -> float:
        """Largest growth rate of a small deviation from a density (order + 1,)."""
        return float(np.linalg.eigvals(self.derivative(time, modes)).real.max())

    def derivative(self, time: float, modes: np.ndarray) -> np.ndarray:
        """Derivative of the rates of c_1, c_2, ..., real parts before imaginary ones, by central differences."""
        count = len(self.orders) - 1
        moves = np.zeros((2 * count, count + 1), dtype=np.complex128)
        moves[np.arange(count), np.arange(1, count + 1)] = DIFFERENCE
        moves[np.arange(count, 2 * count), np.arange(1, count + 1)] = 1j * DIFFERENCE
        found = (self.total_rate(time, modes + moves) - self.total_rate(time, modes - moves))[:, 1:] / (2 * DIFFERENCE)
        return np.concatenate((found.real, found.imag), axis=1).T

    def select(self, index: Tensor | slice) -> None:
        """Members have no parameters of their own."""


class DensityIntegration(Integration):
    """A run of densities: rows of ``y`` (members, order + 1, 2) are real and imaginary parts of Fourier coefficients."""

    def __init__(self, plan: Plan, state: Density, recorder: Recorder, execution: Execution) -> None:
        rows = state.rows().reshape(-1, state.order + 1, 2)
        super().__init__(plan, Tokens.unchecked(rows), recorder, None, execution)
        self.size = state.size
        assert not isinstance(plan.noise, Redrawn)
        self.field: Any = DensityField(plan.law, state.size, plan.noise)

    @property
    def method(self) -> str:
        return "spectral"

    def _enter_segment(self, begin: float, end: float) -> None:
        modes = _complex(self.y)
        rate, speed = self.field.rate(modes)
        self.f = _real(rate)
        change = np.abs(self.field.total_rate(begin, modes)).max(1)
        first = FIRST / np.maximum(change, FIRST / (end - begin))
        self.h = np.minimum(np.minimum(first, self._longest(speed)), end - begin)
        self.execution.engines.add("spectral")
        self._save_due(flush=False)
        self._check(np.ones(len(self.members), dtype=bool))
        self._remove_ended()

    def _longest(self, speed: np.ndarray) -> np.ndarray:
        return STABLE / (len(self.field.orders) * np.maximum(speed, 1e-300))

    def _step(self, begin: float, end: float, implicit: bool = False) -> None:
        t, modes, left = self.t, _complex(self.y), (end - self.t) - self.t_low
        times = np.append(self.recorder.times, np.inf)
        following = times[self.recorder.next[self.members]]  # steps end at times to save
        left = np.where(following > t, np.minimum(left, following - t - self.t_low), left)
        moving = left > 0
        h = np.where(moving, np.where(left < 1.000001 * self.h, left, np.minimum(self.h, left)), 0.0)
        new, rate, error, speed = self._attempt(t, h, modes)
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.clip(0.9 * (error / self.plan.rtol) ** -0.2, SHRINK, GROW)
        factor = np.where(np.isfinite(error) & np.isfinite(factor), factor, np.where(error == 0, GROW, SHRINK))
        accepted = moving & (error <= self.plan.rtol) & (h * speed * len(self.field.orders) <= 1.5 * STABLE)
        grown = np.where(accepted & (h < self.h), np.maximum(h * factor, self.h), h * factor)
        longest = np.where(np.isfinite(speed), self._longest(np.where(np.isfinite(speed), speed, 1.0)), np.inf)
        rejected = moving & ~accepted
        self.h = np.where(moving, np.minimum(grown, longest), self.h)
        self.h = np.where(rejected, np.minimum(self.h, 0.7 * h), self.h)
        self.accepted, self.rejected = self.accepted + int(accepted.sum()), self.rejected + int(rejected.sum())
        arrived = h == left
        target = np.where(arrived, np.where(left == (end - t) - self.t_low, end, t + left), t + h)
        self.t_low = np.where(accepted, np.where(arrived, 0.0, (t - target) + (h + self.t_low)), self.t_low)
        self.t = np.where(accepted, target, t)
        there = accepted & arrived & (np.abs(following - self.t) <= 1e-14 * np.abs(self.t))
        self.t = np.where(there, following, self.t)  # exactly the time to save
        chosen = accepted[:, None]
        self.y, self.f = _real(np.where(chosen, new, modes)), _real(np.where(chosen, rate, _complex(self.f)))
        self.history.restart(self.y, self.f)
        self._save_due(flush=False)
        self._check(accepted)
        for row in np.flatnonzero(rejected & (self.h < LEAST_STEP * np.maximum(np.abs(t), 1e-12)) & ~self.ended):
            message = "the step size fell to rounding before the tolerance was met"
            self.finish(int(row), Outcome("stalled", float(t[row]), message), self.y[row], float(t[row]))
        if end == self.plan.until:
            self._finish_reached(accepted)
        self._remove_ended()

    def _attempt(
        self, t: np.ndarray, h: np.ndarray, modes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Coefficients after steps of lengths h, their rates, the largest errors, and the largest speeds of all stages."""
        squares, rates, speeds = self.field.orders**2, [_complex(self.f)], []
        spread = [self.field.spread(t, t + node * h) for node in NODES]

        def decayed(stage: int, since: int, what: np.ndarray) -> np.ndarray:
            return (
                what if self.plan.noise is None else np.exp(-squares * (spread[stage] - spread[since])[:, None]) * what
            )

        stage_modes = modes
        with np.errstate(over="ignore", invalid="ignore"):
            for stage, row in enumerate(ROWS, 1):
                moved = sum(a * decayed(stage, j, rates[j]) for j, a in enumerate(row) if a)
                stage_modes = decayed(stage, 0, modes) + h[:, None] * moved
                rate, speed = self.field.rate(stage_modes)
                rates.append(rate)
                speeds.append(speed)
            wrong = sum(e * decayed(6, j, rates[j]) for j, e in enumerate(ERROR) if e)
            return stage_modes, rates[-1], np.abs(h[:, None] * wrong).max(1), np.max(speeds, axis=0)

    # ------------------------------------------------------------------ saving and ends

    def points_before(self, rows: np.ndarray, lag: np.ndarray) -> Tensor:
        """Coefficients of some rows; states exist at ends of steps, where those to save are."""
        return self.y[torch.from_numpy(rows)]

    def _save_due(self, flush: bool) -> None:
        while (due := self.recorder.due(self.members, self.t)).any():
            rows = np.flatnonzero(due)
            self.recorder.write(self.members[rows], self.y[torch.from_numpy(rows)])

    def _check(self, accepted: np.ndarray) -> None:
        """End members that are no longer resolved, or at rest."""
        modes = _complex(self.y)
        tails = modes_tail(modes)
        for row in np.flatnonzero(accepted & (tails > RESOLVED)):
            self.finish(
                int(row), self._unresolved(int(row), modes[row], float(tails[row])), self.y[row], float(self.t[row])
            )
        rule = next((rule for rule in self.plan.rules if isinstance(rule, Steady)), None)
        if rule is None:
            return
        rates = _complex(self.f)
        for row in np.flatnonzero(accepted & ~self.ended):
            self._check_rest(int(row), rule, modes[row], rates[row])

    def _unresolved(self, row: int, modes: np.ndarray, tail: float) -> Outcome:
        order, time = len(modes) - 1, float(self.t[row])
        peaks = int(Density.uniform(self.size).with_points(_real(modes)).peaks())
        what = f"{peaks} peak{'s' if peaks != 1 else ''}"
        return Outcome(
            "unresolved",
            time,
            f"the density, with {what}, became narrower than a grid of {self.size} angles resolves: Fourier coefficients at the order "
            f"{order} reached {tail:.2g}; give more angles, or noise",
        )

    def _check_rest(self, row: int, rule: Steady, modes: np.ndarray, rate: np.ndarray) -> None:
        """End a member where nothing moves, and no deviation grows tenfold in the time over which a rest is judged."""
        time, ends = float(self.t[row]), self.termination
        total = rate - self.field.strength(time) * self.field.orders**2 * modes
        speed = float(np.abs(total).max())
        horizon = max(self.plan.until - time, time - self.plan.start)
        calm = speed * horizon <= rule.tolerance * 1e2 and speed <= CALM_GROWTH * ends.last[row]
        ends.last[row] = max(speed, 1e-300)
        ends.streak[row] = ends.streak[row] + 1 if calm else 0
        pending = self.recorder.pending(self.members[row : row + 1])[0]
        if ends.streak[row] < PATIENCE or time < ends.hold[row] or pending:
            return
        growth = self.field.growth(time, modes)
        if growth * horizon > TENFOLD:
            ends.hold[row] = time + 0.1 * horizon
            return
        message = (
            f"the density moves no more: its Fourier coefficients change by at most {speed:.3g} per unit of time at t = {time:.6g}, of "
            f"t = {self.plan.until:g} asked for, and no deviation grows faster than {max(growth, 0.0):.2g}"
        )
        self.finish(row, Outcome("steady", time, message), self.y[row], time)


def _complex(rows: Tensor) -> np.ndarray:
    return torch.view_as_complex(rows.contiguous()).numpy()


def _real(modes: np.ndarray) -> Tensor:
    return torch.view_as_real(torch.from_numpy(np.ascontiguousarray(modes))).clone()


def prepare_density(
    definition: Definition,
    interval: tuple[float, float],
    budget: tuple[float | None, float | None],
    execution: Execution,
    differentiable: bool,
) -> DensityIntegration:
    """Check the definition of a run of a density and return its integration."""
    law, state, options, noise = definition.law, definition.state, definition.options, definition.noise
    assert law is not None
    assert isinstance(state, Density)
    if not isinstance(definition.space, Sphere) or definition.space.radius != 1.0:
        raise UnsupportedError(f"a density lives on the unit circle: give space=Sphere(), got {definition.space!r}")
    if differentiable:
        raise UnsupportedError("gradients do not flow through the spectral method: detach the law")
    if isinstance(law, (Schedule, Stack)) or not (law.autonomous or isinstance(law, AbsentLaw)):
        raise UnsupportedError("a density is moved by a law that does not depend on time; move tokens instead")
    law = move_tensors(law, torch.device("cpu"))
    if not isinstance(law, AbsentLaw):
        if law.dim not in (2, None):
            raise InputError(
                f"a density on the circle has dimension 2, and the law moves tokens of dimension {law.dim}: give a law with dim=2"
            )
        CircleField(law, 12)  # raises for laws that have no density
    _check_options(options, definition.events or ())
    noise = _checked_noise(noise, state, float(options["start"]))
    start, until = interval
    rtol = RTOL if options["rtol"] is None else float(options["rtol"])
    if not FINEST <= rtol < 1:
        raise InputError(f"rtol must be between {FINEST:g} and 1, got {rtol:g}")
    for name, amount in zip(("max_seconds", "max_evaluations"), budget, strict=True):
        if amount is not None and not amount > 0:
            raise InputError(f"{name} must be positive, got {amount}")
    plan = Plan(
        law=law,
        space=definition.space,
        start=start,
        until=until,
        stepper=stepper_named("dopri5"),
        implicit=None,
        rtol=rtol,
        atol=rtol,
        step=None,
        adaptive=True,
        rules=_rules(options["stop"], noise),
        bound=math.inf,
        max_seconds=math.inf if budget[0] is None else float(budget[0]),
        max_evaluations=math.inf if budget[1] is None else float(budget[1]),
        noise=noise,
    )
    members = state.batch_shape.numel()
    times, explicit = save_times(options["save"], start, until, 16 * (state.order + 1) * members)
    rows = state.rows().reshape(members, state.order + 1, 2)
    return DensityIntegration(plan, state, Recorder(times, explicit, members, rows), execution)


def _check_options(options: dict[str, Any], events: tuple[Any, ...]) -> None:
    for name in ("method", "atol", "step", "engine"):
        if options[name] is not None:
            raise UnsupportedError(
                f"a density is moved by a spectral method whose steps satisfy rtol: leave out {name}"
            )
    if not options["adaptive"]:
        raise UnsupportedError("the spectral method of densities adapts its steps: leave out adaptive")
    if options["merge"] not in (None, False):
        raise UnsupportedError("a density has no tokens that could be merged: leave out merge")
    if events:
        raise UnsupportedError("events are functions of tokens; look at the saved densities instead")


def _checked_noise(noise: Any, state: Density, start: float) -> Noise | None:
    if noise is None or isinstance(noise, AbsentNoise):
        return None
    if not isinstance(noise, Noise):
        raise InputError(f"noise must be Noise(strength), got {type(noise).__name__}")
    if noise.has_common:
        raise UnsupportedError("common noise makes the density random: give independent noise, or move tokens")
    strength, _ = noise.at(start)
    if strength.ndim:
        raise InputError(f"the noise of a density has one strength, got one of shape {tuple(strength.shape)}")
    return noise


def _rules(stop: Any, noise: Noise | None) -> tuple[Steady, ...]:
    """The rule that ends a run at rest."""
    if stop is None:
        return (Steady(),) if noise is None or noise.constant else ()
    found: list[Steady] = []
    for rule in [stop] if isinstance(stop, (str, Steady)) else list(stop):
        if rule != "steady" and not isinstance(rule, Steady):
            raise UnsupportedError(f"a run of a density is ended by 'steady' only, got {rule!r}")
        found.append(rule if isinstance(rule, Steady) else Steady())
    return tuple(found)
