"""``flow`` and ``velocity``: validation, preparation and execution of a run."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor import engines, memory
from attractor.engines import distributed
from attractor.errors import InputError, UnsupportedError
from attractor.laws import AbsentLaw, Attention, Closure, Law, Stack, check_velocities, is_external, merging_changes
from attractor.progress import progress_bar
from attractor.serialization import move_tensors, tensors
from attractor.solvers import device_gradient, native_gradient
from attractor.solvers import store as checkpoints
from attractor.solvers.cluster_integration import METHOD as CLUSTERS
from attractor.solvers.cluster_integration import integrate_clusters, load_log_run, log_time_obstacle, reject_options
from attractor.solvers.density_integration import prepare_density
from attractor.solvers.device_loop import remember, repeat_run
from attractor.solvers.gaussian_integration import GaussianIntegration
from attractor.solvers.integration import Execution, Integration, Plan
from attractor.solvers.log_time import LARGEST, LogTime, log_of
from attractor.solvers.merging import EventLog, Merger
from attractor.solvers.native_loop import LOOP_SECONDS, is_supported
from attractor.solvers.noise import DiffusingClosure, Noise, Redrawn
from attractor.solvers.noisy_integration import NoisyIntegration, find_step_ends, noisy_method
from attractor.solvers.observation import integrate_and_observe, named_observables
from attractor.solvers.outcome import Outcome, Statistics
from attractor.solvers.process_group import ProcessGroup, join_processes
from attractor.solvers.saving import Recorder, grid_rates, save_times, stack_states
from attractor.solvers.span_reduction import find_span
from attractor.solvers.steppers.stepper import Stepper, default_method, implicit_method, stepper_named
from attractor.solvers.store import Definition
from attractor.solvers.termination import Event as UserEvent
from attractor.solvers.termination import Rule, select_rules
from attractor.solvers.trajectory import Trajectory
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere, space_named
from attractor.states import (
    Density,
    Equiangular,
    Gaussian,
    Tokens,
    cosine_and_radius,
    factor_of,
    is_in_range,
    read_contents,
    split_size,
)

SHORTEST, LONGEST = 1e-290, 1e300  # lengths of a run; shorter and longer ones leave the range of float64 in between
MAX_STEPS = 1e9  # of a fixed length; they take days
SMALL = 1 << 20  # bytes of a state below which memory is not checked


def check_footprint(shape: tuple[int, ...], stepper: Stepper, saved: int, bytes_each: int, device: Any = None) -> None:
    """Raise if there is not enough memory for a run of points (..., n, d), before any array is allocated.

    Saved states count twice, since they are concatenated at the end. Engines are not counted: those chosen for many tokens
    need little.
    """
    state, (n, d) = bytes_each * math.prod(shape), shape[-2:]
    if state < SMALL:
        return
    what = f"a run of {n:,} tokens of dimension {d} by {stepper.name} with {saved} saved states"
    advice = ", or save fewer states" if 2 * saved > stepper.arrays else ""
    memory.check((2 * saved + stepper.arrays) * float(state), n, what, device=device, advice=advice)


TOGETHER = 20.0  # relative distance, in tolerances, below which equiangular tokens at rest are together
RECENT = 0.05  # seconds; runs that are shorter report the peak memory of the last so many seconds
UPDATE_SECONDS = 0.1  # between updates of the progress bar
GAUSSIAN_RTOL = 2e-12  # the state is small, so accuracy is cheap, and blow-up times need it


def velocity(law: Law, state: Tokens, space: Space | str | None = None, time: float = 0.0) -> Tensor:
    r"""Evaluate a law once.

    Parameters
    ----------
    law : gives every token its velocity.
    state : Tokens with points (..., n, d).
    space : Euclidean() (default), Sphere(), Ellipsoid(W), or a name.
    time : for laws that depend on time.

    Returns
    -------
    Tensor
        Velocities :math:`\Pi_{x_i} v_i(x)` (..., n, d), tangent to the space at each token.
    """
    space = space_of(space)
    if not isinstance(law, Law):
        raise InputError(f"velocity needs a law such as Attention(...), got {type(law).__name__}")
    if not isinstance(state, Tokens):
        raise InputError(f"velocity is that of Tokens(...), got {type(state).__name__}")
    law.check(state)
    space.check_dimension(state.dim)
    space.check_directions(state.points)
    points = state.points
    if space.is_curved and not is_in_range(space.norm(points) ** 2):  # a tangent space depends on the direction alone
        points, _ = split_size(points)
    return space.tangent(points, law.velocity(state, time))


def flow(
    law: Law,
    state: Tokens | Gaussian | Density | Equiangular,
    *,
    space: Space | str | None = None,
    noise: Noise | Redrawn | None = None,
    until: float | LogTime | Tensor | None = None,
    start: float = 0.0,
    save: Any = None,
    observe: Any = None,
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
    distributed: bool | None = None,
    log_until: float | None = None,
    reduce: bool | None = None,
) -> Trajectory:
    r"""Integrate a law from ``start`` to ``until``.

    Tokens solve :math:`\dot x_i = \Pi_{x_i} v_i(x)` with the velocity v of the law and the projection :math:`\Pi` on the tangent
    space. A Gaussian follows the closure of the same equation for its mean and covariance. With noise tokens solve the stochastic
    equation of :class:`attractor.Noise`, and the covariance of a Gaussian has the additional rate :math:`2\epsilon I`. A density on
    the circle solves :math:`\partial_t f = -\partial_\theta(uf) + \epsilon\,\partial_\theta^2 f`, the equation of infinitely many tokens.

    Parameters
    ----------
    law : gives every token its velocity.
    state : Tokens with points (..., n, d), a Gaussian, a Density on the circle, or Equiangular tokens; leading axes are an ensemble,
        whose members are independent.
    space : Euclidean() (default), Sphere(), Ellipsoid(W), or a name. A density lives on Sphere().
    noise : Noise(strength), the random part of the motion, or Redrawn(strength), random values; needs ``step``. Steps are fixed, and end
        at ``until`` (the last one is shorter if ``until`` is no multiple of the step, and the outcome says so); states are saved at
        ends of steps; no rule ends the run.
    until : final time, a number or a tensor that needs a gradient; may be omitted for a Stack (its depth) or with explicit save times
        (the last of them). ``exp(1000)`` is the time
        :math:`e^{1000}`: beyond 1e300 clusters are integrated in logarithmic time (see ``method``).
    start : initial time.
    save : times to save: None for a default grid, an integer for that many equal intervals, or a list. Saved states come from
        dense output and need no additional steps; only a step of DOP853 that contains one needs three more evaluations. Rules
        end the run only after the last time of a list.
    observe : observables to evaluate at the save times instead of keeping the points: a name, a function
        ``f(tokens, law=..., space=...)``, a list of these, or a mapping from names to them. Their values are ``observed[name]``
        (S, ...) of the trajectory. A large ensemble is integrated in chunks of members, so that memory holds the states of one.
    method : "dop853", "dopri5" (adaptive), "radau9", "radau5" (adaptive and implicit, for stiff systems), "rk4", "euler" (fixed
        ``step``), "layers" (discrete layers of size ``step``); with noise "strang2" (weak order 2, default) or "euler" (weak order
        1, default with common noise on curved spaces and noise of the kind "layer"). The default is an explicit method that
        depends on ``rtol``; members
        whose steps are limited by stability change to "radau9" (``rtol`` up to 1e-6) or "radau5", and back where explicit steps
        cost less (``stats.switches``). A Gaussian is by default integrated in rescaled time, which resolves blow-up, and by an
        implicit method where it is stiff. "clusters" integrates clusters in logarithmic time, the default where ``until`` is beyond
        1e300: softmax or exponential attention with P = beta I and V = c I on a sphere. The saved times are then given by
        ``log_times``, ``merge`` is the chord at which clusters become one (default :math:`10^{-2}\beta^{-2/3}`), and events have
        ``log_time`` with its error ``log_error``.
    rtol, atol : tolerated error of each token and step, atol + rtol |x_i|; defaults 1e-8 and 1e-10 (float32: 1e-5 and 1e-7; a
        Gaussian: rtol 2e-12 only; a density: rtol 1e-11 only, of its Fourier coefficients).
    step : step of a fixed-step method, or first step of an adaptive one.
    adaptive : False keeps the step of an adaptive method fixed.
    merge : distance below which tokens are merged to one weighted token. None merges at 0.1 ``rtol`` where close tokens are
        known to approach (full attention with value c I, c > 0, on a curved space, adaptive method); False never merges.
    stop : rules that end the run early, where they hold until the end: names ("consensus", "collapsed", "steady"), Rule
        objects, () for none.
    events : ``Event(function)`` objects, logged or terminal.
    max_seconds, max_evaluations : budgets.
    store : folder of a Zarr store that is written during the run; of a run in logarithmic time, which takes seconds, at its end.
    resume : whether to continue the run in ``store`` from its last checkpoint.
    progress : True for a progress bar on stderr, or a function that is called with the integration after every step.
    engine : name of an engine for attention. None chooses one, and integrates small systems in C++ where possible
        (``stats.engine`` is then "native").
    distributed : whether the processes started by torchrun share the run: each computes the attention of some of the tokens, rank
        0 writes the store and draws the bar, and all return the same. None: if there are several processes and no
        gradient is needed; False: an independent run on every process.
    log_until : logarithm of the final time, the same as ``until=exp(log_until)``.
    reduce : whether tokens that stay in the span of their start are integrated in coordinates of that span, with the same inner products
        (``stats.reduced_dim``). None: where that is exact and saves work, for at least 32 dimensions and a span of at most half of them;
        not in runs with a store, events, noise or gradients. True raises where it is not possible; False never does.

    Returns
    -------
    Trajectory

    References
    ----------
    [abella2024asymptotic]_, [castin2025unified]_; ``Trajectory.cite`` lists what a run used.
    """
    end_time = until if isinstance(until, Tensor) and until.requires_grad else None
    if end_time is not None:
        until = _check_end_time(end_time, state, noise, log_until)
    until, save = _plain_times(until, log_until, save, method)
    options = {
        "until": until,
        "start": start,
        "save": _to_plain(save),
        "method": method,
        "rtol": rtol,
        "atol": atol,
        "step": step,
        "adaptive": adaptive,
        "merge": merge,
        "stop": _to_plain(stop),
        "engine": engine,
    }
    budget = (max_seconds, max_evaluations)
    place = Sphere() if space is None and isinstance(state, Density) else space_of(space)
    definition = Definition(law, state, place, options, tuple(events), noise)
    inputs = (law, state, definition.space, noise)
    differentiable = any(tensor.requires_grad for part in inputs for tensor in tensors(part)) or end_time is not None
    observables = None if observe is None else named_observables(observe)
    if observables is not None and store is not None:
        raise UnsupportedError("a store keeps points, and observe=... keeps none: leave out one of them")
    if differentiable and store is not None:
        raise UnsupportedError("gradients do not flow through a store; detach the law and the tokens first")
    plain = observables is None and store is None and not resume and budget == (None, None) and not reduce
    if plain and not (differentiable or progress or distributed) and (found := repeat_run(definition)) is not None:
        return found
    with (
        join_processes(_is_distributed(distributed, differentiable), definition, store) as group,
        engines.using(engine) as used,
        nullcontext() if differentiable else torch.no_grad(),
    ):
        longest = LOOP_SECONDS if store is None else min(LOOP_SECONDS, checkpoints.INTERVAL)
        execution = Execution(engines=used, loop_seconds=0.0 if callable(progress) else longest)
        if group is not None:
            execution = replace(execution, clock=group.synchronise, processes=group.size)
        if reduce not in (None, True, False):
            raise InputError(f"reduce must be True, False or None, got {reduce!r}")
        obstacle = _reduction_obstacle(state, noise, store, group, differentiable, progress)
        integrate = partial(
            _integrate,
            execution,
            group,
            differentiable,
            store=store,
            resume=resume,
            reduction=(reduce, obstacle),
            end_time=end_time,
        )
        if observables is None:
            return integrate(definition, budget, progress=progress)
        inner = progress if callable(progress) else False
        first = progress is True and (group is None or group.rank == 0)
        with progress_bar("flow", first, total=state.batch_shape.numel()) as update:
            parts = partial(integrate, progress=inner)
            return integrate_and_observe(definition, observables, budget, differentiable, parts, update)


def _integrate(
    execution: Execution,
    group: ProcessGroup | None,
    differentiable: bool,
    definition: Definition,
    budget: tuple[float | None, float | None],
    *,
    progress: Any,
    store: str | Path | None,
    resume: bool,
    reduction: tuple[bool | None, str],
    end_time: Tensor | None,
) -> Trajectory:
    """Carry out a run; ``reduction`` says whether its dimension is to be reduced, and why it cannot be.

    States are differentiated with respect to ``end_time``, if it is given.
    """
    if isinstance(definition.options["until"], LogTime):
        given = {
            "reduce=True": bool(reduction[0]),
            "distributed": group is not None,
            "resume": resume and store is None,
        }
        reject_options(definition.options, definition.noise, definition.events, differentiable, given)
        if store is not None and checkpoints.check_log_store(store, definition, resume):
            found = load_log_run(store)
            if any(outcome.name == "budget" for outcome in found.outcomes):
                raise UnsupportedError(
                    f"the run in {store} ended by its budget, and a run in logarithmic time is not continued: run it again with a "
                    "larger one"
                )
            return found
        found = integrate_clusters(definition, _enter_clusters(definition), budget, progress)
        if store is not None:
            found.save(store)
        return found
    run = prepare(definition, budget, execution, differentiable, reduction=reduction)
    if group is not None:
        group.check_agreement(definition, {"budget": budget, "store": (store is None, resume)})
    precision = None if store is None else checkpoints.find_precision(store, resume, group)
    if precision not in (None, run.y.dtype):  # a stored run continues in the precision in which it started
        run = prepare(definition, budget, execution, differentiable, precision)
    recorded = torch.no_grad() if run.gradient is not None else nullcontext()
    with show_progress(progress, run.plan, group is None or group.rank == 0) as after_step, recorded:
        if store is None:
            run.run(after_step)
        else:
            checkpoints.run_with_store(run, store, definition, resume, after_step, group)
    if group is not None:
        group.wait_for_all()
    trajectory = make_trajectory(run, definition)
    if run.repeat is not None and group is None and store is None:
        remember(definition, run, run.repeat)
    return trajectory if end_time is None else _follow_end_time(trajectory, run, end_time)


def _check_end_time(end_time: Tensor, state: Any, noise: Any, log_until: Any) -> float:
    """The value of an end time that needs a gradient."""
    if end_time.numel() != 1:
        raise InputError(f"until must be one number, got a tensor of shape {tuple(end_time.shape)}")
    if not isinstance(state, Tokens) or noise is not None or log_until is not None:
        raise UnsupportedError(
            "gradients with respect to the end time exist for tokens without noise; give until=float(until)"
        )
    return float(end_time.detach())


def _follow_end_time(trajectory: Trajectory, run: Integration, end_time: Tensor) -> Trajectory:
    """Give states the derivative with respect to the end time: the velocity there times the change of their time.

    A saved time moves with the end if it was not given as a number: equal intervals and the default grid do, and so does the last of a
    list if it is the end time. States after a rule has ended a member do not move.
    """
    plan, law = run.plan, trajectory.law
    assert law is not None
    if plan.stepper.discrete:
        raise UnsupportedError("discrete layers have no gradient with respect to the end time; give until=float(until)")
    shift = (end_time - end_time.detach()).to(trajectory.points).reshape(())
    ends = torch.from_numpy(np.array(run.recorder.ends)).to(trajectory.points)
    ends = ends.reshape(trajectory.points.shape[1:-2])
    final = trajectory.final
    assert isinstance(final, Tokens)

    def move(points: Tensor, time: float, rate: float, moving: Tensor) -> Tensor:
        rates = rate * velocity(law, final.with_points(points), plan.space, time)
        return points + shift * torch.where(moving[..., None, None], rates, torch.zeros_like(rates))

    rows = list(trajectory.points)
    for row, (time, rate) in enumerate(zip(trajectory.times.tolist(), _end_time_rates(trajectory, run), strict=True)):
        if rate != 0.0:
            rows[row] = move(rows[row], time, rate, (time < ends) | (ends == plan.until))
    moved = move(final.points, plan.until, 1.0, ends == plan.until)
    points = torch.stack(rows) if rows else trajectory.points
    return replace(trajectory, points=points, final=final.with_points(moved))


def _end_time_rates(trajectory: Trajectory, run: Integration) -> np.ndarray:
    """Derivatives of the saved times with respect to the end time."""
    plan, recorder = run.plan, run.recorder
    assert trajectory.definition is not None
    save, times = trajectory.definition.options["save"], trajectory.times.numpy()
    passed, length = times - plan.start, plan.until - plan.start
    if isinstance(save, list):
        rates = (times == plan.until).astype(float)
    elif isinstance(save, int):
        rates = passed / length
    else:
        rates = grid_rates(passed, length)
    rates[recorder.rows :] = 0.0  # where all members ended before
    return rates


@contextmanager
def show_progress(progress: Any, plan: Plan, first: bool) -> Iterator[Callable[[Integration], None]]:
    """Yield what to call after every step: the user's function, or one that moves a bar (drawn by the first process only).

    The bar moves with asinh of time, as the default save times do: half of a metastable run is its last decade.
    """
    if callable(progress):
        yield cast(Callable[[Integration], None], progress)
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
    definition: Definition,
    budget: tuple[float | None, float | None] = (None, None),
    execution: Execution | None = None,
    differentiable: bool = False,
    precision: torch.dtype | None = None,
    reduction: tuple[bool | None, str] = (False, ""),
) -> Integration:
    """Check the definition of a run and return its integration.

    ``precision`` is the type in which tokens are integrated. By default that is their own, but float64 for small systems in
    float32: the native loop needs that, and is faster. ``reduction`` says whether the dimension is to be reduced, and why it cannot be.
    """
    law, state, space, options = definition.law, definition.state, definition.space, definition.options
    noise = definition.noise
    if not isinstance(law, Law):
        raise InputError(f"flow needs a law such as Attention(...), got {type(law).__name__}")
    if reduction[0] and not isinstance(state, Tokens):
        raise UnsupportedError(f"the dimension cannot be reduced: {reduction[1]}; leave out reduce=True")
    if isinstance(state, Density):
        interval = _interval(law, options["start"], options["until"], options["save"])
        return prepare_density(definition, interval, budget, execution or Execution(), differentiable)
    gaussian = isinstance(state, Gaussian)
    if isinstance(state, Gaussian):
        if space.is_curved:
            raise UnsupportedError(f"a Gaussian lives in flat space, not on the {space.name}")
        law = law if isinstance(law, AbsentLaw) else Closure(law)
        if noise is None:
            state = Tokens.unchecked(state.rows())
        else:
            _check_noise(noise, state, options["start"])
            assert isinstance(noise, Noise)
            law = DiffusingClosure(law, noise) if isinstance(law, Closure) else law
            state, noise = Tokens.unchecked(state.covariance_rows()), None
    elif isinstance(state, Equiangular):
        law, state, space = _enter_equiangular(law, state, space, noise, definition.events or (), options)
    elif not isinstance(state, Tokens):
        raise InputError(
            f"flow moves Tokens(...), a Gaussian(...), a Density(...) or Equiangular(...), got {type(state).__name__}"
        )
    law, space = _move_law(law, state.points.device), move_tensors(space, state.points.device)
    law.check(state)
    space.check_dimension(state.dim)
    if noise is not None:
        _check_noise(noise, state, options["start"])
        noise.check_law(law)
    plan = _plan(law, state, space, options, definition.events or (), budget, differentiable, gaussian, noise)
    span = None
    if reduction[0] is not False and isinstance(definition.state, Tokens):
        span = find_span(law, state, plan, *reduction, enter=partial(enter_space, law, state, space))
    if span is not None:
        plan = span.restrict_plan(plan)
        law, space, state = plan.law, plan.space, span.tokens
    tolerance = _merge_tolerance(law, plan, options["merge"], differentiable)
    on_device = False
    if differentiable:
        native = plan.native and not gaussian and is_supported(plan, state.points)
        native = native and native_gradient.is_supported(plan, state)
        on_device = not native and plan.native and not gaussian and device_gradient.is_supported(plan, state)
        plan = replace(plan, native=native or on_device)
    if precision is None:
        widen = plan.native and not gaussian and is_supported(plan, state.points)
    else:
        widen = precision == torch.float64
    size = 8 if widen else state.points.element_size()
    times, explicit = save_times(options["save"], plan.start, plan.until, state.points.numel() * size)
    times = _layer_times(times, explicit, plan) if plan.stepper.discrete else times
    if plan.noise is not None:
        assert plan.step is not None
        times = find_step_ends(times, explicit, plan.edges(), plan.step)
    check_footprint(tuple(state.points.shape), plan.stepper, len(times), size, state.points.device)
    tokens = enter_space(law, state, space) if span is None else span.tokens
    if widen:
        masses, positions = (None if part is None else part.double() for part in (tokens.masses, tokens.positions))
        tokens = Tokens.unchecked(tokens.points.double(), masses, positions)
    if is_external(law, plan.start):
        tolerance = _verify(law, tokens, plan, tolerance, options["merge"])
    recorder_of_steps = device_gradient.DeviceGradient if on_device else native_gradient.NativeGradient
    gradient = recorder_of_steps(plan, tokens) if differentiable and plan.native else None
    tokens = tokens if gradient is None else gradient.detached_tokens
    recorder = Recorder(times, explicit, tokens.points.shape[0], tokens.points)
    merger = None if tolerance is None else Merger(tolerance, _explicit_masses(tokens))
    rescaled = gaussian and _is_rescaled(law, options, plan, differentiable)
    kind = NoisyIntegration if plan.noise is not None else GaussianIntegration if rescaled else Integration
    run = kind(plan, tokens, recorder, merger, execution or Execution())
    run.span, run.gradient = span, gradient
    return run


def _reduction_obstacle(
    state: Any, noise: Any, store: Any, group: ProcessGroup | None, differentiable: bool, progress: Any
) -> str:
    """Why the dimension of a run cannot be reduced, whatever its law; empty if it may be."""
    reasons = {
        "only that of tokens can be": not isinstance(state, Tokens),
        "noise leaves the span of the start": noise is not None,
        "a store holds tokens in their own coordinates": store is not None,
        "it is not done on several processes": group is not None,
        "gradients flow in the coordinates of the tokens": differentiable,
        "the function that is called for progress may read coordinates": callable(progress),
    }
    return next((reason for reason, given in reasons.items() if given), "")


def _enter_equiangular(
    law: Law,
    state: Equiangular,
    space: Space,
    noise: Noise | Redrawn | None,
    events: Sequence[UserEvent],
    options: dict[str, Any],
) -> tuple[Law, Tokens, Space]:
    """The law, the rows and the space of a run of equiangular tokens, in their two coordinates."""
    if noise is not None:
        raise UnsupportedError("noise does not keep tokens equiangular: give Tokens(...) as the state")
    if events:
        raise UnsupportedError(
            "events read tokens, and equiangular tokens have two coordinates: give Tokens(...) as the state"
        )
    if options["merge"]:
        raise UnsupportedError("equiangular tokens all come together at once, so that none are merged: leave out merge")
    law = law if isinstance(law, AbsentLaw) else law.for_equiangular(state.n)
    if type(space) is Sphere:  # the ellipse ((n - 1) a^2 + b^2) / n = radius^2
        weights = torch.tensor([state.n - 1.0, 1.0], dtype=torch.float64)
        space = Ellipsoid(torch.diag(weights / (state.n * space.radius**2)))
    elif type(space) is not Euclidean:
        raise UnsupportedError(
            f"equiangular tokens live in flat space or on a sphere: the {space.name} singles out directions; give Tokens(...)"
        )
    return law, Tokens.unchecked(state.rows()), space


def _check_noise(noise: Noise | Redrawn, state: Tokens | Gaussian, start: Any) -> None:
    if not isinstance(noise, (Noise, Redrawn)):
        raise InputError(f"noise must be Noise(strength) or Redrawn(strength), got {type(noise).__name__}")
    noise.check(state, float(start))


def _is_rescaled(law: Law, options: dict[str, Any], plan: Plan, differentiable: bool) -> bool:
    """Whether a Gaussian is integrated in rescaled time: unless a method, its steps, events or gradients are requested."""
    plain = options["method"] is None and options["step"] is None and options["adaptive"] and not plan.events
    return plain and law.autonomous and isinstance(law, Closure) and not differentiable


def _is_distributed(wanted: bool | None, differentiable: bool) -> bool:
    """Whether several processes share the run."""
    if wanted not in (None, True, False):
        raise InputError(f"distributed must be True, False or None, got {wanted!r}")
    if wanted and differentiable:
        raise UnsupportedError(
            "gradients do not flow between processes; detach the law and the tokens, or give distributed=False"
        )
    return not differentiable if wanted is None else bool(wanted)


def _to_plain(value: Any) -> Any:
    """Return arrays of times, tuples and single rules as lists."""
    if isinstance(value, (Tensor, np.ndarray)):
        return [float(item) for item in np.asarray(value, dtype=np.float64).reshape(-1)]
    if isinstance(value, np.integer):
        return int(value)
    return [value] if isinstance(value, Rule) else list(value) if isinstance(value, tuple) else value


def space_of(space: Space | str | None) -> Space:
    """Return the space that a caller means: flat space for None, a named one for a string."""
    if space is None:
        return Euclidean()
    if isinstance(space, str):
        return space_named(space)
    if not isinstance(space, Space):
        raise InputError(f"space must be Euclidean(), Sphere() or Ellipsoid(W), got {type(space).__name__}")
    return space


def _plain_times(until: Any, log_until: float | None, save: Any, method: str | None) -> tuple[Any, Any]:
    """The final time, a LogTime where the run is in logarithmic time, and the times to save."""
    if log_until is not None:
        if until is not None:
            raise InputError(
                f"until and log_until both give the final time, got {until} and {log_until}: leave out one"
            )
        until = LogTime(log_until)
    if method == CLUSTERS and until is not None and not isinstance(until, LogTime):
        if not (isinstance(until, (int, float)) and until > 0):
            raise InputError(f"until must be a positive time, got {until!r}")
        until = LogTime(log_of(until))
    if method == CLUSTERS and until is None:
        raise InputError("a run in logarithmic time needs its end: give until=exp(...), or log_until=...")
    if isinstance(until, LogTime) and until.log <= LARGEST and method != CLUSTERS:
        until = float(until)
    if isinstance(save, (list, tuple)) and not isinstance(until, LogTime):
        if any(isinstance(time, LogTime) and time.log > LARGEST for time in save):
            raise InputError("a time to save is beyond 1e300: give until=exp(...) too, the end of the run")
        save = [float(time) if isinstance(time, LogTime) else time for time in save]
    return until, save


def _enter_clusters(definition: Definition) -> Tokens:
    """Check the definition of a run in logarithmic time and return the tokens that it starts from."""
    law, state, space, until = definition.law, definition.state, definition.space, definition.options["until"]
    if not isinstance(law, Law):
        raise InputError(f"flow needs a law such as Attention(...), got {type(law).__name__}")
    if obstacle := log_time_obstacle(law, state, space):
        raise UnsupportedError(f"a run until t = {until} cannot be integrated in logarithmic time: {obstacle}")
    assert isinstance(state, Tokens)
    law.check(state)
    space.check_dimension(state.dim)
    return enter_space(law, state, space)


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
    if not SHORTEST <= until - start <= LONGEST:
        raise InputError(
            f"a run takes between {SHORTEST:g} and {LONGEST:g} units of time, got {until - start:g}: measure time in other units, "
            "by a factor of the values, or give until=exp(...) for clusters at low temperature"
        )
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
    noise: Noise | Redrawn | None = None,
) -> Plan:
    for event in events:
        if not isinstance(event, UserEvent):
            raise InputError(f"events are Event(function) objects, got {type(event).__name__}")
    for name, amount in zip(("max_seconds", "max_evaluations"), budget, strict=True):
        if amount is not None and not amount > 0:
            raise InputError(f"{name} must be positive, got {amount}")
    start, until = _interval(law, options["start"], options["until"], options["save"])
    rtol, atol = _tolerances(state.points.dtype, options["rtol"], options["atol"], gaussian, min(1.0, space.size))
    bound = 1e15 if state.points.dtype == torch.float32 else 1e100
    if atol > (most := space.size if space.is_curved else bound):
        where = f"the size of the {space.name}" if space.is_curved else "the norm at which runs end"
        raise InputError(f"atol must be at most {most:g}, {where}; got {atol:g}")
    if noise is None:
        stepper = stepper_named(options["method"] or default_method(rtol))
        if stepper.needs_noise:
            raise InputError(
                f"method {stepper.name!r} is for runs with noise: give noise=Noise(...), or another method"
            )
    else:
        stepper = noisy_method(noise, space, options)
    step, adaptive = options["step"], stepper.adaptive and options["adaptive"]
    if stepper.implicit:
        if obstacle := _implicit_obstacle(law, state, differentiable):
            raise UnsupportedError(f"method {stepper.name!r} cannot be used here: {obstacle}")
        stepper = stepper.with_tolerances(rtol, atol) if adaptive else stepper
    switches = options["method"] is None and adaptive and not gaussian
    switches = switches and not _implicit_obstacle(law, state, differentiable)
    if step is not None and not (math.isfinite(step) and step > 0):
        raise InputError(f"step must be positive, got {step:g}")
    if stepper.discrete and step is None:
        step = law.duration if isinstance(law, Stack) else 1.0
    if step is None and not adaptive:
        raise InputError(f"method {stepper.name!r} takes steps of one size: give step=...")
    if step is not None and not adaptive and (until - start) / step > MAX_STEPS:
        raise InputError(
            f"steps of {step:g} until t = {until:g} are {(until - start) / step:.3g} steps, and a run takes at most {MAX_STEPS:g}: "
            "give a longer step=..."
        )
    return Plan(
        law=law,
        space=space,
        start=start,
        until=until,
        stepper=stepper,
        implicit=stepper_named(implicit_method(rtol)).with_tolerances(rtol, atol) if switches else None,
        rtol=rtol,
        atol=atol,
        step=None if step is None else float(step),
        adaptive=adaptive,
        rules=() if noise else tuple(select_rules(options["stop"], space, law.autonomous, rtol, state.n)),
        bound=bound,
        events=tuple(events),
        max_seconds=math.inf if budget[0] is None else float(budget[0]),
        max_evaluations=math.inf if budget[1] is None else float(budget[1]),
        native=options["engine"] is None and not distributed.is_active(),
        differentiable=differentiable,
        noise=noise,
    )


def _implicit_obstacle(law: Law, state: Tokens, differentiable: bool) -> str:
    """Why an implicit method cannot be used; empty if it can."""
    if not law.is_smooth():
        return "velocities of the law jump, and an implicit method needs their derivative; use method='dop853'"
    if differentiable:
        return "gradients do not flow through its equations; use method='rk4' or 'dopri5'"
    if distributed.is_active():
        return "it does not run on several processes; give distributed=False"
    if state.points.dtype not in (torch.float32, torch.float64):
        return f"it takes tokens of float32 or float64, got {state.points.dtype}"
    return ""


def _tolerances(
    dtype: torch.dtype, rtol: float | None, atol: float | None, gaussian: bool = False, size: float = 1.0
) -> tuple[float, float]:
    single = dtype == torch.float32
    fine = GAUSSIAN_RTOL if gaussian else 1e-8
    rtol = (1e-5 if single else fine) if rtol is None else float(rtol)
    atol = size * (1e-7 if single else 1e-10) if atol is None else float(atol)
    floor = 10 * torch.finfo(dtype).eps
    if not floor <= rtol < 1:
        raise InputError(f"rtol must be between {floor:.1e} (what {dtype} can hold) and 1, got {rtol:g}")
    if not atol > 0:
        raise InputError(f"atol must be positive, got {atol:g}")
    return rtol, atol


def _merge_tolerance(law: Law, plan: Plan, merge: float | bool | None, differentiable: bool) -> float | None:
    """The distance below which tokens are merged, or None for no merging."""
    if plan.noise is not None:
        return None
    obstacle = law.merge_obstacle()
    if merge is None:
        possible = obstacle is None and plan.space.is_curved and plan.adaptive and not differentiable
        return 0.1 * plan.rtol * min(1.0, plan.space.size) if possible and law.is_attracting() else None
    if merge is False:
        return None
    if isinstance(merge, bool) or not (math.isfinite(merge) and merge > 0):
        raise InputError(f"merge must be a positive distance, None or False, got {merge}")
    if obstacle is not None:
        raise UnsupportedError(f"tokens cannot be merged here: {obstacle}")
    if plan.space.is_curved and not merge < plan.space.size:
        raise InputError(f"merge must be below the size {plan.space.size:g} of the {plan.space.name}, got {merge:g}")
    if plan.stepper.discrete:
        raise UnsupportedError("tokens cannot be merged along discrete layers; use a continuous method")
    if differentiable:
        raise UnsupportedError("gradients do not flow through merging; detach the law and the tokens first")
    return float(merge)


def _verify(law: Law, tokens: Tokens, plan: Plan, tolerance: float | None, merge: Any) -> float | None:
    """Check a law from outside the package at the start; return the distance below which tokens are merged."""

    def evaluate(law: Law, tokens: Tokens, time: float) -> Tensor:
        if plan.stepper.discrete:
            assert plan.step is not None
            return law.layer(tokens, plan.step, plan.space, time)
        return law.velocity(tokens, time)

    end = min(plan.until, *law.breaks(plan.start, plan.until), plan.until)
    law, span = law.between(plan.start, end), end - plan.start
    check_velocities(law, tokens, [plan.start, plan.start + 0.37 * span, plan.start + 0.81 * span], evaluate)
    changes = None if tolerance is None else merging_changes(law, tokens, plan.start, evaluate)
    if changes is None:
        return tolerance
    if merge is None:
        return None
    raise InputError(
        f"tokens cannot be merged here: {changes}; leave out merge, or let the velocity use tokens.weights"
    )


def _layer_times(times: np.ndarray, explicit: bool, plan: Plan) -> np.ndarray:
    """Round save times to ends of layers."""
    assert plan.step is not None
    layers = np.round((times - plan.start) / plan.step)
    snapped = np.minimum(plan.start + layers * plan.step, plan.until)
    if explicit and len(times) and (np.abs(snapped - times) > 1e-9 * max(plan.step, abs(plan.until))).any():
        raise InputError(
            f"along layers of size {plan.step:g} states exist only at whole layers; save times must be multiples of it"
        )
    return np.unique(snapped)


def enter_space(law: Law, state: Tokens, space: Space) -> Tokens:
    """Return the tokens that a flow starts from: positions of the input added, then put on the space, with ensemble axes flattened."""
    entered = law.enter(state)
    if entered is not state and not bool(torch.isfinite(entered.points).all()):
        kind = str(state.points.dtype).removeprefix("torch.")
        raise InputError(
            f"positions that are added at the input leave the numbers of {kind}; take smaller ones, or tokens in float64"
        )
    state = entered
    points = space.enter(state.points.reshape(-1, state.n, state.dim))
    flat = [
        None if row is None else row.reshape(-1, state.n) if row.ndim > 1 else row
        for row in (state.masses, state.positions)
    ]
    return Tokens.unchecked(points, *flat)


def _explicit_masses(tokens: Tokens) -> Tensor:
    shape = tokens.points.shape[:2]
    if tokens.masses is None:
        return tokens.points.new_full(shape, 1.0 / tokens.n)
    return tokens.masses.expand(shape).clone()


def _name_outcomes(state: Any, outcomes: list[Outcome], finals: Tensor, rtol: float) -> tuple[Outcome, ...]:
    """Outcomes of a run that has ended in the states ``finals``."""
    if not isinstance(state, Equiangular):
        return tuple(outcomes)
    return tuple(_name_consensus(state, *pair, rtol) for pair in zip(outcomes, finals, strict=True))


def _name_consensus(state: Equiangular, outcome: Outcome, final: Tensor, rtol: float) -> Outcome:
    """The outcome of equiangular tokens: a rest where they are together is a consensus."""
    if outcome.name != "steady":
        return outcome
    rho, radius = cosine_and_radius(final, state.n)
    if not float(radius) > 0 or float(final[0, 0].abs() / radius) > TOGETHER * rtol:
        return outcome
    return replace(
        outcome, name="consensus", message=f"all tokens came together: the cosine of two is 1 - {1.0 - float(rho):.3g}"
    )


def _to_factors(rows: Tensor) -> Tensor:
    """Rows (..., 1 + d, d) of a mean and a covariance as those of a mean and the columns of a factor."""
    return torch.cat((rows[..., :1, :], factor_of(rows[..., 1:, :]).mT), dim=-2)


def _move_law(law: Law, device: torch.device) -> Law:
    """A law with its parameters on a device. The copy of an attention law is kept for the next run."""
    parts = tensors(law)
    if all(part.device == device for part in parts):
        return law
    contents = read_contents(parts) if type(law) is Attention else None
    if type(law) is not Attention or contents is None or any(part.requires_grad for part in parts):
        return move_tensors(law, device)
    key = (device, *(part.dtype for part in parts), contents)
    known = _moved.get(law)
    if known is None or known[0] != key:
        _moved[law] = known = (key, move_tensors(law, device))
    return known[1]


_moved: WeakKeyDictionary[Attention, tuple[tuple[object, ...], Law]] = WeakKeyDictionary()


def make_trajectory(run: Integration, definition: Definition) -> Trajectory:
    """Return the trajectory of a run that has ended, with the ensemble axes restored."""
    plan, state, record = run.plan, definition.state, run.record()
    record = record if run.span is None else run.span.lift_record(record)
    recorder = record.recorder
    finals = stack_states(record.finals)
    times, points = recorder.times[: recorder.rows], recorder.points[: recorder.rows]
    if run.gradient is not None:
        finals, points = run.gradient.attach(run, finals, points)
    last = float(recorder.ends.max())
    if not recorder.explicit and (len(times) == 0 or times[-1] < last):
        times, points = np.append(times, last), torch.cat([points, finals[None]])
    trees = [] if run.merger is None else run.merger.trees
    if isinstance(state, Gaussian) and definition.noise is not None:
        points, finals = ((_to_factors(rows)) for rows in (points, finals))
    if isinstance(state, Tokens):  # some runs in float32 are integrated in float64
        points, finals = points.to(state.points.dtype), finals.to(state.points.dtype)
    shape = (*state.batch_shape, *finals.shape[1:])
    stats = Statistics(
        evaluations=run.field.evaluations,
        accepted=run.accepted,
        rejected=run.rejected,
        seconds=run.seconds,
        method=run.method,
        engine="+".join(sorted(run.execution.engines)),
        merges=sum(map(len, trees)),
        processes=run.execution.processes,
        switches=tuple(run.switches),
        peak_memory=memory.peak(RECENT if run.seconds < RECENT else 0.0),
        reduced_dim=None if run.span is None else run.span.dim,
        fallback="" if "device" in run.execution.engines else run.fallback,
    )
    return Trajectory(
        times=torch.from_numpy(np.array(times)),
        points=points.reshape(len(times), *shape),
        final=state.with_points(finals.reshape(shape)),
        outcomes=_name_outcomes(state, cast("list[Outcome]", run.outcomes), finals, plan.rtol),
        stats=stats,
        law=None if isinstance(definition.law, AbsentLaw) else definition.law,
        space=definition.space if run.span is not None or isinstance(state, Equiangular) else plan.space,
        initial=state,
        events=EventLog(run.termination.log, trees),
        definition=definition,
        record=record,
    )
