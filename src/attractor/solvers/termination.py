"""Termination: stopping rules, events, bounds and budgets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import proxy

import numpy as np
import torch
from torch import Tensor

from attractor import engines
from attractor.errors import InputError
from attractor.registry import find
from attractor.serialization import Record
from attractor.solvers.linear_response import LinearResponse
from attractor.solvers.outcome import EventRecord, Outcome
from attractor.solvers.saving import to_numpy, to_tensor
from attractor.spaces import Space
from attractor.states import Tokens, vector_norm

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
    start : the start of the run.
    merge : distance below which tokens were merged to one, 0 if they are not.
    """

    t: np.ndarray
    points: Tensor
    velocities: Tensor
    alive: Tensor | None
    space: Space
    until: float
    size: np.ndarray
    start: float = 0.0
    merge: float = 0.0

    @property
    def horizon(self) -> np.ndarray:
        """Time over which a rest is judged: what is left, or what has passed if that is longer, and at least one unit of time.

        In a run that is short on the time scale of its law, no token moves because there is no time.
        """
        return np.maximum(np.maximum(self.until - self.t, self.t - self.start), 1.0)

    def largest(self, values: Tensor) -> np.ndarray:
        """Largest value (members, n) over the tokens of each member, (members,)."""
        values = values.detach() if self.alive is None else values.detach().masked_fill(~self.alive, 0.0)
        return values.amax(-1).cpu().double().numpy()

    def norms(self) -> np.ndarray:
        """Largest token norm of each member."""
        return self.largest(vector_norm(self.points))

    def speeds(self) -> np.ndarray:
        """Largest speed of a token of each member."""
        return self.largest(vector_norm(self.velocities))

    def diameter_bounds(self) -> np.ndarray:
        """Twice the largest distance from the first token of each member, which no two tokens exceed."""
        points = self.points.detach()
        return 2.0 * self.largest(vector_norm(points - points[:, :1]))

    def diameter(self, index: int) -> float:
        """Largest distance of two tokens of one member; its upper bound if there are many."""
        points = self.points[index].detach()
        points = points if self.alive is None else points[self.alive[index]]
        if len(points) > MANY:
            return float(self.diameter_bounds()[index])
        return float(torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").max())


class Rule(Record):
    """A stopping rule, which holds where ``measure`` is at most one.

    A rule ends a run once all saved times that the user chose are reached, and only where it holds until the end of the run;
    an ``urgent`` rule ends a Gaussian before.
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

    def judge(self, view: View, response: LinearResponse) -> Verdict | None:
        """Whether the rule holds until the end of the run, from the linear response; None if it does not matter."""
        return None


@dataclass(frozen=True)
class Verdict:
    """What the linear response says about the limit of a rule, all (members,).

    Attributes
    ----------
    attracts : whether deviations from the limit do not grow.
    rests : whether the limit itself stays where it is until the end.
    described : whether the response describes the motion; otherwise it says nothing.
    """

    attracts: np.ndarray
    rests: np.ndarray
    described: np.ndarray


@dataclass(frozen=True)
class Consensus(Rule):
    """All tokens within ``tolerance`` of each other, relative to their size, and not moving apart."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "consensus"

    def measure(self, view: View) -> np.ndarray:
        # row 0 always stands for a token
        return view.diameter_bounds() / (self.tolerance * np.maximum(view.norms(), TINY))

    def message(self, view: View, index: int) -> str:
        apart = view.diameter(index)
        merged = f", where tokens closer than {view.merge:.3g} were merged to one" if view.merge else ""
        if merged and apart == 0.0:
            return f"all tokens came together{merged}"
        return f"all tokens came together: at most {apart:.3g} apart{merged}"

    def limit(self, view: View) -> Tensor:
        return view.points.detach()[:, :1].expand_as(view.points)

    def judge(self, view: View, response: LinearResponse) -> Verdict:
        return Verdict(*response.stays_together(self.tolerance))


@dataclass(frozen=True)
class Collapse(Rule):
    """All tokens within ``tolerance`` times the initial size of zero, from which they do not move away."""

    tolerance: float = 1e-6
    name: ClassVar[str] = "collapsed"

    def measure(self, view: View) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            measure = view.norms() / (self.tolerance * view.size)
        return np.where(view.size > 0, measure, np.inf)  # tokens that start at zero are at rest

    def message(self, view: View, index: int) -> str:
        part = view.norms()[index] / view.size[index]
        return f"all tokens went to zero: the largest norm is {part:.3g} of that at the start"

    def limit(self, view: View) -> Tensor:
        return torch.zeros_like(view.points)

    def judge(self, view: View, response: LinearResponse) -> Verdict:
        attracts, described = response.stays_at_zero(view.size, self.tolerance)
        return Verdict(attracts, attracts, described)


@dataclass(frozen=True)
class Steady(Rule):
    """No token moves any more, and none is repelled tenfold in the time that is left, or has passed if that is longer.

    The time is at least one unit. At its present speed no token moves by ``tolerance`` of its size in this time, and speeds do not
    grow; or all tokens have stayed within the integration error for as long as there is time left.
    """

    tolerance: float = 1e-10
    name: ClassVar[str] = "steady"

    def measure(self, view: View) -> np.ndarray:
        with np.errstate(invalid="ignore", over="ignore"):
            return view.speeds() * view.horizon / (self.tolerance * np.maximum(view.norms(), TINY))

    def message(self, view: View, index: int) -> str:
        speed, time = float(view.speeds()[index]), float(view.t[index])
        return f"no token moves any more: the largest speed is {speed:.3g} at t = {time:.6g}, of t = {view.until:g} asked for"

    def judge(self, view: View, response: LinearResponse) -> Verdict:
        noise = NOISE * response.noise.numpy()
        rests = response.stays_here(np.maximum(self.tolerance, noise), view.horizon)
        return Verdict(rests, rests, np.ones_like(rests))


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


def select_rules(stop: Sequence[str | Rule] | None, space: Space, autonomous: bool, rtol: float, n: int) -> list[Rule]:
    """Return the stopping rules of a run: those of the user, or the defaults for the space.

    Below the tolerance of the integration distances are errors, so the default tolerances stay above it.
    """
    consensus = Consensus(max(1e-9, 20.0 * rtol))
    collapse = Collapse(max(1e-7, 10.0 * rtol))
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
MANY = 512  # tokens above which a diameter is bounded instead of measured
ROUNDING = 1e-14  # speed below which the limit of a Gaussian counts as at rest
REST = 50  # consecutive steps near one point after which a run can be steady
NOISE = 10.0  # radius of "near", in tolerances
UNRESOLVED_SPACINGS = 4.0  # spacings of floating-point times below which an accepted step is not resolved
FAILED_SPACINGS = 16.0  # spacings of floating-point times below which a rejected step has failed
LEAST_MOVE = 1e-15  # relative motion of a step on a curved space below which a rejected step has failed
LEAST_TIME = 1e-12  # times closer to zero than this have the spacing of this one
FIRST_WAIT = 16.0  # steps after which a rule that may not hold until the end is judged again; doubled every time
BOUND_GROWTH = 0.1  # excess of the power with which velocities grow with the tokens, above which norms can blow up
BLOW_UP_RATE = 1e4  # growth rate times the length of the run that a blow-up exceeds


@dataclass
class Judgement:
    """What is known of a deferred outcome.

    Attributes
    ----------
    since : time from which its rule holds.
    measure : measure of the rule then.
    lasting : whether the rule is known to hold until the end.
    wait : steps until it is judged again.
    """

    since: float
    measure: float = float("inf")
    lasting: bool = False
    wait: float = FIRST_WAIT


class Termination:
    """Decides after every step which members of a run end.

    ``deferred`` has the outcomes of members for which a rule holds while saved times that the user chose are not reached yet,
    or while it is not known to hold until the end. In the second case the rule is judged again after ``hold``, and at the end.
    """

    def __init__(self, rules: tuple[Rule, ...], events: tuple[Event, ...], bound: float, run: Integration) -> None:
        # a reference cycle would keep the arrays of a run until the next garbage collection
        self.run: Integration = proxy(run)
        self.rules, self.events, self.bound = rules, events, bound
        members = len(run.members)
        points = run.y.detach()
        self.size = vector_norm(points).amax(-1).cpu().double().numpy() if rules else np.zeros(members)
        self.streak = np.zeros(members, dtype=np.int64)
        self.last = np.full(members, np.inf)
        self.anchor = points
        self.anchor_t = run.t.copy()
        self.rest = np.zeros(members, dtype=np.int64)
        self.hold = np.full(members, -np.inf)  # times before which rules are not judged again
        self.deferred: dict[int, Outcome] = {}
        self.judged: dict[int, Judgement] = {}  # of the deferred outcomes
        self.values: dict[tuple[int, int], float] = {}
        self.log: list[EventRecord] = []
        self.budget_start = (0.0, 0)  # seconds and evaluations

    def view(self, points: Tensor | None = None, rows: np.ndarray | None = None) -> View:
        """The view of some rows (all by default), at given points (their last ones by default)."""
        run, plan = self.run, self.run.plan
        merge = 0.0 if run.merger is None else run.merger.tolerance
        if rows is None or len(rows) == len(run.members):
            size, points = self.size[run.members], run.y if points is None else points
            return View(run.t, points, run.f, run.alive, plan.space, plan.until, size, plan.start, merge)
        index = torch.from_numpy(rows).to(run.y.device)
        alive = None if run.alive is None else run.alive[index]
        points = run.y[index] if points is None else points
        size = self.size[run.members[rows]]
        return View(run.t[rows], points, run.f[index], alive, plan.space, plan.until, size, plan.start, merge)

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
            for row in np.flatnonzero(accepted & ~met & ~run.ended) if self.deferred else ():
                deferred = self.deferred.get(int(run.members[row]))
                if deferred is not None and deferred.name == rule.name:
                    self._forget(int(row))
            due = np.flatnonzero(met & (run.t >= self.hold))
            if self.judged and len(due):  # what is known to last only waits for the saved times
                waits = [self._waits(int(member)) for member in run.members[due]]
                due = due[~(np.array(waits) & run.recorder.pending(run.members[due]))]
            if len(due):
                self._apply_rule(rule, measure, due, taken)

    def _is_slow(self, measure: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """Which rows have taken several consecutive steps with speeds that are small and do not grow."""
        with np.errstate(over="ignore"):
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

    def _apply_rule(self, rule: Rule, measure: np.ndarray, rows: np.ndarray, taken: np.ndarray) -> None:
        """End members for which a rule holds until the end of the run, or defer that."""
        run = self.run
        known = np.array([int(member) in self.deferred for member in run.members[rows]])
        when, points = self._locate(rule, rows, np.where(known, 0.0, taken[rows]))
        fresh = np.flatnonzero(~known)
        if len(fresh):
            view = replace(self.view(points[torch.from_numpy(fresh).to(points.device)], rows[fresh]), t=when[fresh])
            for place, row in enumerate(rows[fresh]):
                member = int(run.members[row])
                self.deferred[member] = Outcome(rule.name, float(when[fresh[place]]), rule.message(view, place))
                self.judged[member] = Judgement(since=float(run.t[row]), measure=float(measure[row]))
        lasting, pending = self._lasts(rule, measure, rows), run.recorder.pending(run.members[rows])
        for place, row in enumerate(rows):
            member = int(run.members[row])
            self.judged[member].lasting = bool(lasting[place])
            if lasting[place] and not pending[place]:
                outcome, _ = self.deferred.pop(member), self.judged.pop(member)
                if outcome.name != rule.name:  # another rule was met before, and does not last
                    message = rule.message(self.view(rows=rows[place : place + 1]), 0)
                    outcome = Outcome(rule.name, float(when[place]), message)
                run.finish(int(row), outcome, points[place], float(when[place]))
            elif not lasting[place]:
                judged = self.judged[member]
                self.hold[row] = run.t[row] + judged.wait * max(float(taken[row]), float(np.spacing(run.t[row])))
                judged.wait *= 2.0
                if isinstance(rule, Steady) and self.deferred[member].name == rule.name:
                    del self.deferred[member]

    def _waits(self, member: int) -> bool:
        """Whether a member has a deferred outcome that is known to last."""
        judged = self.judged.get(member)
        return judged is not None and judged.lasting

    def _forget(self, row: int) -> None:
        """A rule that was met no longer is."""
        member = int(self.run.members[row])
        del self.deferred[member]
        self.judged.pop(member, None)
        self.hold[row] = -np.inf

    def _lasts(self, rule: Rule, measure: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """For which rows a rule that holds now holds until the end of the run, with its limit at rest."""
        run = self.run
        lasting = np.isfinite(self.view(rows=rows).speeds())
        if isinstance(rule, Consensus) and run.plan.law.autonomous and self._is_contracting():
            return lasting
        verdict = self._judge(rule, rows, run.plan.until - run.t[rows])
        if verdict is None:
            return lasting
        if not run.plan.law.autonomous:
            return np.zeros(len(rows), dtype=bool)
        return lasting & np.where(verdict.described, verdict.attracts & verdict.rests, self._was_seen(measure, rows))

    def _is_contracting(self) -> bool:
        """Whether close tokens never move apart, and where they meet they stay: values c I with c > 0 on a curved space."""
        return self.run.plan.space.is_curved and self.run.plan.law.is_attracting()

    def _was_seen(self, measure: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether a rule has held for as long as there is time left, and tokens are not farther from its limit than at first."""
        run, seen = self.run, np.zeros(len(rows), dtype=bool)
        for place, row in enumerate(rows):
            judged = self.judged.get(int(run.members[row]))
            if judged is not None:
                left = run.plan.until - run.t[row]
                seen[place] = run.t[row] - judged.since >= left and measure[row] <= judged.measure
        return seen

    def _judge(self, rule: Rule, rows: np.ndarray, left: np.ndarray) -> Verdict | None:
        """The verdict of a rule about some rows with ``left`` of time."""
        run, parts = self.run, []
        counts = np.full(len(rows), run.y.shape[1])
        if run.alive is not None:
            counts = run.alive.sum(-1).cpu().numpy()[rows]
        for count in np.unique(counts):  # rows that stand for no token are at the end
            places = np.flatnonzero(counts == count)
            index = torch.from_numpy(rows[places]).to(run.y.device)
            view = self.view(rows=rows[places])
            view = replace(view, points=view.points[:, :count], velocities=view.velocities[:, :count], alive=None)
            field = run.field.members(torch.from_numpy(rows[places]))
            if field.masses is not None:
                field.masses = field.masses[..., :count]
            noise = run.control.tolerance(run.y.detach()[index]).amax(-1).cpu().double().numpy() / np.maximum(
                view.norms(), TINY
            )
            step = run.plan.step if run.plan.stepper.discrete else None
            # engines used here are not those of the run
            with torch.no_grad(), np.errstate(all="ignore"), engines.using(None):
                response = LinearResponse(field, view.t, left[places], view.points, view.velocities, noise, step)
                parts.append((places, rule.judge(view, response)))
            run.field.evaluations += response.evaluations
        if any(verdict is None for _, verdict in parts):
            return None
        order = np.argsort(np.concatenate([places for places, _ in parts]))
        names = ("attracts", "rests", "described")
        return Verdict(*(np.concatenate([getattr(verdict, name) for _, verdict in parts])[order] for name in names))

    def final_outcome(self, row: int, reached: Outcome) -> Outcome:
        """The outcome of a member at the requested time: that of a rule which still holds there, or ``reached``."""
        run, member = self.run, int(self.run.members[row])
        outcome, judged = self.deferred.get(member), self.judged.get(member)
        if outcome is None or judged is None or judged.lasting:
            return outcome or reached
        if run.merger is not None and len(run.merger.trees[member]) and not self._is_contracting():
            return reached  # merged tokens may have moved apart
        rule, rows = next(rule for rule in self.rules if rule.name == outcome.name), np.array([row])
        if not np.isfinite(self.view(rows=rows).speeds()).all():
            return reached
        verdict = self._judge(rule, rows, np.zeros(1))
        measure = rule.measure(self.view())
        holds = verdict is None or bool(
            verdict.attracts[0] if verdict.described[0] else self._was_seen(measure, rows)[0]
        )
        return outcome if holds else reached

    def _locate(self, rule: Rule, rows: np.ndarray, taken: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Times and points inside the last steps, of lengths ``taken``, where a rule began to hold."""
        run = self.run
        when, points = run.t[rows], run.y[torch.from_numpy(rows).to(run.y.device)]
        if isinstance(rule, Steady) or run.plan.discrete:
            return when, points
        alone = np.zeros(len(rows), dtype=bool) if run.alive is None else run.alive.sum(-1).cpu().numpy()[rows] == 1
        inside = np.flatnonzero((taken > 0) & ~alone)

        def holds(lag: np.ndarray) -> np.ndarray:
            some = rows[inside]
            return rule.measure(self.view(run.points_before(some, lag), some)) <= 1.0

        if len(inside):
            inside = inside[~holds(-taken[inside])]
        if not len(inside):
            return when, points
        lag = _bisect_all(holds, taken[inside])
        when, points = when.copy(), points.clone()
        when[inside] += lag
        points[torch.from_numpy(inside).to(points.device)] = run.points_before(rows[inside], lag)
        return when, points

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
        lag = 0.0 if run.plan.discrete else _bisect(lambda back: value(back) <= 0, taken)
        when = float(run.t[row]) + lag
        self.log.append(EventRecord(event.label, when, member=member))
        if event.terminal:
            points = run.y[row] if lag == 0.0 else run.points_before(rows, np.array([lag]))[0]
            run.finish(row, Outcome("event", when, f"the event {event.label!r} happened"), points, when)

    def _spacing(self) -> np.ndarray:
        """Spacing of floating-point numbers at the time of each row.

        Times are compensated, so under an autonomous law only the time since the start counts.
        """
        run = self.run
        late = run.t - run.plan.start if run.plan.law.autonomous else np.abs(run.t)
        return np.spacing(np.maximum(late, LEAST_TIME))

    def _check_bound(self, view: View, accepted: np.ndarray, taken: np.ndarray) -> None:
        run = self.run
        unresolved = (taken > 0) & (taken < UNRESOLVED_SPACINGS * self._spacing())
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
        r"""The outcome of a blow-up, if norms grow at a rate that itself grows.

        With velocities that grow like :math:`|x|^{1+p}` the rate r of the norm obeys :math:`\dot r = p r^2`, so that
        norms are infinite at :math:`t + 1/(pr)`; p = 0 is exponential growth. Neither p nor the product of r and the length of
        the run depends on the unit of time.
        """
        run = self.run
        x, v = run.y[row : row + 1].detach(), run.f[row : row + 1].detach()
        if run.plan.space.is_curved or not bool(torch.isfinite(x).all()):
            return None
        size = x.abs().amax().clamp_min(TINY)
        if not bool(torch.isfinite(v / size).all()):
            return None
        rate = float(((x / size) * (v / size)).sum() / ((x / size) ** 2).sum().clamp_min(TINY))
        length = (float(run.t[row]) - run.plan.start) + float(run.t_low[row])
        if not rate * max(length, LEAST_TIME) > BLOW_UP_RATE:
            return None
        with torch.no_grad():
            half = run.field.member(row).velocity(run.t[row : row + 1], 0.5 * x)
        run.field.evaluations += 1
        ratio = float((v / size).norm() / (half / size).norm().clamp_min(TINY))
        excess = float(np.log2(max(ratio, TINY))) - 1.0
        if not excess > BOUND_GROWTH:
            return None
        last = length + 1.0 / (min(excess, 1e300) * rate)
        since = "" if run.plan.start == 0 else f", {last:.9g} after the start"
        return Outcome(
            "blow_up",
            float(run.t[row]),
            f"token norms go to infinity in finite time, at t = {run.plan.start + last:.9g}{since}: they grow at rate {rate:.3g}, "
            "and the rate grows with them",
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
            with np.errstate(invalid="ignore", over="ignore"):
                still = run.h * view.speeds() < LEAST_MOVE * view.norms()
            # a long implicit step at rest is rejected for rounding errors of the field; a shorter one is not
            low = np.where(run.stiffness.implicit, run.h < FAILED_SPACINGS * self._spacing(), still) | ~finite
        else:
            low = run.h < FAILED_SPACINGS * self._spacing()
        for row in np.flatnonzero(rejected & (low if run.plan.adaptive else True)):
            run.finish(int(row), self._explain_failure(int(row)), run.y[row], float(run.t[row]))

    def _explain_failure(self, row: int) -> Outcome:
        """The outcome of a member whose step failed."""
        run, time = self.run, float(self.run.t[row])
        blow_up = self._blow_up(row)
        if blow_up is not None:
            return blow_up
        if not run.plan.adaptive and bool(torch.isfinite(run.f[row]).all()):
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
        self.anchor_t, self.rest, self.hold = self.anchor_t[chosen], self.rest[chosen], self.hold[chosen]
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
            "judged": {str(member): vars(judged) for member, judged in self.judged.items()},
            "values": [[number, member, value] for (number, member), value in self.values.items()],
        }
        arrays = {name: getattr(self, name) for name in ("streak", "last", "size", "anchor_t", "rest", "hold")}
        return arrays | {"anchor_points": to_numpy(self.anchor), "termination": np.array(json.dumps(words))}

    def restore(self, arrays: dict[str, np.ndarray], device: torch.device) -> None:
        """Set the counters to those of a checkpoint."""
        words = json.loads(str(arrays["termination"]))
        self.deferred = {int(member): Outcome(**outcome) for member, outcome in words["deferred"].items()}
        # runs that were stored by 0.2 judge their deferred outcomes again
        known = words.get("judged", {member: {"since": outcome.time} for member, outcome in self.deferred.items()})
        self.judged = {int(member): Judgement(**judged) for member, judged in known.items()}
        self.values = {(number, member): value for number, member, value in words["values"]}
        for name in ("streak", "last", "size", "anchor_t", "rest"):
            setattr(self, name, arrays[name])
        self.hold = arrays.get("hold", np.full(len(self.rest), -np.inf))
        self.anchor = to_tensor(arrays["anchor_points"], device)


def _bisect(holds: Callable[[float], bool], taken: float) -> float:
    """Time (<= 0) relative to the end of a step at which a condition begins to hold, by bisection."""
    low, high = -taken, 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _bisect_all(holds: Callable[[np.ndarray], np.ndarray], taken: np.ndarray) -> np.ndarray:
    """``_bisect`` for several members at once, (members,)."""
    low, high = -taken, np.zeros_like(taken)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        there = holds(middle)
        low, high = np.where(there, low, middle), np.where(there, middle, high)
    return high
