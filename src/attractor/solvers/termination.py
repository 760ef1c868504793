"""Termination: stopping rules, events, bounds and budgets."""

from __future__ import annotations

import json
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
from attractor.solvers.saving import to_numpy, to_tensor
from attractor.spaces import Space
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration


@dataclass(frozen=True)
class View:
    """State of some members after a step, as a stopping rule receives it.

    Attributes
    ----------
    t : times (members,).
    points, velocities : (members, n, d).
    alive : which points stand for tokens, (members, n); None if all do. Merging leaves some without a token.
    space : the space of the run.
    until : the end of the run.
    size : largest token norm of each member at the start, (members,).
    """

    t: np.ndarray
    points: Tensor
    velocities: Tensor
    alive: Tensor | None
    space: Space
    until: float
    size: np.ndarray

    def largest(self, values: Tensor) -> np.ndarray:
        """Largest value (members, n) over the tokens of each member, (members,)."""
        values = values.detach() if self.alive is None else values.detach().masked_fill(~self.alive, 0.0)
        return values.amax(-1).cpu().double().numpy()

    def norms(self) -> np.ndarray:
        """Largest token norm of each member."""
        return self.largest(torch.linalg.vector_norm(self.points, dim=-1))

    def speeds(self) -> np.ndarray:
        """Largest speed of a token of each member."""
        return self.largest(torch.linalg.vector_norm(self.velocities, dim=-1))


class Rule(Record):
    """A stopping rule, which holds where ``measure`` is at most one.

    A rule ends a run once all saved times that the user chose are reached; an ``urgent`` rule ends a Gaussian before.
    """

    name: ClassVar[str] = ""
    urgent: ClassVar[bool] = False

    def measure(self, view: View) -> np.ndarray:
        """Distance of each member from stopping, in units of the rule's tolerance, (members,)."""
        raise NotImplementedError

    def message(self, view: View, index: int) -> str:
        """Why member ``index`` of the view stopped."""
        raise NotImplementedError

    def limit(self, view: View) -> Tensor | None:
        """The state (members, n, d) that a run approaches where the rule holds; None if that is its present state."""
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
            # tokens that only pass through zero, or start there, are fast
            return np.maximum(view.norms(), view.speeds()) / (self.tolerance * np.maximum(view.size, TINY))

    def message(self, view: View, index: int) -> str:
        return f"all tokens went to zero: no norm is above {self.tolerance:.3g} of the largest at the start"

    def limit(self, view: View) -> Tensor:
        return torch.zeros_like(view.points)


@dataclass(frozen=True)
class Steady(Rule):
    """No token moves any more.

    At its present speed no token moves by ``tolerance`` of its size before the end, and speeds do not grow; or all tokens have
    stayed within the integration error for as long as there is time left.
    """

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
    """An event of the user: the time at which ``function(tokens, time)`` of one member falls to zero or below.

    Parameters
    ----------
    function : returns a number for the tokens (n, d) of one member at one time.
    label : name of the event in the log and in the outcome.
    terminal : whether the event ends the run; otherwise it is only logged.
    """

    function: Callable[[Tokens, float], Any]
    label: str = "event"
    terminal: bool = True
    name: ClassVar[str] = "event"

    def message(self, view: View, index: int) -> str:
        return f"the event {self.label!r} happened"

    def value(self, tokens: Tokens, time: float) -> float:
        """Value of the function as a number."""
        return float(self.function(tokens, time))


def select_rules(
    stop: Sequence[str | Rule] | None, space: Space, autonomous: bool, rtol: float, atol: float, n: int
) -> list[Rule]:
    """Return the stopping rules of a run: those of the user, or the defaults for the space.

    Below the tolerance of the integration distances are errors, so the default tolerances stay above it.
    """
    consensus = Consensus(max(1e-9, 20.0 * rtol))
    collapse = Collapse(max(1e-7, 100.0 * atol))
    named: dict[str, Rule] = {"consensus": consensus, "collapsed": collapse, "steady": Steady()}
    if stop is None:
        default = ([consensus] if space.is_curved and n > 1 else []) + ([] if space.is_curved else [collapse])
        return [*default, *([Steady()] if autonomous else [])]
    rules: list[Rule] = []
    for rule in [stop] if isinstance(stop, (str, Rule)) else stop:
        if isinstance(rule, Event):
            raise InputError(f"the event {rule.label!r} was given as a stop; give it as events=[...]")
        if not isinstance(rule, (str, Rule)):
            raise InputError(f"a stop is one of {', '.join(named)} or a Rule, got {type(rule).__name__}")
        rules.append(find(rule, named, "stop") if isinstance(rule, str) else rule)
    return rules


TINY = 1e-300  # smallest divisor
PATIENCE = 5  # consecutive steps whose speeds must be small and not grow
CALM_GROWTH = 1.5  # factor by which a speed may exceed the last one and still count as not growing
BISECTIONS = 60
ROUNDING = 1e-14  # speed below which a state counts as at rest
STILL = 1e-9  # distance, relative to its size, that a limit at rest may still move until the end
REST = 50  # consecutive steps near one point after which a run can be steady
NOISE = 10.0  # radius of "near", in tolerances
UNRESOLVED_SPACINGS = 4.0  # spacings of floating-point times below which an accepted step is not resolved
FAILED_SPACINGS = 16.0  # spacings of floating-point times below which a rejected step has failed
LEAST_MOVE = 1e-15  # relative motion of a step on a curved space below which a rejected step has failed
LEAST_TIME = 1e-12  # times closer to zero than this have the spacing of this one


class Termination:
    """Decides after every step which members of a run end.

    ``deferred`` has the outcomes of members for which a rule holds while saved times that the user chose are not reached yet.
    """

    def __init__(self, rules: tuple[Rule, ...], events: tuple[Event, ...], bound: float, run: Integration) -> None:
        # a reference cycle would keep the arrays of a run until the next garbage collection
        self.run: Integration = proxy(run)
        self.rules, self.events, self.bound = rules, events, bound
        members = len(run.members)
        points = run.y.detach()
        largest = torch.linalg.vector_norm(points, dim=-1).amax(-1) if rules else points.new_zeros(members)
        self.size = largest.cpu().double().numpy()
        self.streak = np.zeros(members, dtype=np.int64)
        self.last = np.full(members, np.inf)
        self.anchor = points.clone()
        self.anchor_t = run.t.copy()
        self.rest = np.zeros(members, dtype=np.int64)
        self.deferred: dict[int, Outcome] = {}
        self.values: dict[tuple[int, int], float] = {}
        self.log: list[EventRecord] = []
        self.budget_start = (0.0, 0)  # seconds and evaluations

    def view(self, points: Tensor | None = None, rows: np.ndarray | None = None) -> View:
        """The view of some rows (all by default), at given points (their last ones by default)."""
        run = self.run
        if rows is None:
            velocities, size = run.f, self.size[run.members]
            return View(
                run.t, run.y if points is None else points, velocities, run.alive, run.plan.space, run.plan.until, size
            )
        index = torch.from_numpy(rows).to(run.y.device)
        alive = None if run.alive is None else run.alive[index]
        points = run.y[index] if points is None else points
        return View(
            run.t[rows], points, run.f[index], alive, run.plan.space, run.plan.until, self.size[run.members[rows]]
        )

    def check(self, accepted: np.ndarray, taken: np.ndarray, first: bool = False) -> None:
        """Check the bound, the user's events and the rules, in that order, after steps of length ``taken``."""
        run, view = self.run, self.view()
        if not run.plan.space.is_curved:
            self._check_bound(view, accepted, taken)
        for number, event in enumerate(self.events):
            for row in np.flatnonzero(accepted & ~run.ended):
                self._check_event(number, event, int(row), float(taken[row]))
        for rule in self.rules:
            measure = rule.measure(view)
            met = (measure <= 1.0) & accepted & ~run.ended
            if isinstance(rule, Steady):
                met = (met & self._is_slow(measure, accepted & (not first))) | (
                    self._is_resting(accepted) & ~run.ended & (not first)
                )
            for row in np.flatnonzero(accepted & ~met & ~run.ended):
                deferred = self.deferred.get(int(run.members[row]))
                if deferred is not None and deferred.name == rule.name:
                    del self.deferred[int(run.members[row])]
            for row in np.flatnonzero(met):
                self._apply_rule(rule, view, int(row), float(taken[row]))

    def _is_slow(self, measure: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """Which rows have taken several consecutive steps with speeds that are small and do not grow."""
        calm = (measure <= 1.0) & (measure <= CALM_GROWTH * self.last)
        self.streak = np.where(accepted, np.where(calm, self.streak + 1, 0), self.streak)
        self.last = np.where(accepted, measure, self.last)
        return self.streak >= PATIENCE

    def _is_resting(self, accepted: np.ndarray) -> np.ndarray:
        """Which rows have stayed within the integration error of one point for as long as there is time left.

        Near a stable equilibrium an explicit method takes steps at its limit of stability, and speeds stay at its tolerance. The
        errors excite unstable directions, so a deviation that has not grown tenfold so far will not in the time left.
        """
        run = self.run
        points = run.y.detach()
        if self.anchor.shape != points.shape:
            self.anchor, self.anchor_t = points.clone(), run.t.copy()
            self.rest = np.zeros(len(run.members), dtype=np.int64)
        allowed = NOISE * run.control.tolerance(points)
        away = torch.linalg.vector_norm(points - self.anchor, dim=-1) > allowed
        away = (away if run.alive is None else away & run.alive).any(-1)
        moved = away.cpu().numpy() & accepted
        if moved.any():
            self.anchor = torch.where(torch.from_numpy(moved).to(points.device).view(-1, 1, 1), points, self.anchor)
            self.anchor_t = np.where(moved, run.t, self.anchor_t)
        self.rest = np.where(moved, 0, self.rest + accepted)
        return accepted & (self.rest >= REST) & (run.t - self.anchor_t >= run.plan.until - run.t)

    def _apply_rule(self, rule: Rule, view: View, row: int, taken: float) -> None:
        """End a member for which a rule holds, or defer that while it has saved times to reach or its limit still moves."""
        run, member = self.run, int(self.run.members[row])
        deferred = self.deferred.get(member)
        when, points = (float(run.t[row]), run.y[row]) if deferred else self._locate(rule, row, taken)
        outcome = deferred or Outcome(rule.name, when, rule.message(view, row))
        if run.recorder.pending(run.members[row : row + 1])[0] or not self._limit_rests(rule, row):
            self.deferred[member] = outcome
        else:
            run.finish(row, outcome, points, when)

    def _limit_rests(self, rule: Rule, row: int) -> bool:
        """Whether the limit of a rule is at rest: tokens that agree may still move together."""
        run = self.run
        limit = rule.limit(self.view(rows=np.array([row])))
        if limit is None:
            return True
        if not run.plan.law.autonomous:
            return False
        drift = run.field.member(row).velocity(run.t[row : row + 1], limit)
        run.field.evaluations += 1
        speed = float(torch.linalg.vector_norm(drift, dim=-1).max())
        return speed <= ROUNDING or speed * (run.plan.until - float(run.t[row])) <= STILL * float(
            limit.norm(dim=-1).max()
        )

    def _locate(self, rule: Rule, row: int, taken: float) -> tuple[float, Tensor]:
        """Time and points inside the last step where a rule began to hold."""
        run, rows = self.run, np.array([row])
        alone = run.alive is not None and int(run.alive[row].sum()) == 1

        def holds(lag: float) -> bool:
            return bool(rule.measure(self.view(run.points_before(rows, np.array([lag])), rows))[0] <= 1.0)

        discrete = run.plan.stepper.discrete
        if isinstance(rule, Steady) or alone or discrete or taken == 0.0 or holds(-taken):
            return float(run.t[row]), run.y[row]
        lag = _bisect(holds, taken)
        return float(run.t[row]) + lag, run.points_before(rows, np.array([lag]))[0]

    def _check_event(self, number: int, event: Event, row: int, taken: float) -> None:
        run, rows, member = self.run, np.array([row]), int(self.run.members[row])

        def value(lag: float) -> float:
            points = run.y[row] if lag == 0.0 else run.points_before(rows, np.array([lag]))[0]
            return event.value(run.expand_tokens(points, row), float(run.t[row]) + lag)

        now = value(0.0)
        last = self.values.get((number, member), now)
        self.values[number, member] = now
        if last <= 0 or now > 0:
            return
        lag = 0.0 if run.plan.stepper.discrete else _bisect(lambda back: value(back) <= 0, taken)
        when = float(run.t[row]) + lag
        self.log.append(EventRecord(event.label, when, member=member))
        if event.terminal:
            points = run.y[row] if lag == 0.0 else run.points_before(rows, np.array([lag]))[0]
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
        """The outcome of a blow-up, if norms grow at a rate that the time cannot resolve."""
        run, time = self.run, float(self.run.t[row])
        x, v = run.y[row].detach(), run.f[row].detach()
        size = x.abs().amax().clamp_min(TINY)
        growth = float((((x / size) * (v / size)).sum(-1) / ((x / size) ** 2).sum(-1).clamp_min(TINY)).max())
        if run.plan.space.is_curved or not growth * max(abs(time), 1e-6) > 1e6:
            return None
        return Outcome(
            "blow_up", time, f"token norms go to infinity in finite time: at the end they grow at rate {growth:.3g}"
        )

    def check_rejected(self, rejected: np.ndarray) -> None:
        """End members whose step size fell to rounding, or whose fixed step overflowed."""
        run = self.run
        if not rejected.any():
            return
        if run.plan.space.is_curved and run.plan.law.autonomous:
            # compensated times resolve any step, so the criterion is whether a step still moves a token
            view = self.view()
            # no step size helps where the field is not finite (speeds overflow earlier, so check the entries)
            finite = torch.isfinite(run.f).flatten(1).all(1).cpu().numpy()
            low = (run.h * view.speeds() < LEAST_MOVE * view.norms()) | ~finite
        else:
            low = run.h < FAILED_SPACINGS * np.spacing(np.maximum(np.abs(run.t), LEAST_TIME))
        for row in np.flatnonzero(rejected & (low if run.plan.adaptive else True)):
            run.finish(int(row), self._explain_failure(int(row)), run.y[row], float(run.t[row]))

    def _explain_failure(self, row: int) -> Outcome:
        """The outcome of a member whose step failed."""
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

    def start_budget(self, now: float, evaluations: int) -> None:
        """Count budgets from here; a resumed run has a new one."""
        self.budget_start = (now, evaluations)

    def spent_budget(self) -> str:
        """The budget that is spent, or an empty string."""
        plan = self.run.plan
        if self.run.now - self.budget_start[0] > plan.max_seconds:
            return f"{plan.max_seconds:g} seconds"
        if self.run.field.evaluations - self.budget_start[1] > plan.max_evaluations:
            return f"{plan.max_evaluations:g} evaluations"
        return ""

    def select(self, index: Tensor | slice) -> None:
        """Keep some rows only."""
        chosen = index if isinstance(index, slice) else index.cpu().numpy()
        self.streak, self.last = self.streak[chosen], self.last[chosen]
        self.anchor_t, self.rest = self.anchor_t[chosen], self.rest[chosen]
        self.anchor = self.anchor[index]

    def set_counters(
        self, streak: np.ndarray, last: np.ndarray, anchor_t: np.ndarray, rest: np.ndarray, anchor: Tensor
    ) -> None:
        """Set the state of the rule ``steady`` to what the native loop returned."""
        self.streak, self.last, self.anchor_t, self.rest, self.anchor = streak, last, anchor_t, rest, anchor

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint."""
        words = {
            "deferred": {str(member): vars(outcome) for member, outcome in self.deferred.items()},
            "values": [[number, member, value] for (number, member), value in self.values.items()],
        }
        arrays = {name: getattr(self, name) for name in ("streak", "last", "size", "anchor_t", "rest")}
        return arrays | {"anchor_points": to_numpy(self.anchor), "termination": np.array(json.dumps(words))}

    def restore(self, arrays: dict[str, np.ndarray], device: torch.device) -> None:
        """Set the counters to those of a checkpoint."""
        words = json.loads(str(arrays["termination"]))
        self.deferred = {int(member): Outcome(**outcome) for member, outcome in words["deferred"].items()}
        self.values = {(number, member): value for number, member, value in words["values"]}
        for name in ("streak", "last", "size", "anchor_t", "rest"):
            setattr(self, name, arrays[name])
        self.anchor = to_tensor(arrays["anchor_points"], device)


def _bisect(holds: Callable[[float], bool], taken: float) -> float:
    """Time (<= 0) relative to the end of a step at which a condition begins to hold, by bisection."""
    low, high = -taken, 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
