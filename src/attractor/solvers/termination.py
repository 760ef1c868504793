"""Termination: stopping rules, events, bounds and budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import proxy

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.registry import find
from attractor.serialization import Record
from attractor.solvers.outcome import EventRecord, Outcome
from attractor.spaces import Space
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration


@dataclass(frozen=True)
class View:
    """What a rule looks at after a step: times (members,), points and velocities (members, n, d).

    ``alive`` marks rows that are tokens (rows of merged tokens are not), ``size`` is the largest token norm at the start.
    """

    t: np.ndarray
    points: Tensor
    velocities: Tensor
    alive: Tensor | None
    space: Space
    until: float
    size: np.ndarray

    def largest(self, values: Tensor) -> np.ndarray:
        """Largest value over the tokens of each member."""
        values = values.detach() if self.alive is None else values.detach().masked_fill(~self.alive, 0.0)
        return values.amax(-1).cpu().double().numpy()

    def norms(self) -> np.ndarray:
        return self.largest(torch.linalg.vector_norm(self.points, dim=-1))

    def speeds(self) -> np.ndarray:
        return self.largest(torch.linalg.vector_norm(self.velocities, dim=-1))


class Rule(Record):
    """A reason to stop: ``measure`` falls below one when it holds; an ``urgent`` one ends a Gaussian that owes saved times too."""

    name: ClassVar[str] = ""
    urgent: ClassVar[bool] = False

    def measure(self, view: View) -> np.ndarray:
        """How far from stopping each member is, as a multiple of what counts as there."""
        raise NotImplementedError

    def message(self, view: View, index: int) -> str:
        raise NotImplementedError

    def limit(self, view: View) -> Tensor | None:
        """The state (members, n, d) that a run approaches when the rule holds, if it may still travel; else None."""
        return None


@dataclass(frozen=True)
class Consensus(Rule):
    """All tokens within ``tolerance`` of each other, relative to their size."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "consensus"

    def measure(self, view: View) -> np.ndarray:
        points = view.points.detach()
        # twice the distance to any one token bounds the diameter; row 0 always stands for a token
        gap = 2.0 * view.largest(torch.linalg.vector_norm(points - points[:, :1], dim=-1))
        return gap / (self.tolerance * np.maximum(view.norms(), TINY))

    def message(self, view: View, index: int) -> str:
        return f"all tokens came together, within {self.tolerance:.3g} of each other"

    def limit(self, view: View) -> Tensor:
        return view.points.detach()[:, :1].expand_as(view.points)


@dataclass(frozen=True)
class Collapse(Rule):
    """All tokens within ``tolerance`` times the initial size of zero, and as slow."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "collapsed"

    def measure(self, view: View) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # both are infinite once squares overflow; NaN does not stop a run
            # tokens that pass through zero, or start there, are on their way elsewhere: they must be slow as well
            return np.maximum(view.norms(), view.speeds()) / (self.tolerance * np.maximum(view.size, TINY))

    def message(self, view: View, index: int) -> str:
        return f"all tokens went to zero: no norm is above {self.tolerance:.3g} of the largest at the start"

    def limit(self, view: View) -> Tensor:
        return torch.zeros_like(view.points)


@dataclass(frozen=True)
class Steady(Rule):
    """No token moves any more: at its present speed none moves by ``tolerance`` of its size before the end and speeds do not
    grow; or all have stayed within the integrator's own noise for as long as there is time left."""

    tolerance: float = 1e-10
    name: ClassVar[str] = "steady"

    def measure(self, view: View) -> np.ndarray:
        left = np.maximum(view.until - view.t, 1.0)
        return view.speeds() * left / (self.tolerance * np.maximum(view.norms(), TINY))

    def message(self, view: View, index: int) -> str:
        speed, time = float(view.speeds()[index]), float(view.t[index])
        return f"no token moves any more: the largest speed is {speed:.3g} at t = {time:.6g}, of t = {view.until:g} asked for"


@dataclass(frozen=True)
class Event(Rule):
    """A stop of the user's: ``function(tokens, time) -> float`` for one member; the run ends when it falls to zero or below.

    With ``terminal=False`` the crossing is only logged.
    """

    function: Callable[[Tokens, float], Any]
    label: str = "event"
    terminal: bool = True
    name: ClassVar[str] = "event"

    def message(self, view: View, index: int) -> str:
        return f"the event {self.label!r} happened"

    def value(self, tokens: Tokens, time: float) -> float:
        return float(self.function(tokens, time))


def rules_from(
    stop: Sequence[str | Rule] | None, space: Space, autonomous: bool, rtol: float, atol: float, n: int
) -> list[Rule]:
    """The rules that apply: the space's own by default, or those named.

    Below the tolerance of the integrator distances are noise, so the defaults stay above it.
    """
    consensus = Consensus(max(1e-9, 20.0 * rtol))
    collapse = Collapse(max(1e-7, 100.0 * atol))
    named: dict[str, Rule] = {"consensus": consensus, "collapsed": collapse, "steady": Steady()}
    if stop is None:
        default = ([consensus] if space.curved and n > 1 else []) + ([] if space.curved else [collapse])
        return [*default, *([Steady()] if autonomous else [])]
    rules: list[Rule] = []
    for rule in [stop] if isinstance(stop, (str, Rule)) else stop:
        if isinstance(rule, Event):
            raise InputError(f"the event {rule.label!r} was given as a stop; give it as events=[...]")
        if not isinstance(rule, (str, Rule)):
            raise InputError(f"a stop is one of {', '.join(named)} or a Rule, got {type(rule).__name__}")
        rules.append(find(rule, named, "stop") if isinstance(rule, str) else rule)
    return rules


TINY = 1e-300  # least norm that is divided by
PATIENCE = 5  # steps in a row a run must look steady
BISECTIONS = 60
ROUNDING = 1e-14  # speed that cannot be told from rest
STILL = 1e-9  # way, relative to its size, that a limit at rest may still go
REST = 50  # steps for which a run must have stayed in one place to be called steady
NOISE = 10.0  # what counts as one place, in tolerances
CALM_GROWTH = 1.5  # factor by which the speed of a steady run may grow from one step to the next
LEAST_TIME = 1e-12  # time whose floating-point spacing is the least that steps are compared with
LEAST_MOVE = 1e-15  # relative move of a token below which a step does nothing
UNRESOLVED_SPACINGS, FAILED_SPACINGS = 4.0, 16.0  # shortest accepted step, and step size, in spacings of the time


class Termination:
    """Looks at an integration after every step; ``noted`` holds what was seen while saved states are still owed."""

    def __init__(self, rules: tuple[Rule, ...], events: tuple[Event, ...], bound: float, run: Integration) -> None:
        # a run that owned itself through its watch would keep its arrays until Python looks for cycles
        self.run: Integration = proxy(run)
        self.rules, self.events, self.bound = rules, events, bound
        members = len(run.who)
        points = run.y.detach()
        # only rules ask how large the tokens were at the start
        largest = torch.linalg.vector_norm(points, dim=-1).amax(-1) if rules else points.new_zeros(members)
        self.size = largest.cpu().double().numpy()
        self.streak = np.zeros(members, dtype=np.int64)
        self.last = np.full(members, np.inf)
        self.anchor = points.clone()
        self.anchor_t = run.t.copy()
        self.rest = np.zeros(members, dtype=np.int64)
        self.noted: dict[int, Outcome] = {}
        self.values: dict[tuple[int, int], float] = {}
        self.log: list[EventRecord] = []
        self.opened = (0.0, 0)

    def view(self, points: Tensor | None = None, rows: np.ndarray | None = None) -> View:
        """What the rules see of some rows, at points that may be interpolated."""
        run = self.run
        if rows is None:
            velocities, size = run.f, self.size[run.who]
            return View(
                run.t, run.y if points is None else points, velocities, run.alive, run.plan.space, run.plan.until, size
            )
        index = torch.from_numpy(rows).to(run.y.device)
        alive = None if run.alive is None else run.alive[index]
        points = run.y[index] if points is None else points
        return View(run.t[rows], points, run.f[index], alive, run.plan.space, run.plan.until, self.size[run.who[rows]])

    def consider(self, accepted: np.ndarray, taken: np.ndarray, first: bool = False) -> None:
        """Ask the bound, the user's events and the rules, in that order, after steps of length ``taken``."""
        run, view = self.run, self.view()
        if not run.plan.space.curved:
            self._check_bound(view, accepted, taken)
        for number, event in enumerate(self.events):
            for row in np.flatnonzero(accepted & ~run.ended):
                self._user_event(number, event, int(row), float(taken[row]))
        for rule in self.rules:
            measure = rule.measure(view)
            met = (measure <= 1.0) & accepted & ~run.ended
            if isinstance(rule, Steady):
                met = (met & self._patient(measure, accepted & (not first))) | (
                    self._resting(accepted) & ~run.ended & (not first)
                )
            for row in np.flatnonzero(accepted & ~met & ~run.ended):
                noted = self.noted.get(int(run.who[row]))
                if noted is not None and noted.name == rule.name:
                    del self.noted[int(run.who[row])]
            for row in np.flatnonzero(met):
                self._met(rule, view, int(row), float(taken[row]))

    def _patient(self, measure: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """A run is steady after several steps in a row whose speeds are small and do not grow."""
        calm = (measure <= 1.0) & (measure <= CALM_GROWTH * self.last)
        self.streak = np.where(accepted, np.where(calm, self.streak + 1, 0), self.streak)
        self.last = np.where(accepted, measure, self.last)
        return self.streak >= PATIENCE

    def _resting(self, accepted: np.ndarray) -> np.ndarray:
        """Members whose tokens have stayed within the integrator's own noise for as long as there is time left.

        Near a stable equilibrium an explicit method takes steps at its limit of stability, and speeds stay at its tolerance. The
        noise excites whatever is unstable, and what did not grow tenfold in that time does not in as long again.
        """
        run = self.run
        points = run.y.detach()
        if self.anchor.shape != points.shape:
            self.anchor, self.anchor_t = points.clone(), run.t.copy()
            self.rest = np.zeros(len(run.who), dtype=np.int64)
        allowed = NOISE * run.control.scale(points)
        away = torch.linalg.vector_norm(points - self.anchor, dim=-1) > allowed
        away = (away if run.alive is None else away & run.alive).any(-1)
        moved = away.cpu().numpy() & accepted
        if moved.any():
            self.anchor = torch.where(torch.from_numpy(moved).to(points.device).view(-1, 1, 1), points, self.anchor)
            self.anchor_t = np.where(moved, run.t, self.anchor_t)
        self.rest = np.where(moved, 0, self.rest + accepted)
        return accepted & (self.rest >= REST) & (run.t - self.anchor_t >= run.plan.until - run.t)

    def _met(self, rule: Rule, view: View, row: int, taken: float) -> None:
        """A rule holds; a run that owes saved states goes on and remembers it."""
        run, member = self.run, int(self.run.who[row])
        noted = self.noted.get(member)
        when, points = (float(run.t[row]), run.y[row]) if noted else self._locate(rule, row, taken)
        outcome = noted or Outcome(rule.name, when, rule.message(view, row))
        if run.recorder.pending(run.who[row : row + 1])[0] or not self._final(rule, row):
            self.noted[member] = outcome
        else:
            run.finish(row, outcome, points, when)

    def _final(self, rule: Rule, row: int) -> bool:
        """Whether the limit a rule sees is a state of rest: tokens that agree may still travel together."""
        run = self.run
        limit = rule.limit(self.view(rows=np.array([row])))
        if limit is None:
            return True
        if not run.plan.law.autonomous:
            return False
        drift = run.field.one(row).velocity(run.t[row : row + 1], limit)
        run.field.evaluations += 1
        speed = float(torch.linalg.vector_norm(drift, dim=-1).max())
        return speed <= ROUNDING or speed * (run.plan.until - float(run.t[row])) <= STILL * float(
            limit.norm(dim=-1).max()
        )

    def _locate(self, rule: Rule, row: int, taken: float) -> tuple[float, Tensor]:
        """The time inside the last step when a rule began to hold."""
        run, rows = self.run, np.array([row])
        alone = run.alive is not None and int(run.alive[row].sum()) == 1

        def holds(lag: float) -> bool:
            return bool(rule.measure(self.view(run.back(rows, np.array([lag])), rows))[0] <= 1.0)

        discrete = run.plan.stepper.name == "layers"
        if isinstance(rule, Steady) or alone or discrete or taken == 0.0 or holds(-taken):
            return float(run.t[row]), run.y[row]
        lag = _first(holds, taken)
        return float(run.t[row]) + lag, run.back(rows, np.array([lag]))[0]

    def _user_event(self, number: int, event: Event, row: int, taken: float) -> None:
        run, rows, member = self.run, np.array([row]), int(self.run.who[row])

        def value(lag: float) -> float:
            points = run.y[row] if lag == 0.0 else run.back(rows, np.array([lag]))[0]
            return event.value(run.original_tokens(points, row), float(run.t[row]) + lag)

        now = value(0.0)
        last = self.values.get((number, member), now)
        self.values[number, member] = now
        if last <= 0 or now > 0:
            return
        lag = 0.0 if run.plan.stepper.name == "layers" else _first(lambda back: value(back) <= 0, taken)
        when = float(run.t[row]) + lag
        self.log.append(EventRecord(event.label, when, member=member))
        if event.terminal:
            points = run.y[row] if lag == 0.0 else run.back(rows, np.array([lag]))[0]
            run.finish(row, Outcome("event", when, f"the event {event.label!r} happened"), points, when)

    def _check_bound(self, view: View, accepted: np.ndarray, taken: np.ndarray) -> None:
        run = self.run
        unresolved = (taken > 0) & (taken < UNRESOLVED_SPACINGS * np.spacing(np.maximum(np.abs(run.t), LEAST_TIME)))
        for row in np.flatnonzero(accepted & unresolved):
            outcome = self._blow_up(int(row))
            if outcome is not None:
                run.finish(int(row), outcome, run.y[row], float(run.t[row]))
        accepted = accepted & ~run.ended
        for row in np.flatnonzero(accepted & ~(view.norms() <= self.bound)):
            message = f"token norms grew past {self.bound:.3g}, without a sign of blow-up in finite time"
            outcome = self._blow_up(int(row)) or Outcome("diverged", float(run.t[row]), message)
            run.finish(int(row), outcome, run.y[row], float(run.t[row]))

    def _blow_up(self, row: int) -> Outcome | None:
        """Blow-up, if norms grow at a rate that time cannot resolve."""
        run, time = self.run, float(self.run.t[row])
        x, v = run.y[row].detach(), run.f[row].detach()
        size = x.abs().amax().clamp_min(TINY)
        growth = float((((x / size) * (v / size)).sum(-1) / ((x / size) ** 2).sum(-1).clamp_min(TINY)).max())
        if run.plan.space.curved or not growth * max(abs(time), 1e-6) > 1e6:
            return None
        return Outcome(
            "blow_up", time, f"token norms go to infinity in finite time: at the end they grow at rate {growth:.3g}"
        )

    def fail(self, rejected: np.ndarray) -> None:
        """End members whose steps fell to rounding, or whose fixed step left the finite numbers."""
        run = self.run
        if not rejected.any():
            return
        if run.plan.space.curved and run.plan.law.autonomous:
            # the clock resolves any step, so what counts is whether a step still moves a token
            view = self.view()
            # no step helps where the field is not finite; its squares may overflow before
            finite = torch.isfinite(run.f).flatten(1).all(1).cpu().numpy()
            low = (run.h * view.speeds() < LEAST_MOVE * view.norms()) | ~finite
        else:
            low = run.h < FAILED_SPACINGS * np.spacing(np.maximum(np.abs(run.t), LEAST_TIME))
        for row in np.flatnonzero(rejected & (low if run.plan.adaptive else True)):
            run.finish(int(row), self._verdict(int(row)), run.y[row], float(run.t[row]))

    def _verdict(self, row: int) -> Outcome:
        """Why a step fell to rounding."""
        run, time = self.run, float(self.run.t[row])
        blow_up = self._blow_up(row)
        if blow_up is not None:
            return blow_up
        if not run.plan.adaptive:
            return Outcome(
                "stalled", time, f"the fixed step {run.plan.step:g} left the finite numbers; use a smaller one"
            )
        if not bool(torch.isfinite(run.f[row]).all()):
            return Outcome(
                "stalled", time, "velocities are not finite here: the law overflows, or its parameters are no numbers"
            )
        message = "the step size fell to rounding before the tolerance was met; the law may not be smooth here"
        return Outcome("stalled", time, message)

    def open_budget(self, now: float, evaluations: int) -> None:
        """Budgets count from here: a resumed run gets a new one."""
        self.opened = (now, evaluations)

    def spent(self) -> str:
        """Which budget is spent, or nothing."""
        plan = self.run.plan
        if self.run.now - self.opened[0] > plan.max_seconds:
            return f"{plan.max_seconds:g} seconds"
        if self.run.field.evaluations - self.opened[1] > plan.max_evaluations:
            return f"{plan.max_evaluations:g} evaluations"
        return ""

    def keep(self, index: Tensor | slice) -> None:
        """Go on with some rows only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.streak, self.last = self.streak[chosen], self.last[chosen]
        self.anchor_t, self.rest = self.anchor_t[chosen], self.rest[chosen]
        self.anchor = self.anchor[index]


def _first(holds: Callable[[float], bool], taken: float) -> float:
    """The (negative) time before the end of a step at which a condition begins to hold, by bisection."""
    low, high = -taken, 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
