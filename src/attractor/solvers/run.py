"""``flow`` and ``velocity``: validation, preparation and execution of a run."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import engines, memory
from attractor.engines import distributed
from attractor.errors import InputError, UnsupportedError
from attractor.laws import Closure, Law, Stack
from attractor.progress import progress_bar
from attractor.serialization import move_tensors, tensors
from attractor.solvers.gaussian_integration import GaussianIntegration
from attractor.solvers.integration import Integration, Plan
from attractor.solvers.merging import Log, Merger
from attractor.solvers.native_loop import suits
from attractor.solvers.outcome import Statistics
from attractor.solvers.process_group import together
from attractor.solvers.saving import Recorder, save_times
from attractor.solvers.steppers.stepper import Stepper, default_method, stepper_named
from attractor.solvers.termination import Event as UserEvent
from attractor.solvers.termination import Rule, rules_from
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Euclidean, Space, space_named
from attractor.states import Gaussian, Tokens

SMALL = 1 << 20  # bytes of a state below which nobody asks how much memory there is


def check_footprint(shape: tuple[int, ...], stepper: Stepper, saved: int, bytes_each: int, device: Any = None) -> None:
    """Refuse a run of points (..., n, d) whose arrays cannot be had, before any of them is made.

    Saved states count twice: they are put together at the end. What an engine needs is not counted; those chosen for many
    tokens need little.
    """
    state, (n, d) = bytes_each * math.prod(shape), shape[-2:]
    if state < SMALL:
        return
    what = f"a run of {n:,} tokens of dimension {d} by {stepper.name} with {saved} saved states"
    advice = ", or save fewer states" if 2 * saved > stepper.arrays else ""
    memory.check((2 * saved + stepper.arrays) * float(state), n, what, device=device, advice=advice)


UPDATE_SECONDS = 0.1  # between updates of the progress bar
GAUSSIAN_RTOL = 2e-12  # a few numbers move, so digits are cheap; blow-up times want them


def velocity(law: Law, state: Tokens, space: Space | str | None = None, time: float = 0.0) -> Tensor:
    """One evaluation: the velocity of every token (..., n, d), tangent to the space at the token."""
    space = _space(space)
    if not isinstance(law, Law):
        raise InputError(f"velocity needs a law such as Attention(...), got {type(law).__name__}")
    if not isinstance(state, Tokens):
        raise InputError(f"velocity is that of Tokens(...), got {type(state).__name__}")
    law.check(state)
    space.check_dimension(state.dim)
    return space.tangent(state.points, law.velocity(state, time))


def flow(
    law: Law,
    state: Tokens | Gaussian,
    *,
    space: Space | str | None = None,
    until: float | None = None,
    start: float = 0.0,
    save: Any = None,
    method: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    step: float | None = None,
    adaptive: bool = True,
    merge: float | bool | None = None,
    stop: Sequence[str | Rule] | str | Rule | None = None,
    events: Sequence[UserEvent] = (),
    max_seconds: float | None = None,
    max_evaluations: int | None = None,
    store: str | Path | None = None,
    resume: bool = False,
    progress: Any = False,
    engine: str | None = None,
    spread: bool | None = None,
) -> Trajectory:
    """Move tokens by a law over a space, from ``start`` to ``until``.

    Parameters
    ----------
    law, state, space : what moves what where; the space defaults to R^d.
    until : the time to reach; may be left out for a Stack (its depth) or with explicit save times (the last).
    save : times to keep; None for a grid chosen for you, a number of equal intervals, or a list. Named times are always
        served by dense output, without further steps (and without further evaluations, but for three in a step of DOP853 that holds
        any); consensus, collapse and rest then end the run after the last.
    method : "dop853", "dopri5" (adaptive), "rk4", "euler" (fixed ``step``), "layers" (the discrete layer of size ``step``). A
        Gaussian for which none is named is followed in rescaled time, which resolves blow-up, and by an implicit method where it is stiff.
    rtol, atol : error allowed for each token and step; defaults 1e-8 and 1e-10 (float32: 1e-5 and 1e-7; a Gaussian: 2e-12, relative alone).
    step, adaptive : the step of a fixed method, or the first step of an adaptive one; ``adaptive=False`` keeps it.
    merge : tokens closer than this become one weighted token. None merges at a tenth of ``rtol`` where close tokens are
        known to come closer (full attention with value c I, c > 0, on a curved space, an adaptive method); False never merges.
    stop : rules that may end the run early: names ("consensus", "collapsed", "steady"), Rule objects, () for none.
    events : ``Event(function)`` objects, logged or terminal.
    max_seconds, max_evaluations : budgets.
    store, resume : a folder that receives the run while it runs, from which a killed run resumes.
    progress : True for a bar on stderr.
    engine : the name of an engine to use for attention, by the loop in Python; None chooses, and takes the steps of small
        systems in C++ where it can (then ``stats.engine`` is "native").
    spread : whether the processes that torchrun started share the run: each then computes the attention of some of the tokens, rank 0
        alone writes and draws the bar, and all return the same. None: where there are several and no gradient is asked for; False:
        a run of its own on every one.

    Returns a :class:`Trajectory`.
    """
    options = {
        "until": until,
        "start": start,
        "save": _plain(save),
        "method": method,
        "rtol": rtol,
        "atol": atol,
        "step": step,
        "adaptive": adaptive,
        "merge": merge,
        "stop": _plain(stop),
        "engine": engine,
    }
    budget = (max_seconds, max_evaluations)
    definition = {"law": law, "state": state, "space": _space(space), "options": options, "events": tuple(events)}
    differentiable = any(tensor.requires_grad for part in (law, state, definition["space"]) for tensor in tensors(part))
    if differentiable and store is not None:
        raise UnsupportedError("gradients do not flow through a store; detach the law and the tokens first")
    with (
        together(_shared(spread, differentiable), definition, store) as ranks,
        engines.using(engine) as used,
        nullcontext() if differentiable else torch.no_grad(),
    ):
        run = prepare(definition, budget, differentiable, doubled=store is None)
        run.engines = used
        if ranks is not None:
            ranks.begin(run, definition, {"budget": budget, "store": (store is None, resume)})
        with show_progress(progress, run.plan, ranks is None or ranks.rank == 0) as after_step:
            run.pause = 0.0 if callable(progress) else run.pause
            if store is None:
                run.run(after_step)
            else:
                from attractor.solvers.store import keep

                keep(run, store, definition, resume, after_step, ranks)
        if ranks is not None:
            ranks.end()
        return finished(run, definition)


@contextmanager
def show_progress(
    progress: bool | Callable[[Integration], None], plan: Plan, first: bool
) -> Iterator[Callable[[Integration], None]]:
    """Yield what to call after every step: the user's function, or one that moves a bar (drawn by the first process only).

    The bar moves with asinh of time, as the default save times do: half of a metastable run is its last decade.
    """
    if callable(progress):
        yield progress
        return
    unit, next_update = min(0.1, (plan.until - plan.start) / 10), 0.0
    total = math.asinh((plan.until - plan.start) / unit)
    with progress_bar("flow", progress is True and first, total=total, count=False) as update:

        def show(run: Integration) -> None:
            nonlocal next_update
            if clock.perf_counter() < next_update:
                return
            next_update = clock.perf_counter() + UPDATE_SECONDS
            time = float(run.t.min()) if len(run.t) else plan.until
            note = f"t = {time:.4g} of {plan.until:.4g}, {run.accepted} steps, {run.field.evaluations} evaluations"
            update(math.asinh((time - plan.start) / unit), note=note)

        yield show


def prepare(
    definition: dict[str, Any],
    budget: tuple[float | None, float | None],
    differentiable: bool = False,
    doubled: bool = False,
) -> Integration:
    """A run that is checked and ready to march.

    If ``doubled``, small systems in float32 are marched in float64, which the native loop knows: that is faster.
    """
    law, state, space, options = (definition[name] for name in ("law", "state", "space", "options"))
    if not isinstance(law, Law):
        raise InputError(f"flow needs a law such as Attention(...), got {type(law).__name__}")
    gaussian = isinstance(state, Gaussian)
    if isinstance(state, Gaussian):
        if space.curved:
            raise UnsupportedError(f"a Gaussian lives in flat space, not on the {space.name}")
        law, state = law if type(law) is Law else Closure(law), Tokens.trusted(state.rows())
    elif not isinstance(state, Tokens):
        raise InputError(f"flow moves Tokens(...) or a Gaussian(...), got {type(state).__name__}")
    law, space = move_tensors(law, state.points.device), move_tensors(space, state.points.device)
    law.check(state)
    space.check_dimension(state.dim)
    plan = _plan(law, state, space, options, definition["events"] or (), budget, differentiable, gaussian)
    tolerance = _merge_tolerance(law, plan, options["merge"], differentiable)
    doubled = doubled and plan.native and not gaussian and suits(plan, state.points)
    size = 8 if doubled else state.points.element_size()
    times, explicit = save_times(options["save"], plan.start, plan.until, state.points.numel() * size)
    times = _layer_times(times, explicit, plan) if plan.stepper.name == "layers" else times
    check_footprint(tuple(state.points.shape), plan.stepper, len(times), size, state.points.device)
    entered = _entered(law, state, space)
    if doubled:
        entered = _in_float64(entered)
    recorder = Recorder(times, explicit, entered.points.shape[0], entered.points)
    merger = None if tolerance is None else Merger(tolerance, _explicit_masses(entered))
    if gaussian and _rescalable(law, options, plan, differentiable):
        return GaussianIntegration(plan, entered, recorder, None)
    return Integration(plan, entered, recorder, merger)


def _in_float64(tokens: Tokens) -> Tokens:
    masses, positions = (None if part is None else part.double() for part in (tokens.masses, tokens.positions))
    return Tokens.trusted(tokens.points.double(), masses, positions)


def _rescalable(law: Law, options: dict[str, Any], plan: Plan, differentiable: bool) -> bool:
    """Whether a Gaussian is followed in rescaled time: unless a method, its steps, events or gradients are asked for."""
    plain = options["method"] is None and options["step"] is None and options["adaptive"] and not plan.events
    return plain and law.autonomous and isinstance(law, Closure) and not differentiable


def _shared(spread: bool | None, differentiable: bool) -> bool:
    """Whether other processes have a share in the run."""
    if spread not in (None, True, False):
        raise InputError(f"spread must be True, False or None, got {spread!r}")
    if spread and differentiable:
        raise UnsupportedError(
            "gradients do not flow between processes; detach the law and the tokens, or give spread=False"
        )
    return not differentiable if spread is None else bool(spread)


def _plain(value: Any) -> Any:
    """Arrays of times, and single rules, as plain lists."""
    if isinstance(value, (Tensor, np.ndarray)):
        return [float(item) for item in np.asarray(value, dtype=np.float64).reshape(-1)]
    if isinstance(value, np.integer):
        return int(value)
    return [value] if isinstance(value, Rule) else list(value) if isinstance(value, tuple) else value


def _space(space: Space | str | None) -> Space:
    if space is None:
        return Euclidean()
    if isinstance(space, str):
        return space_named(space)
    if not isinstance(space, Space):
        raise InputError(f"space must be Euclidean(), Sphere() or Ellipsoid(W), got {type(space).__name__}")
    return space


def _interval(law: Law, start: float, until: float | None, save: Any) -> tuple[float, float]:
    if until is None and isinstance(save, Sequence) and not isinstance(save, str) and len(save) > 0:
        until = float(save[-1])
    if until is None and isinstance(law, Stack):
        until = law.depth
    if until is None:
        raise InputError("flow needs a time to reach: give until=...")
    try:
        start, until = float(start), float(until)
    except (TypeError, ValueError):
        raise InputError(f"start and until must be numbers, got {start!r} and {until!r}") from None
    if not math.isfinite(start) or not math.isfinite(until):
        raise InputError(f"start and until must be finite times, got {start:g} and {until:g}")
    if until <= start:
        raise InputError(f"until = {until:g} is not after the start at t = {start:g}")
    return start, until


def _plan(
    law: Law,
    state: Tokens,
    space: Space,
    options: dict[str, Any],
    events: Sequence[UserEvent],
    budget: tuple[float | None, float | None],
    differentiable: bool,
    gaussian: bool = False,
) -> Plan:
    for event in events:
        if not isinstance(event, UserEvent):
            raise InputError(f"events are Event(function) objects, got {type(event).__name__}")
    for name, amount in zip(("max_seconds", "max_evaluations"), budget, strict=True):
        if amount is not None and not amount > 0:
            raise InputError(f"{name} must be positive, got {amount}")
    start, until = _interval(law, options["start"], options["until"], options["save"])
    rtol, atol = _tolerances(state.points.dtype, options["rtol"], options["atol"], gaussian)
    stepper = stepper_named(options["method"] or default_method(rtol))
    step, adaptive = options["step"], stepper.adaptive and options["adaptive"]
    if step is not None and not (math.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step:g}")
    if stepper.name == "layers" and step is None:
        step = law.duration if isinstance(law, Stack) else 1.0
    if step is None and not adaptive:
        raise InputError(f"method {stepper.name!r} takes steps of one size: give step=...")
    return Plan(
        law=law,
        space=space,
        start=start,
        until=until,
        stepper=stepper,
        rtol=rtol,
        atol=atol,
        step=None if step is None else float(step),
        adaptive=adaptive,
        rules=tuple(rules_from(options["stop"], space, law.autonomous, rtol, atol, state.n)),
        bound=1e15 if state.points.dtype == torch.float32 else 1e100,
        events=tuple(events),
        max_seconds=math.inf if budget[0] is None else float(budget[0]),
        max_evaluations=math.inf if budget[1] is None else float(budget[1]),
        native=options["engine"] is None and not differentiable and not distributed.is_active(),
    )


def _tolerances(
    dtype: torch.dtype, rtol: float | None, atol: float | None, gaussian: bool = False
) -> tuple[float, float]:
    single = dtype == torch.float32
    fine = GAUSSIAN_RTOL if gaussian else 1e-8
    rtol = (1e-5 if single else fine) if rtol is None else float(rtol)
    atol = (1e-7 if single else 1e-10) if atol is None else float(atol)
    floor = 10 * torch.finfo(dtype).eps
    if not floor <= rtol < 1:
        raise InputError(f"rtol must be between {floor:.1e} (what {dtype} can hold) and 1, got {rtol:g}")
    if not atol > 0:
        raise InputError(f"atol must be positive, got {atol:g}")
    return rtol, atol


def _merge_tolerance(law: Law, plan: Plan, merge: float | bool | None, differentiable: bool) -> float | None:
    """The distance below which tokens are one, or None for no merging."""
    obstacle = law.merge_obstacle()
    if merge is None:
        fits = obstacle is None and law.gathers() and plan.space.curved and plan.adaptive and not differentiable
        return 0.1 * plan.rtol if fits else None
    if merge is False:
        return None
    if isinstance(merge, bool) or not (math.isfinite(merge) and merge > 0):
        raise InputError(f"merge must be a positive distance, None or False, got {merge}")
    if obstacle is not None:
        raise UnsupportedError(f"tokens cannot be merged here: {obstacle}")
    if plan.stepper.name == "layers":
        raise UnsupportedError("tokens cannot be merged along discrete layers; use a continuous method")
    if differentiable:
        raise UnsupportedError("gradients do not flow through merging; detach the law and the tokens first")
    return float(merge)


def _layer_times(times: np.ndarray, explicit: bool, plan: Plan) -> np.ndarray:
    """Save times of discrete layers are ends of layers."""
    assert plan.step is not None
    layers = np.round((times - plan.start) / plan.step)
    snapped = np.minimum(plan.start + layers * plan.step, plan.until)
    if explicit and len(times) and (np.abs(snapped - times) > 1e-9 * max(plan.step, abs(plan.until))).any():
        raise InputError(
            f"along layers of size {plan.step:g} states exist only at whole layers; save times must be multiples of it"
        )
    return np.unique(snapped)


def _entered(law: Law, state: Tokens, space: Space) -> Tokens:
    """Tokens on the space, ensemble axes flattened to one."""
    state = law.enter(state)
    points = space.enter(state.points.reshape(-1, state.n, state.dim))
    flat = [
        None if row is None else row.reshape(-1, state.n) if row.ndim > 1 else row
        for row in (state.masses, state.positions)
    ]
    return Tokens.trusted(points, *flat)


def _explicit_masses(tokens: Tokens) -> Tensor:
    shape = tokens.points.shape[:2]
    if tokens.masses is None:
        return tokens.points.new_full(shape, 1.0 / tokens.n)
    return tokens.masses.expand(shape).clone()


def finished(run: Integration, definition: dict[str, Any]) -> Trajectory:
    """The run as the user sees it, with the ensemble axes restored."""
    recorder, plan, state = run.recorder, run.plan, definition["state"]
    finals = torch.stack([final for final in run.finals if final is not None])
    times, points = recorder.times[: recorder.rows], recorder.points[: recorder.rows]
    last = float(recorder.ends.max())
    if not recorder.explicit and (len(times) == 0 or times[-1] < last):
        times, points = np.append(times, last), torch.cat([points, finals[None]])
    forests = [] if run.merger is None else run.merger.forest
    if isinstance(state, Tokens):  # some runs in float32 are marched in float64
        points, finals = points.to(state.points.dtype), finals.to(state.points.dtype)
    shape = (*state.batch_shape, *finals.shape[1:])
    engine = "+".join(sorted(run.engines))
    merges = sum(map(len, forests))
    stats = Statistics(
        run.field.evaluations,
        run.accepted,
        run.rejected,
        run.seconds,
        run.method,
        engine,
        merges,
        run.processes,
        memory.peak(),
    )
    return Trajectory(
        times=torch.from_numpy(np.array(times)),
        points=points.reshape(len(times), *shape),
        final=state.moved(finals.reshape(shape)),
        outcomes=tuple(outcome for outcome in run.outcomes if outcome is not None),
        stats=stats,
        law=None if type(definition["law"]) is Law else definition["law"],
        space=plan.space,
        initial=state,
        events=Log(run.watch.log, forests),
        definition=definition,
        integration=run,
    )
