"""Time integration of an ensemble: plan, step loop and progress."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Law
from attractor.solvers.cuda_graph import StepGraph
from attractor.solvers.merging import Merger, Shrink
from attractor.solvers.native_loop import SECONDS, Burst, burst_of
from attractor.solvers.outcome import Outcome
from attractor.solvers.saving import History, Recorder
from attractor.solvers.step_control import Control
from attractor.solvers.steppers.stepper import Field, Inside, Step, Stepper
from attractor.solvers.termination import Event as UserEvent
from attractor.solvers.termination import Rule, Termination
from attractor.spaces import Space
from attractor.states import Tokens


@dataclass(frozen=True)
class Plan:
    """Everything about a run that does not change while it runs."""

    law: Law
    space: Space
    start: float
    until: float
    stepper: Stepper
    rtol: float
    atol: float
    step: float | None
    adaptive: bool
    rules: tuple[Rule, ...]
    bound: float
    events: tuple[UserEvent, ...] = ()
    max_seconds: float = float("inf")
    max_evaluations: float = float("inf")
    native: bool = False  # whether the native loop may take the steps that it knows


class Integration:
    """A run in progress.

    Arrays hold the members that still march; ``who`` maps their rows to members of the ensemble. A member that ends leaves
    its outcome, end time and last state behind.
    """

    def __init__(self, plan: Plan, tokens: Tokens, recorder: Recorder, merger: Merger | None) -> None:
        self.plan, self.recorder, self.merger, self.tokens = plan, recorder, merger, tokens
        self.field = Field(plan.law, plan.space, tokens, skip_self=merger is not None and plan.space.curved)
        self.control = Control(plan.stepper, plan.rtol, plan.atol)
        self.attempt = plan.stepper.attempt if tokens.points.device.type == "cpu" else StepGraph(plan.stepper)
        members = tokens.points.shape[0]
        self.who = np.arange(members)
        self.t = np.full(members, plan.start)
        self.t_low = np.zeros(
            members
        )  # what the sum of steps exceeds t by: late times need more digits than one number has
        self.h = np.zeros(members)
        self.y, self.f = tokens.points, torch.zeros_like(tokens.points)
        self.retried = np.zeros(members, dtype=bool)
        self.ended = np.zeros(members, dtype=bool)
        self.interpolant: Callable[[], Inside] | None = None  # of the last step, if the method has its own
        self.history = History(plan.stepper.nodes, self.y, self.f)
        self.watch = Termination(plan.rules, plan.events, plan.bound, self)
        self.outcomes: list[Outcome | None] = [None] * members
        self.finals: list[Tensor | None] = [None] * members
        self.segment = 0
        self.accepted = self.rejected = 0
        self.seconds = self.now = 0.0
        self.beat: Callable[[Integration], float] = lambda run: clock.perf_counter()  # the time, asked after every step
        self.method = plan.stepper.name
        self.engines: set[str] = set()
        self.pause = SECONDS  # at most between two looks at the run; 0 to look after every step
        self.processes = 1
        if merger is not None:
            self.field.masses = merger.masses

    # ------------------------------------------------------------------ the loop

    def run(self, after_step: Callable[[Integration], None] = lambda run: None) -> None:
        """March until every member has ended or the budget is spent."""
        self.march(after_step)
        self.conclude()

    def march(self, after_step: Callable[[Integration], None]) -> None:
        """Step after step; ``after_step`` may look at the run and take a snapshot."""
        self.now = self.beat(self)
        began = self.now - self.seconds
        self.watch.open_budget(self.now, self.field.evaluations)
        edges = [self.plan.start, *self.plan.law.breaks(self.plan.start, self.plan.until), self.plan.until]
        while self.segment < len(edges) - 1 and len(self.who):
            begin, end = edges[self.segment], edges[self.segment + 1]
            self.field.law = self.plan.law.between(begin, end).member(torch.from_numpy(self.who))
            burst = burst_of(self)
            if burst is None and not self.h.any():
                self._enter_segment(begin, end)
            while len(self.who) and ((end - self.t) - self.t_low > 0).any():
                if burst is None:
                    self._advance(begin, end)
                    burst = self._smaller()
                else:
                    self._burst(burst)
                after_step(self)
                self.now = self.beat(self)
                self.seconds = self.now - began
                if self.watch.spent():
                    return
            if len(self.who):
                self._emit(flush=True)
            self.h = np.zeros(len(self.who))
            self.segment += 1

    def conclude(self) -> None:
        """Members that still march when the budget is spent end where they are."""
        for row in range(len(self.who)):
            outcome = Outcome("budget", float(self.t[row]), f"the budget of {self.watch.spent()} was spent")
            self.finish(row, outcome, self.y[row], float(self.t[row]))
        self._drop_ended()

    def _smaller(self) -> Burst | None:
        """The native loop takes over once merging has left few enough tokens."""
        return burst_of(self) if self.merger is not None and len(self.who) else None

    def _burst(self, burst: Burst) -> None:
        """Many steps outside Python, and what they could not settle."""
        stops = burst.advance(self.pause)
        if stops.entered.any():
            self.watch.consider(stops.entered, stops.taken, first=True)
        if stops.look.any():
            self.watch.consider(stops.look, stops.taken)
        self.watch.fail(stops.failed)
        self._finish_reached(stops.arrived)
        self._drop_ended()

    def _enter_segment(self, begin: float, end: float) -> None:
        first = self.segment == 0
        everyone = np.ones(len(self.who), dtype=bool)
        if self.merger is not None and first:
            self._merge(everyone)
        # the field jumps at a break, so slopes are taken anew and dense output does not look across
        if self.plan.stepper.name != "layers":
            self.f = self.field.lifted(self.t, self.y)
        self.history.restart(self.y, self.f)
        longest = np.full(len(self.who), self._longest(begin, end))
        if self.plan.step is not None:
            self.h = np.minimum(self.plan.step, longest)
        else:
            self.h = self.control.first(self.field, self.t, self.y, self.f, longest)
        self._emit(flush=False)
        if first:
            self.watch.consider(everyone, np.zeros(len(self.who)), first=True)
            self._drop_ended()

    def _longest(self, begin: float, end: float) -> float:
        """Interpolation through step ends wants as many steps as it has nodes, if a save time lies inside."""
        if not self.plan.adaptive or self.plan.stepper.interpolates:
            return end - begin
        inside = ((self.recorder.times > begin) & (self.recorder.times < end)).any()
        return (end - begin) / (self.plan.stepper.nodes if inside else 1)

    def _advance(self, begin: float, end: float) -> None:
        left = (end - self.t) - self.t_low
        moving = left > 0  # members at the end of a segment wait there for the others
        h = np.minimum(self.h, left)
        h = np.where(left < 1.000001 * h, left, h)
        self.interpolant = None  # all that was due is written, and it holds every slope of the last step
        step = self.attempt(self.field, self.t, h, self.y, self.f)
        if self.plan.adaptive:
            error = self.control.error(step, self.y, self.alive)
            accepted = (error <= 1.0) & moving
            grown = h * self.control.factor(error, accepted, self.retried)
            # a step cut short by the end says nothing about the step to use next
            grown = np.where(accepted & (h < self.h), np.maximum(grown, self.h), grown)
            self.h = np.where(moving, np.minimum(grown, self._longest(begin, end)), self.h)
        else:
            accepted = moving & torch.isfinite(step.y.detach()).flatten(1).all(-1).cpu().numpy()
        rejected = moving & ~accepted
        self.retried = rejected
        self.accepted += int(accepted.sum())
        self.rejected += int(rejected.sum())
        if accepted.any():
            self.interpolant = self._interpolant(h, step)
            self._tick(accepted, h, h == left, end)
            self._accept(accepted, h, step.y, step.f)
        self.watch.fail(rejected)
        if end == self.plan.until:
            self._finish_reached(accepted)
        self._drop_ended()

    def _interpolant(self, h: np.ndarray, step: Step) -> Callable[[], Inside] | None:
        """The method's own interpolant of the step, evaluated when it is first asked for."""
        if step.slopes is None:
            return None
        t, y, f, masses = self.t, self.y, self.f, self.field.masses

        def evaluate() -> Inside:
            # tokens may have merged at the end of the step; inside it they had not
            now, self.field.masses = self.field.masses, masses
            try:
                inside = self.plan.stepper.inside(self.field, t, h, y, f, step)
            finally:
                self.field.masses = now
            assert inside is not None
            return inside

        return cache(evaluate)

    def _tick(self, accepted: np.ndarray, h: np.ndarray, arrived: np.ndarray, end: float) -> None:
        """The clock, with the rounding of every sum carried on; it shows the end exactly."""
        move = h + self.t_low
        total = self.t + move
        low = (self.t - (total - (total - self.t))) + (move - (total - self.t))
        self.t = np.where(accepted, np.where(arrived, end, total), self.t)
        self.t_low = np.where(accepted, np.where(arrived, 0.0, low), self.t_low)

    def _accept(self, accepted: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> None:
        if self.plan.space.curved and self.plan.stepper.name != "layers":
            stretch = self.plan.space.stretch(y)
            y, f = y / stretch, f / stretch
        if not accepted.all():
            chosen = torch.from_numpy(accepted).to(y.device).view(-1, 1, 1)
            y, f = torch.where(chosen, y, self.y), torch.where(chosen, f, self.f)
        self.y, self.f = y, f
        self.history.push(accepted, h, y, f)
        self._emit(flush=False)
        if self.merger is not None:
            self._merge(accepted)
        self.watch.consider(accepted, h)

    # ------------------------------------------------------------------ saving and merging

    @property
    def alive(self) -> Tensor | None:
        """Which rows stand for tokens; None if all do."""
        return None if self.merger is None else self.merger.alive

    def dense(self, rows: np.ndarray, times: np.ndarray) -> Tensor:
        """Points of some rows at times of their last steps, on the space."""
        return self.back(rows, (times - self.t[rows]) - self.t_low[rows])

    def back(self, rows: np.ndarray, lag: np.ndarray) -> Tensor:
        """Points of some rows a (negative) time before their last step ended, on the space."""
        source = self.history if self.interpolant is None or not lag.any() else self.interpolant()
        return self.plan.space.retract(source.at(rows, lag))

    def original(self, points: Tensor, rows: np.ndarray) -> Tensor:
        """Points of all original tokens, merged ones at the point they share."""
        return points if self.merger is None else self.merger.expand(points, rows)

    def original_tokens(self, points: Tensor, row: int) -> Tokens:
        """The state of one row as the user knows it."""
        member = int(self.who[row])
        given = (self.tokens.masses, self.tokens.positions)
        rows = (part if part is None or part.ndim == 1 else part[member] for part in given)
        return Tokens.trusted(self.original(points[None], np.array([row]))[0], *rows)

    def _emit(self, flush: bool) -> None:
        """Write the saved states that dense output can give by now."""
        own = self.interpolant is not None
        ready = self.history.full | flush | own | (self.t == self.plan.start)
        while (due := self.recorder.due(self.who, self.t) & ready).any():
            rows = np.flatnonzero(due)
            times = self.recorder.times[self.recorder.next[self.who[rows]]]
            self.recorder.write(self.who[rows], self.original(self.dense(rows, times), rows))

    def _merge(self, accepted: np.ndarray) -> None:
        """Let coinciding tokens become one, round after round; past steps are averaged alike, so dense output goes on."""
        assert self.merger is not None
        found = self.merger.find(self.y, np.flatnonzero(accepted))
        if not found:
            return
        self._emit(flush=True)
        whole: Shrink | None = None
        while found:
            shrink = self.merger.apply(found, self.t)
            self.y = self.plan.space.retract(shrink(self.y))
            whole = shrink if whole is None else whole.then(shrink)
            found = self.merger.find(self.y, np.flatnonzero(accepted))
        assert whole is not None
        self.field.masses = self.merger.masses
        self.f = self.field.lifted(self.t, self.y)
        self.history.merge(whole, self.plan.space.retract, self.y, self.f)
        if self.interpolant is not None:
            self.interpolant = cache(partial(_merged, self.interpolant, whole))

    # ------------------------------------------------------------------ ending

    def _finish_reached(self, accepted: np.ndarray) -> None:
        reached = Outcome("reached", self.plan.until, f"the requested time {self.plan.until:g} was reached")
        rows = np.flatnonzero(accepted & ((self.plan.until - self.t) - self.t_low <= 0) & ~self.ended)
        if not len(rows):
            return
        finals = self.original(self.y if len(rows) == len(self.y) else self.y[torch.from_numpy(rows)], rows)
        for row, final in zip(rows.tolist(), finals, strict=True):
            outcome = self.watch.noted.get(int(self.who[row]), reached)
            self._end(row, outcome, final, self.plan.until)

    def finish(self, row: int, outcome: Outcome, points: Tensor, end: float) -> None:
        """A member ends at some points: its tokens as the user knows them are its last state."""
        self._end(row, outcome, self.original(points[None], np.array([row]))[0], end)

    def _end(self, row: int, outcome: Outcome, final: Tensor, end: float) -> None:
        """Write what is due by the end of a member, and keep its last state."""
        member, rows, times = int(self.who[row]), np.array([row]), self.recorder.times
        while (place := int(self.recorder.next[member])) < len(times) and (time := times[place]) <= end:
            self.recorder.write(self.who[rows], self.original(self.dense(rows, np.array([time])), rows))
        self.outcomes[member] = outcome
        self.finals[member] = final
        self.recorder.end(member, end, final)
        self.ended[row] = True

    def _drop_ended(self) -> None:
        """Go on with the members that have not ended."""
        if not self.ended.any():
            return
        # a slice costs little, and the last to end is the end of most runs
        going = slice(0, 0) if self.ended.all() else np.flatnonzero(~self.ended)
        index = going if isinstance(going, slice) else torch.from_numpy(going).to(self.y.device)
        for name in ("who", "t", "t_low", "h", "retried", "ended"):
            setattr(self, name, getattr(self, name)[going])
        self.y, self.f, self.interpolant = self.y[index], self.f[index], None
        self.history.keep(index)
        self.field.keep(index)
        self.watch.keep(index)
        if self.merger is not None:
            self.merger.keep(index)
            self.field.masses = self.merger.masses


def _merged(interpolant: Callable[[], Inside], shrink: Shrink) -> Inside:
    """The interpolant of a step after tokens have merged at its end."""
    return interpolant().mapped(shrink)
