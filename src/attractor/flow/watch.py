"""Watching a run: rules, events, bounds and budgets that end it."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from attractor.flow.outcome import Event, Outcome
from attractor.flow.stops import Event as UserEvent
from attractor.flow.stops import Rule, Steady, View
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.flow.integration import Integration

PATIENCE = 5  # steps in a row a run must look steady
BISECTIONS = 60


class Watch:
    """Looks at an integration after every step; ``noted`` holds what was seen while saved states are still owed."""

    def __init__(self, rules: tuple[Rule, ...], events: tuple[UserEvent, ...], bound: float, run: Integration) -> None:
        self.rules, self.events, self.bound, self.run = rules, events, bound, run
        members = len(run.who)
        self.size = torch.linalg.vector_norm(run.y.detach(), dim=-1).amax(-1).cpu().double().numpy()
        self.streak = np.zeros(members, dtype=np.int64)
        self.last = np.full(members, np.inf)
        self.noted: dict[int, Outcome] = {}
        self.values: dict[tuple[int, int], float] = {}
        self.log: list[Event] = []
        self.opened = (clock.perf_counter(), 0)

    def view(self, points: Tensor | None = None, rows: np.ndarray | None = None) -> View:
        """What the rules see of some rows, at points that may be interpolated."""
        run = self.run
        rows = np.arange(len(run.who)) if rows is None else rows
        index = torch.from_numpy(rows).to(run.y.device)
        alive = None if run.alive is None else run.alive[index]
        points = run.y[index] if points is None else points
        return View(run.t[rows], points, run.f[index], alive, run.plan.space, run.plan.until, self.size[run.who[rows]])

    def consider(self, accepted: np.ndarray, taken: np.ndarray, first: bool = False) -> None:
        """Ask the bound, the user's events and the rules, in that order, after steps of length ``taken``."""
        run, view = self.run, self.view()
        if not run.plan.space.curved:
            self._check_bound(view, accepted)
        for number, event in enumerate(self.events):
            for row in np.flatnonzero(accepted & ~run.ended):
                self._user_event(number, event, int(row), float(taken[row]))
        for rule in self.rules:
            measure = rule.measure(view)
            met = (measure <= 1.0) & accepted & ~run.ended
            if isinstance(rule, Steady):
                met &= self._patient(measure, accepted & (not first))
            for row in np.flatnonzero(accepted & ~met & ~run.ended):
                noted = self.noted.get(int(run.who[row]))
                if noted is not None and noted.name == rule.name:
                    del self.noted[int(run.who[row])]
            for row in np.flatnonzero(met):
                self._met(rule, view, int(row), float(taken[row]))

    def _patient(self, measure: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        """A run is steady after several steps in a row whose speeds are small and do not grow."""
        calm = (measure <= 1.0) & (measure <= 1.5 * self.last)
        self.streak = np.where(accepted, np.where(calm, self.streak + 1, 0), self.streak)
        self.last = np.where(accepted, measure, self.last)
        return self.streak >= PATIENCE

    def _met(self, rule: Rule, view: View, row: int, taken: float) -> None:
        """A rule holds; a run that owes saved states goes on and remembers it."""
        run, member = self.run, int(self.run.who[row])
        noted = self.noted.get(member)
        when, points = (float(run.t[row]), run.y[row]) if noted else self._locate(rule, row, taken)
        outcome = noted or Outcome(rule.name, when, rule.message(view, row))
        if run.recorder.pending(run.who[row : row + 1])[0]:
            self.noted[member] = outcome
        else:
            run.finish(row, outcome, points, when)

    def _locate(self, rule: Rule, row: int, taken: float) -> tuple[float, Tensor]:
        """The time inside the last step when a rule began to hold."""
        run, rows = self.run, np.array([row])
        alone = run.alive is not None and int(run.alive[row].sum()) == 1

        def holds(lag: float) -> bool:
            return bool(rule.measure(self.view(run.back(rows, np.array([lag])), rows))[0] <= 1.0)

        if isinstance(rule, Steady) or alone or taken == 0.0 or holds(-taken):
            return float(run.t[row]), run.y[row]
        lag = _first(holds, taken)
        return float(run.t[row]) + lag, run.back(rows, np.array([lag]))[0]

    def _user_event(self, number: int, event: UserEvent, row: int, taken: float) -> None:
        run, rows, member = self.run, np.array([row]), int(self.run.who[row])

        def value(lag: float) -> float:
            points = run.y[row] if lag == 0.0 else run.back(rows, np.array([lag]))[0]
            return event.value(Tokens.trusted(run.original(points[None], rows)[0]), float(run.t[row]) + lag)

        now = value(0.0)
        last = self.values.get((number, member), now)
        self.values[number, member] = now
        if last <= 0 or now > 0:
            return
        lag = _first(lambda back: value(back) <= 0, taken)
        when = float(run.t[row]) + lag
        self.log.append(Event(event.label, when, member=member))
        if event.terminal:
            points = run.back(rows, np.array([lag]))[0]
            run.finish(row, Outcome("event", when, f"the event {event.label!r} happened"), points, when)

    def _check_bound(self, view: View, accepted: np.ndarray) -> None:
        run = self.run
        for row in np.flatnonzero(accepted & (view.norms() > self.bound)):
            message = f"token norms grew past {self.bound:.3g}, without a sign of blow-up in finite time"
            run.finish(int(row), Outcome("diverged", float(run.t[row]), message), run.y[row], float(run.t[row]))

    def fail(self, rejected: np.ndarray) -> None:
        """End members whose steps fell to rounding, or whose fixed step left the finite numbers."""
        run = self.run
        if not rejected.any():
            return
        if run.plan.space.curved and run.plan.law.autonomous:
            # the clock resolves any step, so what counts is whether a step still moves a token
            view = self.view()
            low = run.h * view.speeds() < 1e-15 * view.norms()
        else:
            low = run.h < 16.0 * np.spacing(np.maximum(np.abs(run.t), 1e-12))
        for row in np.flatnonzero(rejected & (low if run.plan.adaptive else True)):
            run.finish(int(row), self._verdict(int(row)), run.y[row], float(run.t[row]))

    def _verdict(self, row: int) -> Outcome:
        """Blow-up if norms grow at a rate that time cannot resolve."""
        run, time = self.run, float(self.run.t[row])
        x, v = run.y[row].detach(), run.f[row].detach()
        growth = float(((x * v).sum(-1) / (x * x).sum(-1).clamp_min(1e-300)).max())
        if not run.plan.space.curved and growth * max(abs(time), 1e-6) > 1e6:
            return Outcome(
                "blow_up", time, f"token norms go to infinity in finite time: at the end they grow at rate {growth:.3g}"
            )
        if not run.plan.adaptive:
            return Outcome(
                "stalled", time, f"the fixed step {run.plan.step:g} left the finite numbers; use a smaller one"
            )
        return Outcome(
            "stalled",
            time,
            "the step size fell to rounding before the tolerance was met; the law may not be smooth here",
        )

    def open_budget(self, now: float, evaluations: int) -> None:
        """Budgets count from here: a resumed run gets a new one."""
        self.opened = (now, evaluations)

    def spent(self) -> str:
        """Which budget is spent, or nothing."""
        plan = self.run.plan
        if clock.perf_counter() - self.opened[0] > plan.max_seconds:
            return f"{plan.max_seconds:g} seconds"
        if self.run.field.evaluations - self.opened[1] > plan.max_evaluations:
            return f"{plan.max_evaluations:g} evaluations"
        return ""

    def keep(self, going: np.ndarray) -> None:
        """Go on with some rows only."""
        self.streak, self.last = self.streak[going], self.last[going]


def _first(holds: Callable[[float], bool], taken: float) -> float:
    """The (negative) time before the end of a step at which a condition begins to hold, by bisection."""
    low, high = -taken, 0.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
