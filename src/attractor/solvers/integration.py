"""Time integration of an ensemble: what a run consists of, and its step loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attractor.laws import Law
from attractor.solvers import device_kernels
from attractor.solvers.cuda_graph import StepGraph
from attractor.solvers.device_loop import DeviceLoop
from attractor.solvers.merging import Merger, MergeTree, RowMap
from attractor.solvers.native_loop import LOOP_SECONDS, NativeLoop, is_supported, make_native_loop
from attractor.solvers.noise import Noise, Redrawn
from attractor.solvers.outcome import EventRecord, Outcome
from attractor.solvers.saving import History, LastStates, Recorder, to_numpy, to_tensor
from attractor.solvers.step_control import StepControl
from attractor.solvers.steppers.radau import Past, Radau
from attractor.solvers.steppers.stepper import Field, RungeKutta, Step, Stepper, StepPolynomial
from attractor.solvers.stiffness import WINDOW, Stiffness, cost_ratio
from attractor.solvers.store import RunRecord
from attractor.solvers.termination import Event as UserEvent
from attractor.solvers.termination import Rule, Termination
from attractor.spaces import Space
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.solvers.device_loop import Repeat
    from attractor.solvers.native_gradient import NativeGradient
    from attractor.solvers.span_reduction import Span

ROWS = ("members", "t", "t_low", "h", "retried", "ended")  # arrays with one entry for each row of ``y``


@dataclass(frozen=True)
class Plan:
    """What a run computes; nothing of it changes while it runs."""

    law: Law
    space: Space
    start: float
    until: float
    stepper: Stepper
    implicit: Stepper | None  # method of members that are stiff; None if the method does not change
    rtol: float
    atol: float
    step: float | None
    adaptive: bool
    rules: tuple[Rule, ...]
    bound: float
    events: tuple[UserEvent, ...] = ()
    max_seconds: float = float("inf")
    max_evaluations: float = float("inf")
    native: bool = False  # whether the native loop may be used
    differentiable: bool = False  # whether gradients are needed
    noise: Noise | Redrawn | None = None

    @property
    def discrete(self) -> bool:
        """Whether states exist at the ends of steps only."""
        return self.stepper.discrete or self.noise is not None

    def edges(self) -> list[float]:
        """Start, times where the law or the noise is not smooth, and end: steps end at each."""
        inside = self.law.breaks(self.start, self.until)
        inside = inside if self.noise is None else sorted({*inside, *self.noise.breaks(self.start, self.until)})
        return [self.start, *inside, self.until]


@dataclass(frozen=True)
class Execution:
    """How a run is carried out: by which clock, on how many processes, by which engines.

    ``clock(run)`` returns the time in seconds and is called after every step. ``engines`` collects the names of the engines
    that are used. The native loop returns to Python after ``loop_seconds``, or after every step if that is 0.
    """

    clock: Callable[[Integration], float] = lambda run: time.perf_counter()
    processes: int = 1
    engines: set[str] = field(default_factory=set)
    loop_seconds: float = LOOP_SECONDS


class Integration:
    """A run in progress.

    Rows of ``y`` and ``f`` (rows, n, d) are the members of the ensemble that have not ended; ``members`` has the index of
    each. A member that ends leaves its outcome, its end time and its last state behind.
    """

    span: Span | None = None  # subspace whose coordinates are integrated
    repeat: Repeat | None = None  # the launch on a GPU that the whole run was
    fallback: str = ""  # why a GPU does not integrate by itself

    def __init__(
        self, plan: Plan, tokens: Tokens, recorder: Recorder, merger: Merger | None, execution: Execution
    ) -> None:
        self.plan, self.recorder, self.merger, self.tokens = plan, recorder, merger, tokens
        self.execution = execution
        self.field = Field(plan.law, plan.space, tokens, skip_self=plan.space.is_curved)
        self.control = StepControl(plan.stepper, plan.rtol, plan.atol)
        self.implicit_control = None if plan.implicit is None else StepControl(plan.implicit, plan.rtol, plan.atol)
        self.attempt = plan.stepper.attempt if tokens.points.device.type == "cpu" else StepGraph(plan.stepper)
        count = tokens.points.shape[0]
        self.members = np.arange(count)
        self.t = np.full(count, plan.start)
        self.t_low = np.zeros(count)  # low-order part of t (compensated summation)
        self.h = np.zeros(count)
        self.y, self.f = tokens.points, torch.zeros_like(tokens.points)
        self.retried = np.zeros(count, dtype=bool)
        self.ended = np.zeros(count, dtype=bool)
        self.interpolant: Callable[[], StepPolynomial] | None = None  # of the last step, if the method has one
        self.history = History(plan.stepper.nodes, self.y, self.f)
        self.termination = Termination(plan.rules, plan.events, plan.bound, self)
        self.gradient: NativeGradient | None = None  # records the steps of the native loop
        self.outcomes: list[Outcome | None] = [None] * count
        self.finals = LastStates(count)
        self.past: Past | None = None  # last implicit steps
        self.stiffness = Stiffness(count, plan.stepper.implicit)
        self.switches: list[tuple[int, float, str]] = []
        self.segment = 0  # index of the interval between two breaks of the law
        self.accepted = self.rejected = 0
        self.seconds = self.now = 0.0
        if merger is not None:
            self.field.masses = merger.masses

    @property
    def method(self) -> str:
        """Names of the methods that were used, for the statistics."""
        return "+".join(dict.fromkeys([self.plan.stepper.name, *(name for _, _, name in self.switches)]))

    # ------------------------------------------------------------------ the loop

    def run(self, after_step: Callable[[Integration], None] = lambda run: None) -> None:
        """Integrate until every member has ended or the budget is spent."""
        self.advance(after_step)
        self.end_remaining()

    def advance(self, after_step: Callable[[Integration], None]) -> None:
        """Take steps; ``after_step`` is called after each and may take a snapshot."""
        self.now = self.execution.clock(self)
        began = self.now - self.seconds
        self.termination.start_budget(self.now, self.field.evaluations)
        edges = self.plan.edges()
        while self.segment < len(edges) - 1 and len(self.members):
            begin, end = edges[self.segment], edges[self.segment + 1]
            self.field.law = self.plan.law.between(begin, end).member(torch.from_numpy(self.members))
            loop = self._make_loop()
            if loop is None and not self.h.any():
                self._enter_segment(begin, end)
            while len(self.members) and ((end - self.t) - self.t_low > 0).any():
                if not self.stiffness.implicit.any():
                    loop = self._advance_explicitly(loop, begin, end)
                else:
                    # members at the end of a segment wait for the others there
                    moving = (end - self.t) - self.t_low > 0
                    if (moving & ~self.stiffness.implicit).any():
                        loop = self._advance_explicitly(loop, begin, end)
                    if (self.stiffness.implicit & ((end - self.t) - self.t_low > 0)).any():
                        self._step(begin, end, implicit=True)
                after_step(self)
                self.now = self.execution.clock(self)
                self.seconds = self.now - began
                if self.termination.spent_budget():
                    return
            if len(self.members):
                self._save_due(flush=True)
            self.h, self.past = np.zeros(len(self.members)), None
            self.segment += 1

    def end_remaining(self) -> None:
        """End the members that are left when the budget is spent, where they are."""
        for row in range(len(self.members)):
            message = f"the budget of {self.termination.spent_budget()} was spent"
            self.finish(row, Outcome("budget", float(self.t[row]), message), self.y[row], float(self.t[row]))
        self._remove_ended()

    def _make_loop(self) -> NativeLoop | DeviceLoop | None:
        """The native loop on a CPU or the device loop on a GPU, or None if neither can be used."""
        obstacle = device_kernels.OTHER_ENGINE
        if self.plan.native:
            on_device = self.gradient is not None and self.gradient.on_device
            obstacle = device_kernels.obstacle(self.plan, self.y, self.field.positions, on_device)
        if not obstacle:
            return DeviceLoop(self)
        self.fallback = "" if self.y.device.type == "cpu" else obstacle
        return make_native_loop(self)

    def _advance_explicitly(
        self, loop: NativeLoop | DeviceLoop | None, begin: float, end: float
    ) -> NativeLoop | DeviceLoop | None:
        """Take steps of the members that are not stiff; return the loop for the next ones."""
        if loop is not None:
            self._advance_natively(loop)
            return loop
        self._step(begin, end)
        # merging may leave few enough tokens for the native loop
        return self._make_loop() if self.merger is not None and len(self.members) else None

    def _advance_natively(self, loop: NativeLoop | DeviceLoop) -> None:
        """Take many steps in the native or the device loop, then check the members that it stopped for."""
        result = loop.advance(self.execution.loop_seconds)
        self.t, self.t_low, self.h, self.retried = result.t, result.t_low, result.h, result.retried
        self.y, self.f, self.interpolant = result.y, result.f, result.interpolant
        self.recorder.next[self.members] = self.recorder.reached[self.members] = result.next_rows
        self.field.evaluations += result.evaluations
        self.accepted, self.rejected = self.accepted + result.accepted, self.rejected + result.rejected
        self.execution.engines.add(loop.name)
        self.repeat = loop.repeat if isinstance(loop, DeviceLoop) else None
        if self.merger is not None:
            self.field.masses = self.merger.masses
        self.history.restart(self.y, self.f)
        if result.entered.any():
            self.termination.check(result.entered, result.taken, first=True)
        if result.look.any():
            self.termination.check(result.look, result.taken)
        self.termination.check_rejected(result.failed)
        self._finish_reached(result.arrived)
        self._change_to_implicit(result.stiff)
        self._remove_ended()

    def _enter_segment(self, begin: float, end: float) -> None:
        first = self.segment == 0
        everyone = np.ones(len(self.members), dtype=bool)
        if self.merger is not None and first:
            self._merge(everyone)
        # the field is discontinuous at a break: evaluate it again, and do not interpolate across
        if not self.plan.stepper.discrete:
            self.f = self.field.lifted_velocity(self.t, self.y)
        self.history.restart(self.y, self.f)
        longest = np.full(len(self.members), self._longest_step(begin, end))
        if self.plan.step is not None:
            self.h = np.minimum(self.plan.step, longest)
        else:
            self.h = self.control.first_step(self.field, self.t, self.y, self.f, longest)
        self._save_due(flush=False)
        if first:
            self.termination.check(everyone, np.zeros(len(self.members)), first=True)
            self._remove_ended()

    def _longest_step(self, begin: float, end: float) -> float:
        """Interpolation through step ends needs as many steps as it has nodes, if a save time lies inside."""
        if not self.plan.adaptive or self.plan.stepper.interpolates:
            return end - begin
        inside = ((self.recorder.times > begin) & (self.recorder.times < end)).any()
        return (end - begin) / (self.plan.stepper.nodes if inside else 1)

    def _step(self, begin: float, end: float, implicit: bool = False) -> None:
        """Try one step of every member that has the explicit or the implicit method; accept or reject it."""
        left, chosen = (end - self.t) - self.t_low, self.stiffness.implicit == implicit
        moving = (left > 0) & chosen  # members at the end of a segment wait there for the others
        stepper = self.plan.implicit if implicit and self.plan.implicit is not None else self.plan.stepper
        control = self.implicit_control if implicit and self.implicit_control is not None else self.control
        h = np.minimum(self.h, left)
        h = np.where(left < 1.000001 * h, left, h)
        self.interpolant = None  # everything due has been saved, and it holds all slopes of the last step
        if isinstance(stepper, Radau):
            if self.past is None or self.past.parts.shape[1:] != self.y.shape:
                self.past = Past(stepper.stages, self.y)
            step = stepper.attempt(self.field, self.t, h, self.y, self.f, np.flatnonzero(moving), self.past)
        else:
            step = self.attempt(self.field, self.t, h, self.y, self.f)
        interpolant = self._make_interpolant(stepper, h, step)
        if self.plan.adaptive:
            error = control.error(step, self.y, self.alive)
            accepted = (error <= 1.0) & moving & self._is_smooth(interpolant, (error <= 1.0) & moving, h)
            error = np.where(accepted, error, np.where(error <= 1.0, np.inf, error))
            grown = h * control.factor(error, accepted, self.retried)
            # a step cut short by the end does not limit the next one
            grown = np.where(accepted & (h < self.h), np.maximum(grown, self.h), grown)
            if step.longest is not None:
                grown = np.where(h > step.longest, step.longest, np.minimum(grown, step.longest))
            self.h = np.where(moving, np.minimum(grown, self._longest_step(begin, end)), self.h)
        else:
            accepted = moving & _is_finite(step.y) & _is_finite(step.f)
            accepted &= self._is_smooth(interpolant, accepted, h)
        rejected = moving & ~accepted
        self.retried = np.where(chosen, rejected, self.retried)
        self.accepted += int(accepted.sum())
        self.rejected += int(rejected.sum())
        if accepted.any():
            self.interpolant = interpolant
            if self.past is not None and implicit and step.slopes is not None:
                self.past.push(accepted, h, step.slopes)
            stiff = self._find_stiff(stepper, accepted, h, step)
            self._advance_time(accepted, h, h == left, end)
            self._accept(accepted, h, step.y, step.f)
            self._change_to_implicit(stiff)
        self.termination.check_rejected(rejected)
        if end == self.plan.until:
            self._finish_reached(accepted)
        if implicit and not self.plan.stepper.implicit:
            self._change_to_explicit(moving, accepted, h, step)
        self._remove_ended()

    def _is_smooth(
        self, interpolant: Callable[[], StepPolynomial] | None, accepted: np.ndarray, h: np.ndarray
    ) -> np.ndarray:
        """Which steps have finite states inside, where these are saved: a stage may overflow although the end does not."""
        times, place = self.recorder.times, self.recorder.next[self.members]
        due = times[np.minimum(place, len(times) - 1)] if len(times) else np.full(len(h), np.inf)
        within = accepted & (place < len(times)) & (due > self.t) & (due < self.t + h)
        if interpolant is None or not within.any():
            return np.ones(len(h), dtype=bool)
        return ~within | _is_finite(interpolant().parts.transpose(0, 1))

    def _find_stiff(self, stepper: Stepper, accepted: np.ndarray, h: np.ndarray, step: Step) -> np.ndarray:
        """Which members have taken many explicit steps at the limit of stability."""
        if self.plan.implicit is None or not isinstance(stepper, RungeKutta):
            return np.zeros(len(accepted), dtype=bool)
        return self.stiffness.find(stepper, accepted, h, self.y, step)

    def _change_to_implicit(self, stiff: np.ndarray) -> None:
        """Change the method of stiff members that have a long way to go."""
        if self.plan.implicit is None or not stiff.any():
            return
        stiff = stiff & ~self.ended & (self.plan.until - self.t > 2 * WINDOW * self._cost_ratio() * self.h)
        self._change_method(stiff, self.plan.implicit)

    def _change_to_explicit(self, tried: np.ndarray, accepted: np.ndarray, h: np.ndarray, step: Step) -> None:
        """Change the method back where explicit steps at the limit of their stability cost less."""
        assert step.radius is not None
        stepper = self.plan.stepper
        assert isinstance(stepper, RungeKutta)
        replaced = np.where(accepted, h * step.radius / stepper.stability, 0.0)
        back = self.stiffness.is_worthless(tried, replaced, self._cost_ratio()) & ~self.ended
        if back.any():
            with np.errstate(divide="ignore"):
                self.h = np.where(back, np.minimum(self.h, stepper.stability / step.radius), self.h)
            self._change_method(back, stepper)

    def _change_method(self, rows: np.ndarray, stepper: Stepper) -> None:
        self.stiffness.change(rows, stepper.implicit)
        if self.past is not None:
            self.past.h = np.where(rows, 0.0, self.past.h)
        changes = zip(self.members[rows].tolist(), self.t[rows].tolist(), strict=True)
        self.switches += [(member, time, stepper.name) for member, time in changes]

    def _cost_ratio(self) -> float:
        """Approximate cost of an attempt of the implicit method in explicit steps."""
        _, n, d = self.y.shape
        return cost_ratio(n, d, is_supported(self.plan, self.y))

    def _make_interpolant(self, stepper: Stepper, h: np.ndarray, step: Step) -> Callable[[], StepPolynomial] | None:
        """The method's own interpolant of the step, computed on first use."""
        if step.slopes is None:
            return None
        t, y, f, masses = self.t, self.y, self.f, self.field.masses

        def evaluate() -> StepPolynomial:
            # tokens may have merged at the end of the step; inside it they had not
            now, self.field.masses = self.field.masses, masses
            try:
                inside = stepper.interpolate(self.field, t, h, y, f, step)
            finally:
                self.field.masses = now
            assert inside is not None
            return inside

        return cache(evaluate)

    def _advance_time(self, accepted: np.ndarray, h: np.ndarray, arrived: np.ndarray, end: float) -> None:
        """Add steps to the times by compensated summation; members that arrived have exactly the time ``end``."""
        move = h + self.t_low
        total = self.t + move
        low = (self.t - (total - (total - self.t))) + (move - (total - self.t))
        self.t = np.where(accepted, np.where(arrived, end, total), self.t)
        self.t_low = np.where(accepted, np.where(arrived, 0.0, low), self.t_low)

    def _accept(self, accepted: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> None:
        if self.plan.space.is_curved and not self.plan.stepper.discrete:
            stretch = self.plan.space.stretch(y)
            y, f = y / stretch, f / stretch
        if not accepted.all():
            chosen = torch.from_numpy(accepted).to(y.device).view(-1, 1, 1)
            y, f = torch.where(chosen, y, self.y), torch.where(chosen, f, self.f)
        self.y, self.f = y, f
        self.history.push(accepted, h, y, f)
        self._save_due(flush=False)
        if self.merger is not None:
            self._merge(accepted)
        self.termination.check(accepted, h)

    # ------------------------------------------------------------------ saving and merging

    @property
    def alive(self) -> Tensor | None:
        """Which points stand for tokens, (rows, n); None if all do."""
        return None if self.merger is None else self.merger.alive

    def points_at(self, rows: np.ndarray, times: np.ndarray) -> Tensor:
        """Points of some rows at times inside their last steps, on the space."""
        return self.points_before(rows, (times - self.t[rows]) - self.t_low[rows])

    def points_before(self, rows: np.ndarray, lag: np.ndarray) -> Tensor:
        """Points of some rows at ``lag`` (<= 0) relative to the end of their last step, on the space."""
        source = self.history if self.interpolant is None or not lag.any() else self.interpolant()
        return self.plan.space.retract(source.at(rows, lag))

    def expand(self, points: Tensor, rows: np.ndarray) -> Tensor:
        """Points of all original tokens; merged tokens share one."""
        return points if self.merger is None else self.merger.expand(points, rows)

    def expand_tokens(self, points: Tensor, row: int) -> Tokens:
        """Original tokens of one row, with the masses and positions that the user gave."""
        member = int(self.members[row])
        given = (self.tokens.masses, self.tokens.positions)
        parts = (part if part is None or part.ndim == 1 else part[member] for part in given)
        return Tokens.unchecked(self.expand(points[None], np.array([row]))[0], *parts)

    def _save_due(self, flush: bool) -> None:
        """Save the states that dense output can compute; with ``flush`` all that are due."""
        ready = self.history.full | flush | (self.interpolant is not None) | (self.t == self.plan.start)
        while (due := self.recorder.due(self.members, self.t) & ready).any():
            rows = np.flatnonzero(due)
            times = self.recorder.times[self.recorder.next[self.members[rows]]]
            self.recorder.write(self.members[rows], self.expand(self.points_at(rows, times), rows))

    def _merge(self, accepted: np.ndarray) -> None:
        """Merge coinciding tokens until none is left; past steps are averaged alike, so that dense output remains valid."""
        assert self.merger is not None
        found = self.merger.find(self.y, np.flatnonzero(accepted))
        if not found:
            return
        self._save_due(flush=True)
        total: RowMap | None = None
        while found:
            change = self.merger.apply(found, self.t)
            self.y = self.plan.space.retract(change(self.y))
            total = change if total is None else total.then(change)
            found = self.merger.find(self.y, np.flatnonzero(accepted))
        assert total is not None
        self.field.masses = self.merger.masses
        self.f = self.field.lifted_velocity(self.t, self.y)
        self.history.merge(total, self.plan.space.retract, self.y, self.f)
        self.past = None
        if self.interpolant is not None:
            self.interpolant = cache(partial(_merge_polynomial, self.interpolant, total))

    # ------------------------------------------------------------------ members that end

    def _finish_reached(self, accepted: np.ndarray) -> None:
        reached = self._reached()
        rows = np.flatnonzero(accepted & ((self.plan.until - self.t) - self.t_low <= 0) & ~self.ended)
        if not len(rows):
            return
        finals = self.expand(self.y if len(rows) == len(self.y) else self.y[torch.from_numpy(rows)], rows)
        members = self.members[rows]
        if not self.termination.deferred and (self.recorder.next[members] >= len(self.recorder.times)).all():
            self.finals.put(members, finals)
            self.recorder.end_complete(members, self.plan.until)
            self.ended[rows] = True
            if len(members) == len(self.outcomes):
                self.outcomes = [reached] * len(members)
            else:
                for member in members.tolist():
                    self.outcomes[member] = reached
            return
        for row, final in zip(rows.tolist(), finals, strict=True):
            self._end(row, self.termination.final_outcome(row, reached), final, self.plan.until)

    def _reached(self) -> Outcome:
        """The outcome of members that are neither at rest nor together at the end."""
        return Outcome("reached", self.plan.until, f"the requested time {self.plan.until:g} was reached")

    def finish(self, row: int, outcome: Outcome, points: Tensor, end: float) -> None:
        """End a member at some points."""
        self._end(row, outcome, self.expand(points[None], np.array([row]))[0], end)

    def _end(self, row: int, outcome: Outcome, final: Tensor, end: float) -> None:
        """Save what is due by the end of a member, and keep its last state."""
        member, rows, times = int(self.members[row]), np.array([row]), self.recorder.times
        while (place := int(self.recorder.next[member])) < len(times) and (due := times[place]) <= end:
            self.recorder.write(self.members[rows], self.expand(self.points_at(rows, np.array([due])), rows))
        self.outcomes[member] = outcome
        self.finals.put(np.array([member]), final[None])
        self.recorder.end(member, end, final)
        self.ended[row] = True

    def _remove_ended(self) -> None:
        """Remove the rows of members that have ended."""
        if not self.ended.any():
            return
        # slicing is cheap, and in most runs the last members end together
        left = slice(0, 0) if self.ended.all() else np.flatnonzero(~self.ended)
        index = left if isinstance(left, slice) else torch.from_numpy(left).to(self.y.device)
        for name in ROWS:
            setattr(self, name, getattr(self, name)[left])
        self.y, self.f, self.interpolant = self.y[index], self.f[index], None
        self.history.select(index)
        self.field.select(index)
        self.termination.select(index)
        self.stiffness.select(left)
        if self.past is not None:
            self.past.select(index)
        if self.merger is not None:
            self.merger.select(index)
            self.field.masses = self.merger.masses

    # ------------------------------------------------------------------ checkpoints

    def record(self) -> RunRecord:
        """What the run has produced so far."""
        return RunRecord(
            recorder=self.recorder,
            outcomes=tuple(self.outcomes),
            finals=self.finals,
            events=tuple(self.termination.log),
            merge_trees=() if self.merger is None else tuple(self.merger.trees),
            segment=self.segment,
            accepted=self.accepted,
            rejected=self.rejected,
            seconds=self.seconds,
            evaluations=self.field.evaluations,
            engines=tuple(sorted(self.execution.engines)),
            method=self.method,
            switches=tuple(self.switches),
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        """Everything that changes during a run as arrays, apart from saved rows that are complete."""
        arrays = self.record().to_arrays()
        if len(self.members):
            arrays |= {name: np.array(getattr(self, name)) for name in ROWS}
            arrays |= {"y": to_numpy(self.y), "f": to_numpy(self.f)}
            arrays |= self.history.snapshot() | self.termination.snapshot() | self.stiffness.snapshot()
            if self.past is not None:
                arrays |= {"past_parts": to_numpy(self.past.parts), "past_h": self.past.h}
            arrays |= {} if self.merger is None else self.merger.snapshot()
        return arrays

    def can_restore(self, arrays: dict[str, np.ndarray]) -> bool:
        """Whether a run continues from a checkpoint; otherwise it starts again."""
        return True

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Set a new run of the same plan to a snapshot; ``arrays["complete"]`` are the saved rows that were complete."""
        device, words = self.y.device, json.loads(str(arrays["json"]))
        self.outcomes = [None if outcome is None else Outcome(**outcome) for outcome in words["outcomes"]]
        for member in range(len(self.outcomes)):
            if (final := arrays.get(f"final{member}")) is not None:
                self.finals.put(np.array([member]), to_tensor(final, device)[None])
        self.recorder.restore(arrays, self.finals)
        self.termination.log = [EventRecord(kind, time, member=member) for kind, time, member in words["events"]]
        self.segment, self.accepted, self.rejected = words["segment"], words["accepted"], words["rejected"]
        self.seconds, self.field.evaluations = words["seconds"], words["evaluations"]
        self.execution.engines.update(words["engines"])
        self.switches = [(int(member), float(time), str(name)) for member, time, name in words.get("switches", [])]
        if self.merger is not None:
            self.merger.trees = [MergeTree(tree.n, arrays[f"tree{k}"]) for k, tree in enumerate(self.merger.trees)]
        if "members" not in arrays:
            self.ended[:] = True
            self._remove_ended()
            return
        for name in ROWS:
            setattr(self, name, arrays[name])
        self.y, self.f = to_tensor(arrays["y"], device), to_tensor(arrays["f"], device)
        self.history.restore(arrays, device)
        self.termination.restore(arrays, device)
        self.stiffness.restore(arrays, self.members)
        if "past_h" in arrays:
            self.past = Past(len(arrays["past_parts"]), self.y)
            self.past.parts, self.past.h = to_tensor(arrays["past_parts"], device), arrays["past_h"]
        self.field.select(torch.from_numpy(self.members))
        if self.merger is not None:
            self.merger.restore(arrays, device)
            self.field.masses = self.merger.masses


def _is_finite(points: Tensor) -> np.ndarray:
    """Which members (members, n, d) have finite entries only."""
    return torch.isfinite(points.detach()).flatten(1).all(-1).cpu().numpy()


def _merge_polynomial(interpolant: Callable[[], StepPolynomial], change: RowMap) -> StepPolynomial:
    """The interpolant of a step after tokens have merged at its end."""
    return interpolant().map_rows(change)
