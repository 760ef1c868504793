"""The device loop: integration of ensembles of small systems, or of one larger system, by one CUDA kernel (``device_loop.cu``)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor import memory
from attractor.laws import Attention
from attractor.serialization import tensors
from attractor.solvers import device_kernels as kernels
from attractor.solvers import termination as constants
from attractor.solvers.device_kernels import FLAGS, PAIRS, RULE_NUMBERS, STATES, STEP_SECONDS, STOPS, Run
from attractor.solvers.merging import EventLog, NativeMerges
from attractor.solvers.native_loop import LoopResult, NoisyResult, make_polynomial
from attractor.solvers.outcome import Outcome, Statistics
from attractor.solvers.saving import LastStates, Recorder
from attractor.solvers.step_control import GROW, SAFETY, SHRINK
from attractor.solvers.steppers.stepper import RungeKutta
from attractor.solvers.stiffness import CALM_STEPS, INTERVAL, NEAR, STIFF_STEPS
from attractor.solvers.store import Definition, RunRecord
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Euclidean, Sphere
from attractor.states import Tokens, read_contents

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration, Plan

PATIENCE = 4.0  # a launch may take so many times as long as the native loop between looks at signals and budgets
REPEATS = 16  # runs of one law that are remembered
RECENT = 0.05  # seconds for which a reading of the peak memory is used again
OFF_SPACE = 5  # place in the totals of the number of tokens that do not start on the space


class DeviceLoop:
    """Passes the state of an integration to the kernel and back; the counterpart of ``NativeLoop``."""

    name = "device"

    def __init__(self, run: Integration) -> None:
        self.run = run
        self.repeat: Repeat | None = None  # the launch of a run that arrived in it
        self.parameters: tuple[Attention, kernels.Parameters] | None = None  # of the law of the rows that are left

    def advance(self, seconds: float) -> LoopResult:
        """Take steps of every row for about so many seconds; one attempt each if that is 0."""
        run, plan, merger, termination = self.run, self.run.plan, self.run.merger, self.run.termination
        seconds = min(PATIENCE * seconds, plan.max_seconds - (time.perf_counter() - termination.budget_start[0]))
        members, width, dim = run.y.shape
        device, law, recorder = run.y.device, run.field.law, run.recorder
        assert isinstance(law, Attention)
        assert isinstance(plan.stepper, RungeKutta)
        fresh = not run.h.any()
        y = run.y.clone(memory_format=torch.contiguous_format)
        f = torch.empty_like(y) if fresh else run.f.clone(memory_format=torch.contiguous_format)
        merges = None if merger is None else DeviceMerges(merger, y)
        state = self._state(fresh, merges)
        totals = torch.zeros(8, dtype=torch.float64, device=device)
        rules, order = bool(plan.rules), [RULE_NUMBERS[rule.name] for rule in plan.rules]
        anchor = termination.anchor.clone(memory_format=torch.contiguous_format) if rules else y
        sized = [name for name in order if name != RULE_NUMBERS["steady"]]
        parts = kernels.count_slopes(type(plan.stepper))[0]
        inside = y.new_empty((members, 1 + parts, width, dim)) if sized else None
        masses = merges.masses if merges is not None else run.field.masses
        masses = None if masses is None else masses.to(y).reshape(-1, masses.shape[-1]).contiguous()
        if merges is not None:
            merges.masses = masses
        whole = recorder.points.shape
        if self.parameters is None or self.parameters[0] is not law:
            self.parameters = law, kernels.find_parameters(law, plan, y)
        skip_self, known = run.field.skip_self and run.gradient is None, self.parameters[1]
        system = kernels.describe_system(plan, law, y, masses, run.field.positions, skip_self, whole[1:3], known)
        record = getattr(run.gradient, "record", None)
        macros = {
            **system.macros,
            "MERGING": int(merges is not None),
            "RULES": int(rules),
            "RECORD": int(record is not None),
        }
        function = kernels.find_function(macros, type(plan.stepper), device, system.layout.shared)
        save_times = _times_on(np.ascontiguousarray(recorder.times).tobytes(), device)
        attempts, fixed, extra = self._attempts(seconds), {} if merges is None else merges.arrays(), {}
        if record is not None:
            attempts, fixed, extra = record.arguments(attempts)
            record.parameters = record.parameters or known
        argument = Run(
            members=members, columns=whole[1], saves=len(recorder.times), attempts=attempts, n=whole[2], **extra,
            fresh=int(fresh), named_times=int(recorder.explicit), merge=0.0 if merger is None else merger.tolerance,
            **system.numbers, **_plan_numbers(plan),
        )  # fmt: skip
        argument.order[:] = [*order, -1, -1, -1][:3]
        launch = Launch(function, system.layout, argument, {**system.tensors, "save_times": save_times})
        launch(
            y,
            f=f,
            anchor=anchor,
            inside=inside,
            saved=recorder.points,
            masses=masses,
            state=state,
            totals=totals,
            **fixed,
        )
        if record is not None:
            record.update(not totals[3])
        evaluations, accepted, rejected, others, merged = (round(total) for total in totals.tolist()[:5])

        if merges is not None:
            merges.fetch(state, merged)
        if not others:  # everyone arrived: nothing else of the state is needed
            if merger is not None and merges is not None:
                merger.apply_native(merges, np.zeros(members, dtype=np.int64), finished=True)
            if fresh and merger is None and masses is None and not rules and run.segment == 0 and record is None:
                self.repeat = Repeat(plan, launch, recorder.times, recorder.explicit)
            return _all_arrived(plan.until, len(recorder.times), y, f, (evaluations, accepted, rejected))
        rows = dict(zip(STATES, state.cpu().numpy(), strict=True))
        if merger is not None and merges is not None:
            counts = rows["count"].astype(np.int64)
            finished = bool((rows["flags"] == FLAGS["arrived"]).all())
            width = merger.apply_native(merges, counts, finished=finished)
            y, f, anchor = (part[:, :width].contiguous() for part in (y, f, anchor))
        flags = rows["flags"].astype(np.int64)
        counters = {name: rows[name] for name in ("last", "anchor_t")}
        counters |= {name: rows[name].astype(np.int64) for name in ("streak", "rest")}
        termination.set_counters(**counters, anchor=anchor if rules else termination.anchor[:, :width])
        run.stiffness.set_counters(
            implicit=run.stiffness.implicit,
            **{name: rows[name].astype(np.int64) for name in ("steps", "wait", "suspect", "calm")},
        )
        entered, look, failed, arrived, located, stiff = (flags & STOPS) > 0
        taken = rows["taken"]
        part = None if inside is None or not located.any() else inside[:, :, :width]
        return LoopResult(
            entered=entered, look=look & ~entered, failed=failed, arrived=arrived, stiff=stiff, taken=taken,
            t=rows["t"], t_low=rows["t_low"], h=rows["h"], retried=rows["retried"] != 0, next_rows=rows["next"].astype(np.int64),
            y=y, f=f, interpolant=None if part is None else partial(make_polynomial, taken, part),
            evaluations=evaluations, accepted=accepted, rejected=rejected,
        )  # fmt: skip

    def _state(self, fresh: bool, merges: DeviceMerges | None) -> Tensor:
        """State of the rows: on the device at the start, and from the host afterwards."""
        run, termination = self.run, self.run.termination
        members, width, _ = run.y.shape
        if fresh:
            # the kernel fills it
            state = torch.empty((len(STATES), members), dtype=torch.float64, device=run.y.device)
            if "collapsed" in {rule.name for rule in run.plan.rules}:
                state[STATES.index("size")] = torch.from_numpy(termination.size).to(state)
            return state
        rows = {name: getattr(run, name) for name in ("t", "t_low", "h", "retried")}
        rows |= {name: getattr(run.stiffness, name) for name in ("implicit", "steps", "wait", "suspect", "calm")}
        rows |= {name: getattr(termination, name) for name in ("streak", "last", "anchor_t", "rest", "hold")}
        rows |= {"next": run.recorder.next[run.members], "who": run.members, "size": termination.size[run.members]}
        rows["noted"] = self._deferred_rules()
        rows["count"] = np.full(members, width) if run.merger is None else run.merger.alive.sum(1).cpu().numpy()
        if merges is not None:
            rows |= {"slack": merges.slack, "nodes": merges.nodes}
        table = np.zeros((len(STATES), members))
        for name, values in rows.items():
            table[STATES.index(name)] = values
        return torch.from_numpy(table).to(run.y.device)

    def _attempts(self, seconds: float) -> int:
        """Number of attempts that take so many seconds; few where a budget ends soon."""
        run = self.run
        members, n, _ = run.y.shape
        stages = len(run.plan.stepper.coefficients[0]) + 1  # type: ignore[index]
        each = max(STEP_SECONDS, stages * members * run.field.law.heads * float(n) ** 2 / PAIRS[run.y.dtype])  # type: ignore[attr-defined]
        left = run.plan.max_evaluations - (run.field.evaluations - run.termination.budget_start[1])
        return int(max(1, min(seconds / each, left // (members * (stages + 4)))))

    def _deferred_rules(self) -> np.ndarray:
        """Number of the rule of each row whose outcome is deferred, or -1."""
        deferred = self.run.termination.deferred
        found = (deferred.get(int(member)) for member in self.run.members) if deferred else ()
        rules = [-1 if outcome is None else RULE_NUMBERS[outcome.name] for outcome in found]
        return np.array(rules) if deferred else np.full(len(self.run.members), -1)


def _plan_numbers(plan: Plan) -> dict[str, Any]:
    """Numbers of a plan that the kernel needs."""
    assert isinstance(plan.stepper, RungeKutta)
    tolerances = {rule.name: float(rule.tolerance) for rule in plan.rules}  # type: ignore[attr-defined]
    return {
        "start": plan.start, "end": plan.until, "rtol": plan.rtol, "atol": plan.atol, "first_step": plan.step or 0.0,
        "safety": SAFETY, "shrink": SHRINK, "grow": GROW, "bound": plan.bound,
        "consensus": tolerances.get("consensus", -1.0), "collapse": tolerances.get("collapsed", -1.0),
        "steady": tolerances.get("steady", -1.0), "noise": constants.NOISE, "patience": constants.PATIENCE,
        "enough_rest": constants.REST, "calm_growth": constants.CALM_GROWTH, "tiny": constants.TINY,
        "least_time": constants.LEAST_TIME, "least_move": constants.LEAST_MOVE, "unresolved": constants.UNRESOLVED_SPACINGS,
        "given_up": constants.FAILED_SPACINGS, "stability": 0.0 if plan.implicit is None else NEAR * plan.stepper.stability,
        "stiff_steps": STIFF_STEPS, "calm_steps": CALM_STEPS, "first_wait": INTERVAL,
    }  # fmt: skip


@lru_cache(maxsize=64)
def _times_on(times: bytes, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(times).copy()).to(device)


@dataclass(frozen=True)
class Launch:
    """A launch of the kernel apart from its state: numbers of the argument, and arrays of the law that stay the same."""

    function: Any
    layout: kernels.Layout
    argument: Run
    fixed: dict[str, Tensor | None]

    def __call__(self, y: Tensor, totals: Tensor, rows: int = 0, **arrays: Tensor | None) -> None:
        """Integrate points y (members, width, d) in place; ``rows`` are further bytes that a grid has in global memory."""
        layout, blocks = self.layout, len(y)
        if layout.tile:
            width = y.shape[1]
            blocks = -(-width * layout.split // layout.threads)
            arrays["workspace"] = y.new_empty(layout.workspace(y) + rows // y.element_size())
            arrays["partials"] = y.new_empty(8 * blocks)
        argument = Run.from_buffer_copy(self.argument)
        for name, tensor in {**self.fixed, **arrays}.items():
            setattr(argument, name, None if tensor is None else tensor.data_ptr())
        argument.y, argument.totals, argument.arrived = y.data_ptr(), totals.data_ptr(), totals[-1:].data_ptr()
        together = layout.tile > 0
        kernels.backend.launch(self.function, blocks, layout.threads, layout.shared, argument, y.device, together)


@dataclass(frozen=True)
class Repeat:
    """A run in which every member arrived in one launch. The same run from other points needs nothing but this launch."""

    plan: Plan
    launch: Launch
    times: np.ndarray
    explicit: bool
    contents: bytes = b""


_repeats: WeakKeyDictionary[Attention, dict[Any, Repeat]] = WeakKeyDictionary()


def _repeat_key(definition: Definition) -> Any:
    """What runs have in common that differ in points only, apart from the law; None for runs that are not remembered."""
    state, space, options = definition.state, definition.space, definition.options
    if (
        type(state) is not Tokens
        or state.points.device.type != kernels.backend.device_type
        or type(definition.law) is not Attention
        or type(space) not in (Euclidean, Sphere)
        or options["stop"] != []
        or state.masses is not None
        or state.positions is not None
        or definition.noise is not None
        or definition.events
    ):
        return None
    key = (state.points.shape, state.points.dtype, state.points.device, type(space), getattr(space, "radius", 1.0))
    return (*key, *(tuple(value) if type(value) is list else value for value in options.values()))


def remember(definition: Definition, run: Integration, repeat: Repeat) -> None:
    """Keep the launch of a run for ``repeat_run``."""
    key, law = _repeat_key(definition), definition.law
    if key is None or run.span is not None or not isinstance(law, Attention):
        return
    contents = read_contents([*tensors(law)])
    if contents is None:
        return
    known = _repeats.setdefault(law, {})
    if len(known) >= REPEATS:
        known.clear()
    known[key] = replace(repeat, contents=contents)


def repeat_run(definition: Definition) -> Trajectory | None:
    """Carry out a run as one launch if a run that differs in points only was one; None if it has to be integrated step by step."""
    law = definition.law
    known = _repeats.get(law) if type(law) is Attention else None
    key = None if known is None else _repeat_key(definition)
    found = None if known is None or key is None else known.get(key)
    if known is None or found is None or kernels.backend.reason or torch.compiler.is_compiling():
        return None
    if found.contents != read_contents(tensors(law)):
        del known[key]
        return None
    began = time.perf_counter()
    state, launch = definition.state, found.launch
    assert isinstance(state, Tokens)
    n, dim = state.points.shape[-2:]
    try:
        y = state.points.detach().reshape(-1, n, dim).clone(memory_format=torch.contiguous_format)
        saved = y.new_empty((len(found.times), len(y), n, dim))
        table = torch.empty((len(STATES), len(y)), dtype=torch.float64, device=y.device)
        totals = torch.zeros(8, dtype=torch.float64, device=y.device)
        launch(y, totals, f=torch.empty_like(y), anchor=y, saved=saved, state=table)
    except torch.OutOfMemoryError:
        return None  # the run step by step says what fits
    costs = totals.tolist()
    if costs[3] or costs[OFF_SPACE]:  # some member did not arrive, or a token was not on the space
        del known[key]
        return None
    return _finished_trajectory(definition, found, y, saved, [round(cost) for cost in costs[:3]], began)


def _all_arrived(end: float, saves: int, y: Tensor, f: Tensor, costs: tuple[int, int, int]) -> LoopResult:
    """The result where every member has arrived at the end of the run."""
    members = len(y)
    none, everyone = np.zeros(members, dtype=bool), np.ones(members, dtype=bool)
    return LoopResult(
        entered=none, look=none, failed=none, arrived=everyone, stiff=none, taken=np.zeros(members),
        t=np.full(members, end), t_low=np.zeros(members), h=np.ones(members), retried=none,
        next_rows=np.full(members, saves), y=y, f=f, interpolant=None,
        evaluations=costs[0], accepted=costs[1], rejected=costs[2],
    )  # fmt: skip


def _finished_trajectory(
    definition: Definition, found: Repeat, y: Tensor, saved: Tensor, costs: list[int], began: float
) -> Trajectory:
    """The trajectory of a run whose members all arrived."""
    state, plan, members = definition.state, found.plan, len(y)
    assert isinstance(state, Tokens)
    evaluations, accepted, rejected = costs
    outcome = Outcome("reached", plan.until, f"the requested time {plan.until:g} was reached")
    outcomes, seconds = (outcome,) * members, time.perf_counter() - began
    finals = LastStates(members)
    finals.put(np.arange(members), y)
    record = RunRecord(
        recorder=Recorder.finished(found.times, found.explicit, saved, plan.until),
        outcomes=outcomes, finals=finals, events=(), merge_trees=(), segment=1, accepted=accepted, rejected=rejected,
        seconds=seconds, evaluations=evaluations, engines=("device",), method=plan.stepper.name,
    )  # fmt: skip
    stats = Statistics(
        evaluations, accepted, rejected, seconds, plan.stepper.name, "device", peak_memory=memory.peak(RECENT)
    )
    return Trajectory(
        times=torch.from_numpy(found.times.copy()),
        points=saved.reshape(len(saved), *state.points.shape),
        final=state.with_points(y.reshape(state.points.shape)),
        outcomes=outcomes, stats=stats, law=definition.law, space=plan.space, initial=state, events=EventLog([], []),
        definition=definition, record=record,
    )  # fmt: skip


class DeviceNoisyLoop:
    """Passes the state of a run with noise to the kernel and back; the counterpart of ``NativeNoisyLoop``."""

    name = "device"

    def __init__(self, run: Integration) -> None:
        self.run = run
        self.parameters: tuple[Attention, kernels.Parameters] | None = None  # of the law of the rows that are left

    def seconds(self, stages: int) -> float:
        """Seconds of a step of all members, about."""
        members, n, _ = self.run.y.shape
        heads = self.run.field.law.heads  # type: ignore[attr-defined]
        return max(STEP_SECONDS, stages * members * heads * float(n) ** 2 / PAIRS[self.run.y.dtype])

    def advance(
        self, first: int, step: float, amplitudes: Tensor, common: np.ndarray, save_rows: np.ndarray, fresh: bool
    ) -> NoisyResult:
        """Take ``len(save_rows)`` steps of every row, see ``NativeNoisyLoop.advance``."""
        run, plan, law, source = self.run, self.run.plan, self.run.field.law, self.run.field.source
        assert isinstance(law, Attention)
        assert source is not None
        assert plan.noise is not None
        device, whole = run.y.device, run.recorder.points.shape
        y, f = (points.clone(memory_format=torch.contiguous_format) for points in (run.y, run.f))
        members, width, dim = y.shape
        masses = run.field.masses
        masses = None if masses is None else masses.to(y).reshape(-1, masses.shape[-1]).contiguous()
        if self.parameters is None or self.parameters[0] is not law:
            self.parameters = law, kernels.find_parameters(law, plan, y)
        skip_self, known = run.field.skip_self, self.parameters[1]
        system = kernels.describe_system(plan, law, y, masses, run.field.positions, skip_self, whole[1:3], known)
        method = 1 + ("euler", "strang2").index(plan.stepper.name)
        macros = {"NOISE": method, "LAYER_NOISE": int(plan.noise.kind == "layer")}
        function = kernels.find_function({**system.macros, **macros}, type(plan.stepper), device, system.layout.shared)
        table = torch.zeros((len(STATES), members), dtype=torch.float64, device=device)
        table[STATES.index("who")] = torch.from_numpy(run.members).to(table)
        a = amplitudes.to(device, torch.float64).contiguous()
        tensors_ = {
            "state": table, "amplitudes": a, "common": torch.from_numpy(np.ascontiguousarray(common)).to(device),
            "save_rows": torch.from_numpy(save_rows.astype(np.int32)).to(device), "draws": source.members.to(device).contiguous(),
            "f": f, "saved": run.recorder.points, "masses": masses,
        }  # fmt: skip
        if plan.space.native_name == "ellipsoid":
            root = plan.space.sphere_matrix(dim, inverse=True)
            tensors_["inverse_root"] = root.to(device, torch.float64).contiguous()
        argument = Run(
            members=members, columns=whole[1], n=width, attempts=len(save_rows), fresh=int(fresh), bound=plan.bound,
            amplitude_steps=0 if len(a) == 1 else a[0].numel(), amplitude_members=0 if a.shape[1] == 1 else a.shape[2],
            amplitude_tokens=int(a.shape[2] > 1), common_steps=int(len(common) > 1), first=first, noise_step=step,
            **system.numbers,
        )  # fmt: skip
        argument.seed[:] = [plan.noise.seed & 0xFFFFFFFF, plan.noise.seed >> 32]
        Launch(function, system.layout, argument, system.tensors)(y, torch.zeros(8, device=device), **tensors_)
        rows = dict(zip(STATES, table.cpu().numpy(), strict=True))
        flags = rows["flags"].astype(np.int64)
        failed, far = (flags & FLAGS[name] > 0 for name in ("failed", "check"))
        return NoisyResult(rows["taken"].astype(np.int64), failed, far, y, f, round(rows["evaluations"].sum()))


def noise_obstacle(run: Integration) -> str:
    """Why the kernel cannot take the steps of a run with noise; empty if it can."""
    plan = run.plan
    if run.y.device.type != kernels.backend.device_type:
        return f"the tokens are on the {run.y.device.type}"
    if not plan.native:
        return kernels.OTHER_ENGINE
    if plan.noise is None or not plan.noise.draws_increments or plan.stepper.name not in ("euler", "strang2"):
        return "it does not know this noise"
    if plan.events:
        return "events are Python functions"
    if plan.differentiable:
        return "gradients are needed that it does not compute"
    return kernels.system_obstacle(plan, run.y, run.field.positions)


class DeviceMerges(NativeMerges):
    """Arrays of a merger on the device, and room for the merges that the kernel makes."""

    def __init__(self, merger: Any, y: Tensor) -> None:
        members, width = merger.masses.shape
        known = merger.anchor is not None and merger.anchor.shape == y.shape
        self.masses = merger.masses.to(y.device, copy=True)
        anchor = y if merger.anchor is None or not known else merger.anchor.to(y)
        self.anchor = anchor.clone(memory_format=torch.contiguous_format)
        self.slack = merger.slack.copy() if known else np.zeros(members)
        self.row_of = merger.row_of
        self.nodes = np.array([merger.n + len(merger.trees[member]) for member in merger.members])
        self.device = {
            name: torch.from_numpy(np.ascontiguousarray(getattr(merger, name), dtype=np.int32)).to(y.device)
            for name in ("row_of", "node_of")
        }
        self.log = torch.zeros((4, members, width), dtype=torch.float64, device=y.device)
        self.width = width

    def arrays(self) -> dict[str, Any]:
        return {"near_anchor": self.anchor, "log": self.log, **self.device}

    def fetch(self, state: Tensor, merged: int) -> None:
        """Copy what the kernel changed to the host; ``merged`` members have merges."""
        self.slack = state[STATES.index("slack")].cpu().numpy()
        if not merged:
            self.merges = np.zeros(len(state[0]), dtype=np.int64)
            return
        self.merges = state[STATES.index("merges")].cpu().numpy().astype(np.int64)
        log = self.log[:, :, : int(self.merges.max())].cpu().numpy()
        self.times, self.left, self.right, self.weights = (
            log[0],
            log[1].astype(np.int64),
            log[2].astype(np.int64),
            log[3],
        )
        self.row_of, self.node_of = (self.device[name].cpu().numpy().astype(np.int64) for name in ("row_of", "node_of"))
