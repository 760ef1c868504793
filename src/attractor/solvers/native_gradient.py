"""Gradients through runs of the native loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.engines import native
from attractor.laws import Attention
from attractor.serialization import tensors
from attractor.solvers.integration import Integration, Plan
from attractor.solvers.native_loop import PARAMETERS, loop_parameters, set_law, set_plan
from attractor.solvers.saving import to_numpy
from attractor.solvers.steppers.stepper import Field, RungeKutta, Step
from attractor.states import Tokens

STATES_BYTES = 1 << 26  # of the states that are kept of all members, if there are not too many,
FEWEST, MOST = 8, 1024  # and how many of them a member has


def is_supported(plan: Plan, tokens: Tokens) -> bool:
    """Whether the native loop computes all gradients that a run needs."""
    return tokens.points.device.type == "cpu" and has_known_gradients(plan, tokens)


def has_known_gradients(plan: Plan, tokens: Tokens) -> bool:
    """Whether everything that needs a gradient is a state or a parameter of attention."""
    law = plan.law
    assert isinstance(law, Attention)
    known = [getattr(law, name) for name in PARAMETERS] + [law.scale, tokens.points, tokens.masses]
    known = {id(part) for part in known if isinstance(part, Tensor)}
    needed = [part for group in (law, tokens, plan.space) for part in tensors(group) if part.requires_grad]
    if isinstance(law.scale, Tensor) and float(law.scale.detach()) == 0.0:
        return False  # the gradient of the scale is computed up to a factor of the scale
    return (
        isinstance(plan.stepper, RungeKutta)
        and all(id(part) in known for part in needed)
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
        and not any(torch.autograd.forward_ad.unpack_dual(part).tangent is not None for part in needed)
    )


class NativeGradient:
    r"""Records the accepted steps of a run in the native loop, and computes gradients through them.

    The discrete solution is differentiated, with the lengths of its steps as constants. States are kept at some of the steps and
    the others are computed again, so that memory does not grow with the number of steps.

    Parameters
    ----------
    plan : what the run computes.
    tokens : the state at the start, on the space, with its ensemble axes flattened to one.
    """

    on_device: ClassVar[bool] = False  # whether the device loop takes the steps

    def __init__(self, plan: Plan, tokens: Tokens) -> None:
        self.plan, self.tokens = plan, tokens
        members, n, d = tokens.points.shape
        slots = min(MOST, max(FEWEST, STATES_BYTES // (members * 2 * n * d * 8)))
        self.record = native.StepRecord(members, n, d, slots)

    @property
    def detached_tokens(self) -> Tokens:
        """The state at the start without its history."""
        masses = None if self.tokens.masses is None else self.tokens.masses.detach()
        return Tokens.unchecked(self.tokens.points.detach(), masses, self.tokens.positions)

    def attach(self, run: Integration, finals: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Last states (members, n, d) and saved states (times, members, n, d) of a run that has ended, with a history."""
        law = self.plan.law
        assert isinstance(law, Attention)
        self.shape, self.count = finals.shape, len(points)
        self.times, self.reached, self.ends = run.recorder.times[: len(points)], run.recorder.reached, run.recorder.ends
        self.skip_self = run.field.skip_self
        parts: dict[str, Tensor | None] = {"start": self.tokens.points, "masses": self.tokens.masses}
        parts |= {name: part.contiguous() for name, part in loop_parameters(law).items()}
        parts["scale"] = law.scale if isinstance(law.scale, Tensor) else None
        self.names = tuple(parts)
        return _NativeFlow.apply(self, [finals, points], *parts.values())  # type: ignore[return-value]

    def differentiate(
        self,
        inputs: Sequence[Tensor | None],
        needed: Sequence[bool],
        grad_finals: Tensor | None,
        grad_points: Tensor | None,
    ) -> list[Tensor | None]:
        """Gradients of the inputs from those of last and saved states."""
        named = dict(zip(self.names, inputs, strict=True))
        wanted = dict(zip(self.names, needed, strict=True))
        start = named["start"]
        assert start is not None
        member, step, place, grads = self._find_reads(grad_finals, grad_points)
        loop = native.Loop()
        set_plan(loop, self.plan, self.skip_self)
        law = self.plan.law
        assert isinstance(law, Attention)
        set_law(loop, law, self.detached_tokens)
        if self.tokens.masses is not None:
            loop.set_arrays(masses=self.detached_tokens.masses.reshape(-1, start.shape[1]).contiguous())  # type: ignore[union-attr]
        members, groups = len(start), self.record.groups
        found: dict[str, np.ndarray] = {"start": np.zeros(start.shape)}
        shared: set[str] = set()
        for name, part in named.items():
            if name == "start" or not wanted[name]:
                continue
            assert part is not None
            shape = tuple(part.shape)
            if name in ("output_bias", "scale") or (name == "masses" and part.ndim == 1):
                shape = (1, *shape)
            if shape[0] == 1:
                shared.add(name)
            found[name] = np.zeros((groups if name in shared else members, *shape[1:]))
        loop.set_arrays(**{f"grad_{name}": array for name, array in found.items()})
        loop.differentiate(self.record, member, step, place, grads)
        results: list[Tensor | None] = []
        for name, part in named.items():
            if part is None or not wanted[name]:
                results.append(None)
                continue
            array = found[name].sum(0) if name in shared else found[name]
            grad = torch.from_numpy(np.ascontiguousarray(array)).reshape(part.shape).to(part.dtype)
            results.append(grad / part.detach() if name == "scale" else grad)
        return results

    def _find_reads(
        self, grad_finals: Tensor | None, grad_points: Tensor | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Members, steps, places and gradients of the states that have a gradient, in the order of time."""
        members = self.shape[0]
        last = np.zeros(tuple(self.shape)) if grad_finals is None else to_numpy(grad_finals.double())
        count, grads = 0, np.empty((0, *last.shape[1:]))
        numbers = rows = np.empty(0, dtype=np.int64)
        if grad_points is not None and len(grad_points):
            given = grad_points.detach().double().cpu().numpy()
            used = given.reshape(*given.shape[:2], -1).any(-1)
            reached = np.arange(len(given))[:, None] < self.reached[None]
            np.add.at(last, np.nonzero(used & ~reached)[1], given[used & ~reached])  # those hold the last state
            numbers, rows = np.nonzero((used & reached).T)
            grads, count = given[rows, numbers], len(rows)
        ended = np.flatnonzero(last.reshape(members, -1).any(-1))
        member = np.concatenate([numbers, ended])
        time = np.concatenate([self.times[rows], self.ends[ended]])
        is_last = np.arange(len(member)) >= count
        step, place = self.record.locate(self.plan.start, self.plan.until, member, time, is_last)
        return member, step, place, np.ascontiguousarray(np.concatenate([grads, last[ended]]))

    # ------------------------------------------------------------------ higher derivatives

    def replay(
        self,
        inputs: Sequence[Tensor | None],
        needed: Sequence[bool],
        grad_finals: Tensor | None,
        grad_points: Tensor | None,
    ) -> list[Tensor | None]:
        """``differentiate`` by autograd through the recorded steps, so that its results have a history themselves."""
        named = dict(zip(self.names, inputs, strict=True))
        given = [grad for grad in (grad_finals, grad_points) if grad is not None]
        if not given:
            return [None] * len(inputs)
        finals, points = self._integrate(named)
        outputs = [out for out, grad in ((finals, grad_finals), (points, grad_points)) if grad is not None]
        wanted = [part for part, need in zip(inputs, needed, strict=True) if need and part is not None]
        found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
        return [next(found) if need and part is not None else None for part, need in zip(inputs, needed, strict=True)]

    def _integrate(self, named: dict[str, Tensor | None]) -> tuple[Tensor, Tensor]:
        """The recorded steps with operations of PyTorch."""
        law, stepper, space = self.plan.law, self.plan.stepper, self.plan.space
        assert isinstance(law, Attention)
        assert isinstance(stepper, RungeKutta)
        parts: dict[str, Any] = {name: named.get(name) for name in PARAMETERS}
        for name, part in parts.items():
            if part is not None and name != "output_bias" and len(part) == 1:
                parts[name] = part[0]
        scale = law.scale if named["scale"] is None else named["scale"]
        law = dataclasses.replace(law, **parts, scale=scale)
        y = named["start"]
        assert y is not None
        members = len(y)
        field = Field(law, space, Tokens.unchecked(y, named["masses"], self.tokens.positions), self.skip_self)
        lengths = self.record.lengths()
        count = max((len(row) for row in lengths), default=0)
        h = np.stack([np.pad(row, (0, count - len(row))) for row in lengths], 1) if count else np.zeros((0, members))
        rows, saved = np.nonzero(np.arange(self.count)[None] < self.reached[:, None])
        member = np.concatenate([rows, np.arange(members)])
        time = np.concatenate([self.times[saved], self.ends])
        is_last = np.arange(len(member)) >= len(rows)
        steps, places = self.record.locate(self.plan.start, self.plan.until, member, time, is_last)
        states: list[Tensor | None] = [None] * len(member)
        for read in np.flatnonzero(steps < 0):
            states[read] = y[member[read]] if is_last[read] else space.retract(y[member[read]])
        t = np.full(members, self.plan.start)
        f = field.lifted_velocity(t, y)
        for number in range(count):
            end, slope, slopes = stepper.stages(field, t, h[number], y, f)
            moving = torch.from_numpy(h[number] > 0).to(y.device).view(-1, 1, 1)
            stretch = space.stretch(end)
            after = torch.where(moving, end / stretch, y)
            reads = np.flatnonzero(steps == number)
            inside = reads[places[reads] < 1.0]
            if len(inside):
                polynomial = stepper.interpolate(field, t, h[number], y, f, Step(end, slope, (), slopes))
                assert polynomial is not None
                lag = (places[inside] - 1.0) * h[number][member[inside]]
                for read, state in zip(inside, space.retract(polynomial.at(member[inside], lag)), strict=True):
                    states[read] = state
            for read in reads[places[reads] >= 1.0]:
                states[read] = after[member[read]]
            y, f = after, torch.where(moving, slope / stretch, f)
        finals = torch.stack([states[read] for read in np.flatnonzero(is_last)])  # type: ignore[misc]
        table = {(saved[k], rows[k]): states[k] for k in range(len(rows))}
        every = [[table.get((row, m), finals[m]) for m in range(members)] for row in range(self.count)]
        points = torch.stack([torch.stack(row) for row in every]) if every else finals.new_empty((0, *finals.shape))  # type: ignore[arg-type]
        return finals, points


class _NativeFlow(torch.autograd.Function):
    """Last and saved states of a recorded run as functions of its start and its parameters."""

    @staticmethod
    def forward(
        ctx: Any, gradient: NativeGradient, states: list[Tensor], *inputs: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.gradient = gradient
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)
        finals, points = states
        states.clear()
        return finals, points

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, needed = ctx.saved_tensors, ctx.needs_input_grad[2:]
        gradient: NativeGradient = ctx.gradient
        if torch.is_grad_enabled():
            return (None, None, *gradient.replay(inputs, needed, *grads))
        return (None, None, *gradient.differentiate(inputs, needed, *grads))
