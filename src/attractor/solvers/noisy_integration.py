"""Integration of tokens with noise by fixed steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.solvers.device_loop import DeviceNoisyLoop, noise_obstacle
from attractor.solvers.integration import Execution, Integration, Plan
from attractor.solvers.merging import Merger
from attractor.solvers.native_loop import NativeNoisyLoop, is_usable
from attractor.solvers.noise import Noise, Redrawn
from attractor.solvers.outcome import Outcome
from attractor.solvers.saving import Recorder
from attractor.solvers.steppers.stepper import Stepper, stepper_named
from attractor.spaces import Space
from attractor.states import Tokens

PATIENCE = (
    10  # the loop may take so many times as long as without noise, since large ensembles are copied before and after
)
SLACK = 1e-6  # part of a step by which its end may differ from a time that was requested


class NoisyIntegration(Integration):
    """A run with noise: all members take the same steps, and states exist at the ends of steps only.

    ``steps`` counts the steps of the run; together with the seed it determines the random numbers of the next step.
    """

    def __init__(
        self, plan: Plan, tokens: Tokens, recorder: Recorder, merger: Merger | None, execution: Execution
    ) -> None:
        super().__init__(plan, tokens, recorder, merger, execution)
        assert plan.noise is not None
        self.field.source = plan.noise.select(tokens)
        self.steps = 0
        self.fresh = False  # whether velocities are still to be computed natively
        self.loop: NativeNoisyLoop | DeviceNoisyLoop | None = None

    def _enter_segment(self, begin: float, end: float) -> None:
        super()._enter_segment(begin, end)
        self.fresh = True

    def _step(self, begin: float, end: float, implicit: bool = False) -> None:
        if self.loop is None:
            obstacle = noise_obstacle(self)
            self.fallback = "" if self.y.device.type == "cpu" else obstacle
            if not obstacle:
                self.loop = DeviceNoisyLoop(self)
            elif is_usable(self):
                self.loop = NativeNoisyLoop(self)
        if self.loop is not None:
            return self._step_natively(self.loop, end)
        stepper, source, t = self.plan.stepper, self.field.source, self.t
        assert source is not None
        h = self._next_step(end)
        y = stepper.noisy_step(self.field, t, h, self.y, self.f, source, self.steps)
        f = self.field.lifted_velocity(t + h, y)
        self.steps += 1
        accepted = (torch.isfinite(y.detach()) & torch.isfinite(f.detach())).flatten(1).all(-1).cpu().numpy()
        self.accepted += int(accepted.sum())
        self.rejected += int((~accepted).sum())
        taken = np.full(len(t), h)
        self._advance_time(accepted, taken, taken == (end - self.t) - self.t_low, end)
        self._accept(accepted, taken, y, f)
        self.termination.check_rejected(~accepted)
        if end == self.plan.until:
            self._finish_reached(accepted)
        self._remove_ended()

    def _next_step(self, end: float) -> float:
        """Length of the next step: the last one before ``end`` may be shorter."""
        left, h = float((end - self.t[0]) - self.t_low[0]), float(self.h[0])
        return left if left < (1.0 + SLACK) * h else h

    def _step_natively(self, loop: NativeNoisyLoop | DeviceNoisyLoop, end: float) -> None:
        """Take many steps of one length in C++, or on a GPU."""
        source, stepper, space = self.field.source, self.plan.stepper, self.plan.space
        assert source is not None
        h, times, lows = self._schedule(end)
        constant = source.noise.constant
        starts = [float(self.t[0])] if constant else times[:-1].tolist()
        parts = [stepper.deviations(source, time, h, self.y, space) for time in starts]
        # Python's loop draws nothing where all deviations are 0, which is the same
        amplitudes = torch.cat([each.expand(-1, each.shape[1], -1).squeeze(-1).unsqueeze(0) for each, _ in parts])
        result = loop.advance(
            self.steps,
            h,
            amplitudes,
            np.array([common for _, common in parts]),
            self._save_rows(times),
            self.fresh,
        )
        self.fresh = False
        count = len(times) - 1
        self.steps += count
        self.t, self.t_low = times[result.done], lows[result.done]
        self.y, self.f = result.y, result.f
        self.field.evaluations += result.evaluations
        self.accepted += int(result.done.sum())
        self.rejected += int(result.failed.sum())
        self.execution.engines.add(loop.name)
        reached = np.searchsorted(self.recorder.times, self.t + SLACK * float(self.plan.step or 0.0), side="right")
        self.recorder.next[self.members] = self.recorder.reached[self.members] = reached
        self.history.restart(self.y, self.f)
        full = result.done == count
        if result.far.any():
            self.termination.check(result.far, np.full(len(self.t), h))
        self.termination.check_rejected(result.failed)
        if end == self.plan.until:
            self._finish_reached(full & ~result.failed)
        assert bool((full | self.ended).all()), "members that leave the finite numbers end"
        self._remove_ended()

    def _schedule(self, end: float) -> tuple[float, np.ndarray, np.ndarray]:
        """Length of the next steps, and the times (in two parts) at the start and after each of them."""
        h, most, longest = self._next_step(end), self._most_steps(), float(self.h[0])
        t, low = float(self.t[0]), float(self.t_low[0])
        times, lows = [t], [low]
        while len(times) <= most and (left := (end - t) - low) > 0:
            if (left if left < (1.0 + SLACK) * longest else longest) != h:
                break
            if h == left:
                t, low = end, 0.0
            else:  # as in _advance_time
                move = h + low
                total = t + move
                t, low = total, (t - (total - (total - t))) + (move - (total - t))
            times.append(t)
            lows.append(low)
        return h, np.array(times), np.array(lows)

    def _most_steps(self) -> int:
        """Number of steps until signals, budgets, stores and progress are looked after."""
        assert self.loop is not None
        members, stages = len(self.y), 4 if self.plan.stepper.weak_order > 1 else 1
        each = self.loop.seconds(stages)
        seconds = min(PATIENCE * self.execution.loop_seconds, self.plan.max_seconds)
        left = self.plan.max_evaluations - (self.field.evaluations - self.termination.budget_start[1])
        return int(max(1, min(seconds / each, left // (members * stages))))

    def _save_rows(self, times: np.ndarray) -> np.ndarray:
        """Place of the end of each step among the saved states, or -1."""
        assert self.plan.step is not None
        saved, slack = self.recorder.times, SLACK * self.plan.step
        following = int(self.recorder.next[self.members[0]])
        rows = np.full(len(times) - 1, -1)
        for step, time in enumerate(times[1:]):
            if following < len(saved) and saved[following] <= time + slack:
                rows[step] = following
                following += 1
        return rows

    def _accept(self, accepted: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> None:
        if not accepted.all():
            chosen = torch.from_numpy(accepted).to(y.device).view(-1, 1, 1)
            y, f = torch.where(chosen, y, self.y), torch.where(chosen, f, self.f)
        self.y, self.f = y, f
        self.history.restart(y, f)  # paths are not smooth
        self._save_due(flush=False)
        self.termination.check(accepted, h)

    def _save_due(self, flush: bool) -> None:
        assert self.plan.step is not None
        while (due := self.recorder.due(self.members, self.t + SLACK * self.plan.step)).any():
            rows = np.flatnonzero(due)
            self.recorder.write(self.members[rows], self.y if due.all() else self.y[torch.from_numpy(rows)])

    def _reached(self) -> Outcome:
        assert self.plan.step is not None
        last = last_step(self.plan.edges(), self.plan.step)
        short = f"; the last step was {last:g} long, to end there" if last < (1.0 - SLACK) * self.plan.step else ""
        return Outcome(
            "reached",
            self.plan.until,
            f"the requested time {self.plan.until:g} was reached{short}; tokens with noise do not come to rest",
        )

    def snapshot(self) -> dict[str, np.ndarray]:
        return super().snapshot() | {"noise_steps": np.array(self.steps)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        super().restore(arrays)
        # results that were saved after the run have ended, and do not count steps
        self.steps = int(arrays["noise_steps"]) if len(self.members) else 0


def noisy_method(noise: Noise | Redrawn, space: Space, options: dict[str, Any]) -> Stepper:
    """The method of a run with noise; raise if the options of the run do not fit it."""
    why = noise.weak_order_obstacle(space)
    name = options["method"] or ("euler" if why else "strang2")
    stepper = stepper_named(name)
    if not stepper.weak_order:
        raise UnsupportedError(
            f"noise needs a method with fixed steps for stochastic equations, 'strang2' or 'euler', got {name!r}"
            + (", which adapts its steps" if stepper.adaptive else "")
        )
    if stepper.weak_order > 1 and why:
        raise UnsupportedError(f"method {name!r} cannot be used here: {why}; give method='euler'")
    if options["step"] is None:
        raise InputError("noise needs steps of one size: give step=...")
    for tolerance in ("rtol", "atol"):
        if options[tolerance] is not None:
            raise InputError(
                f"{tolerance} limits the error of adaptive steps, and noise takes fixed ones: leave it out"
            )
    if options["stop"] is not None and options["stop"] != []:
        raise UnsupportedError(
            "tokens with noise do not come to rest, so no rule can end the run: give stop=(), and events=[Event(...)] to end it "
            "at a condition"
        )
    if options["merge"] not in (None, False):
        raise UnsupportedError(f"tokens with noise are not merged: {noise.merge_obstacle()}")
    if noise.kind == "space":
        _ = space.curvature  # raises if the space has no Brownian motion
    return stepper


def last_step(edges: list[float], step: float) -> float:
    """Length of the last step."""
    length = edges[-1] - edges[-2]
    return length - (_count(length, step) - 1) * step


def _count(length: float, step: float) -> int:
    """Number of steps of an interval; the last may be shorter."""
    return max(1, math.ceil(length / step - SLACK))


def find_step_ends(times: np.ndarray, explicit: bool, edges: list[float], step: float) -> np.ndarray:
    """Return the ends of steps that are nearest to save times; raise if one that the user chose is not an end."""
    starts, ends = np.array(edges[:-1]), np.array(edges[1:])
    segment = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, len(starts) - 1)
    begin, end = starts[segment], ends[segment]
    count = np.array([_count(length, step) for length in ends - starts])[segment]
    index = np.minimum(np.round((times - begin) / step), count)
    # the last step may be so short that the end is nearest although the index is rounded down
    index = np.where(end - times < np.abs(begin + index * step - times), count, index)
    found = np.where(index >= count, end, begin + index * step)
    wrong = np.abs(found - times) > SLACK * step
    if explicit and wrong.any():
        raise InputError(
            f"states with noise exist at the ends of steps of {step:g} only: {times[wrong][0]:g} is not one of them; give save times "
            "that are, or another step"
        )
    return np.unique(found)
