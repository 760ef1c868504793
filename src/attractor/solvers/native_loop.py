"""The native loop: integration of small systems in C++."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor.engines import MODES, native
from attractor.laws import Attention, Positions
from attractor.solvers.merging import NativeMerges, narrow
from attractor.solvers.step_control import GROW, SAFETY, SHRINK
from attractor.solvers.steppers.stepper import RungeKutta, StepPolynomial
from attractor.solvers.stiffness import CALM_STEPS, COUNTERS, NEAR, PAIR, STIFF_STEPS, TOKEN
from attractor.solvers.termination import (
    CALM_GROWTH,
    FAILED_SPACINGS,
    LEAST_MOVE,
    LEAST_TIME,
    NOISE,
    PATIENCE,
    REST,
    TINY,
    UNRESOLVED_SPACINGS,
    Collapse,
    Consensus,
    Steady,
)
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration, Plan

RULES = (Consensus, Collapse, Steady)
MAX_DIM = 32  # of tokens and of heads: above, matrix products dominate, and libraries are faster
SMALLEST, LARGEST = 1e-100, 1e100  # size of a space
MAX_TOKENS = 1024  # of a system: above, the time of the loop in Python is negligible
MAX_DIFFERENTIABLE = 4096  # of a system whose gradients are needed: autograd would keep the arrays of every evaluation


def is_supported(plan: Plan, y: Tensor) -> bool:
    """Whether the native loop can run a plan on points y, apart from their dtype, which must be float64."""
    n, dim = y.shape[-2:]
    return (
        not native.reason
        and (
            plan.adaptive and plan.stepper.coefficients is not None
            if plan.noise is None
            else plan.noise.draws_increments and plan.stepper.weak_order > 0
        )
        and not plan.events
        and y.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and _is_law_supported(plan.law)
        and "native_name" in vars(type(plan.space))  # a subclass may move points differently
        and all(type(rule) in RULES for rule in plan.rules)
        and len({type(rule) for rule in plan.rules}) == len(plan.rules)
        and SMALLEST < plan.space.size < LARGEST  # on surfaces the loop takes squares of coordinates
        and dim <= MAX_DIM
        and n <= (MAX_DIFFERENTIABLE if plan.differentiable else MAX_TOKENS)
    )


def _is_law_supported(law: Any) -> bool:
    return (
        type(law) is Attention
        and law.kernel.mode is not None
        and (law.positions is None or type(law.positions).turning_angles is not Positions.turning_angles)
        and law.query.shape[-2] <= MAX_DIM
    )


def set_plan(loop: native.Loop, plan: Plan, skip_self: bool) -> None:
    """Give the loop what does not change during a run."""
    assert plan.stepper.coefficients is not None
    loop.set_method(plan.stepper.error_order, plan.stepper.coefficients)
    loop.set_rules([(rule.name, rule.tolerance) for rule in plan.rules])  # type: ignore[attr-defined]
    loop.set(
        start=plan.start, end=plan.until, rtol=plan.rtol, atol=plan.atol, first_step=plan.step or 0.0, bound=plan.bound
    )
    loop.set(safety=SAFETY, shrink=SHRINK, grow=GROW)
    if plan.implicit is not None:
        assert isinstance(plan.stepper, RungeKutta)
        loop.set(stability=NEAR * plan.stepper.stability, stiff_steps=STIFF_STEPS, calm_steps=CALM_STEPS)
    loop.set(noise=NOISE, patience=float(PATIENCE), enough_rest=float(REST), calm_growth=CALM_GROWTH, tiny=TINY)
    loop.set(least_time=LEAST_TIME, least_move=LEAST_MOVE)
    loop.set(unresolved_spacings=UNRESOLVED_SPACINGS, failed_spacings=FAILED_SPACINGS)
    set_system(loop, plan, skip_self)


def set_system(loop: native.Loop, plan: Plan, skip_self: bool) -> None:
    """Give the loop the kernel and the space."""
    law = plan.law
    assert isinstance(law, Attention)
    kernel = law.kernel
    assert kernel.mode is not None
    loop.set(mode=MODES.index(kernel.mode), squared=not kernel.bilinear, scale=float(law.scale))
    loop.set(averaged=not kernel.normalised, bias=kernel.score_bias)
    loop.set(skip_self=skip_self and law._value_scalars is not None)
    space = plan.space
    assert space.native_name is not None
    loop.set_space(space.native_name)
    loop.set(radius=getattr(space, "radius", 1.0))
    matrix = None if space.dim is None else space.surface(space.dim)
    if matrix is not None:
        loop.set_arrays(matrix=matrix.to(torch.float64).contiguous())


def set_law(loop: native.Loop, law: Attention, tokens: Tokens) -> None:
    """Give the loop the parameters, of each member or of all, and the mask."""
    parts = (getattr(law, name) for name in PARAMETERS)
    contents = tuple(None if part is None else part.detach().numpy().tobytes() for part in parts)
    known = _cached.get(law)
    if known is None or known[0] != contents:  # parameters may have been changed in place
        _cached[law] = known = (contents, *_parameters(law))
    _, arrays, numbers = known
    loop.set_arrays(**{name: array for name, array in arrays.items() if array is not None})
    loop.set(**numbers)
    hide = {} if law.mask is None else law.mask.hide(tokens)
    window, visible = hide.get("window"), hide.get("visible")
    loop.set(causal=hide.get("causal", False), window=0 if window is None else min(window, 2 * tokens.n))
    if visible is not None:
        loop.set_arrays(visible=visible.reshape(-1, tokens.n, tokens.n).contiguous())
    if law.positions is not None:
        loop.set_arrays(turns=_turns(law.positions, law.query.shape[-2], tokens))


PARAMETERS = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")
_cached: WeakKeyDictionary[
    Attention, tuple[tuple[bytes | None, ...], dict[str, np.ndarray | None], dict[str, float]]
] = WeakKeyDictionary()


def loop_parameters(law: Attention) -> dict[str, Tensor]:
    """Parameters in the shapes of the loop: (members or 1, heads, rows, columns), float64; differentiable."""
    value, value_bias = law.value_map, law.value_bias
    if law.output is not None and value_bias is not None:
        value_bias = (law.output @ value_bias.unsqueeze(-1)).squeeze(-1)
    found = {"query": law.query, "key": law.key, "value": value}
    found = {name: matrix.reshape((1,) * (4 - matrix.ndim) + matrix.shape) for name, matrix in found.items()}
    biases = {"query_bias": law.query_bias, "key_bias": law.key_bias, "value_bias": value_bias}
    for name, bias in biases.items():
        if bias is not None:
            rows = bias.reshape((1,) * (3 - bias.ndim) + bias.shape)
            found[name] = rows.expand(len(rows), law.heads, rows.shape[-1])
    if law.output_bias is not None:
        found["output_bias"] = law.output_bias
    return {name: part.to(torch.float64) for name, part in found.items()}


def _turns(positions: Positions, head_dim: int, tokens: Tokens) -> Tensor:
    """Cosines and sines (members or 1, n, pairs, 2) of the angles of positions."""
    angles = positions.turning_angles(head_dim, tokens)
    assert angles is not None
    return torch.stack((angles.cos(), angles.sin()), -1).reshape(-1, *angles.shape[-2:], 2).contiguous()


def _parameters(law: Attention) -> tuple[dict[str, np.ndarray | None], dict[str, float]]:
    """Arrays and numbers of a law, as the loop takes them."""
    arrays: dict[str, np.ndarray | None] = dict.fromkeys(
        ("query_bias", "key_bias", "value_bias", "output_bias", "factors")
    )
    with torch.no_grad():
        arrays |= {name: np.ascontiguousarray(part.detach().numpy()) for name, part in loop_parameters(law).items()}
    query, key, value = arrays["query"], arrays["key"], arrays["value"]
    assert query is not None
    assert key is not None
    assert value is not None
    diagonal = query.shape[-2] == query.shape[-1] and _is_diagonal(query) and _is_diagonal(key)
    uniform = diagonal and _is_uniform(query) and _is_uniform(key)
    if law._value_scalars is not None:
        arrays |= {"value": None, "factors": np.ascontiguousarray(value[..., 0, 0])}
    return arrays, {"diagonal": diagonal, "uniform": uniform}


def _is_uniform(matrix: np.ndarray) -> bool:
    """Whether diagonal matrices are multiples of the identity."""
    return bool((matrix.diagonal(axis1=-2, axis2=-1) == matrix[..., :1, 0]).all())


def _is_diagonal(matrix: np.ndarray) -> bool:
    return bool(np.count_nonzero(matrix) == np.count_nonzero(matrix.diagonal(axis1=-2, axis2=-1)))


LOOP_SECONDS = 0.1  # in the loop at a time: signals, budgets, stores and progress bars wait as long


# bits of the reasons for which the loop stops a row, (6, 1)
REASONS = ("at_start", "check", "failed", "arrived", "interpolated", "stiff")
STOPS = np.array([[native.FLAGS.get(name, 0)] for name in REASONS])


@dataclass(frozen=True)
class LoopResult:
    """State of the rows after a call of the native loop.

    ``entered``, ``look``, ``failed``, ``arrived`` and ``stiff`` mark the rows that stopped at the start, for a check of the rules,
    because a step failed, at the end, and because stability limits their steps; ``taken`` is the length of their last step.
    """

    entered: np.ndarray
    look: np.ndarray
    failed: np.ndarray
    arrived: np.ndarray
    stiff: np.ndarray
    taken: np.ndarray
    t: np.ndarray
    t_low: np.ndarray
    h: np.ndarray
    retried: np.ndarray
    next_rows: np.ndarray
    y: Tensor
    f: Tensor
    interpolant: Callable[[], StepPolynomial] | None
    evaluations: int
    accepted: int
    rejected: int


def make_native_loop(run: Integration) -> NativeLoop | None:
    """The native loop for a run, or None if it cannot be used."""
    usable = run.plan.noise is None and is_usable(run)
    return NativeLoop(run) if usable else None


def is_usable(run: Integration) -> bool:
    """Whether the native loop can continue a run."""
    return run.plan.native and run.y.dtype == torch.float64 and is_supported(run.plan, run.y)


class NativeLoop:
    """Passes the state of an integration to the native loop and back."""

    name = "native"

    def __init__(self, run: Integration) -> None:
        self.run, self.loop = run, native.Loop()
        self.given: tuple[object, object] = (None, None)  # law and positions that the loop has
        set_plan(self.loop, run.plan, run.field.skip_self)
        if run.gradient is not None:
            self.loop.set_record(run.gradient.record)
        recorder = run.recorder
        self.loop.set_arrays(save_times=np.ascontiguousarray(recorder.times), saved=recorder.points)
        merge = {} if run.merger is None else {"merge": run.merger.tolerance}
        self.loop.set(named_times=recorder.explicit, **merge)

    def advance(self, seconds: float) -> LoopResult:
        """Take steps of every row for about so many seconds; one attempt each if that is 0."""
        run, loop, merger, termination = self.run, self.loop, self.run.merger, self.run.termination
        seconds = min(seconds, run.plan.max_seconds - (time.perf_counter() - termination.budget_start[0]))
        members, width, d = run.y.shape
        self._set_law()
        # copies: members that have ended and snapshots may refer to the present arrays
        y, f, anchor = (
            points.clone(memory_format=torch.contiguous_format) for points in (run.y, run.f, termination.anchor)
        )
        state = {name: np.array(getattr(run, name)) for name in ("t", "t_low", "h", "retried")}
        stiffness = {name: np.array(getattr(run.stiffness, name)) for name in COUNTERS}
        counters = {name: np.array(getattr(termination, name)) for name in ("streak", "last", "anchor_t", "rest")}
        next_rows, taken = run.recorder.next[run.members], np.zeros(members)
        counts = np.full(members, width) if merger is None else merger.alive.numpy().sum(1)
        flags, *costs = np.zeros((4, members), dtype=np.int64)
        inside = torch.empty(members, 1 + loop.parts, width, d, dtype=torch.float64)
        loop.set(attempts=self._attempts(seconds), fresh=not run.h.any())
        merges = None if merger is None else NativeMerges(merger, y)
        loop.set_arrays(
            y=y,
            f=f,
            anchor=anchor,
            counts=counts,
            flags=flags,
            taken=taken,
            inside=inside,
            evaluations=costs[0],
            accepted=costs[1],
            rejected=costs[2],
            who=run.members,
            next=next_rows,
            noted=self._deferred_rules(),
            size=termination.size[run.members],
            hold=termination.hold,
            **state,
            **counters,
            **stiffness,
            **({} if merges is None else merges.arrays()),
        )
        loop.run(seconds)

        if merger is not None and merges is not None:
            width = merger.apply_native(merges, counts, finished=bool((flags == native.FLAGS["arrived"]).all()))
        y, f, anchor = (narrow(points, width) for points in (y, f, anchor))
        termination.set_counters(**counters, anchor=anchor)
        run.stiffness.set_counters(**stiffness)
        evaluations, accepted, rejected = (sum(cost.tolist()) for cost in costs)
        entered, look, failed, arrived, located, stiff = (flags & STOPS) > 0
        return LoopResult(
            entered=entered,
            look=look & ~entered,
            failed=failed,
            arrived=arrived,
            stiff=stiff,
            taken=taken,
            next_rows=next_rows,
            y=y,
            f=f,
            interpolant=partial(make_polynomial, taken, inside[:, :, :width]) if located.any() else None,
            evaluations=evaluations,
            accepted=accepted,
            rejected=rejected,
            **state,
        )

    def _attempts(self, seconds: float) -> int:
        """Number of attempts that take so many seconds, so that members advance together; few where a budget ends soon."""
        run = self.run
        members, n, _ = run.y.shape
        stages = len(run.plan.stepper.coefficients[0]) + 1  # type: ignore[index]
        each = stages * (PAIR * n * n + TOKEN * n) * -(-members // torch.get_num_threads())
        left = run.plan.max_evaluations - (run.field.evaluations - run.termination.budget_start[1])
        return int(max(1, min(seconds / each, left // (members * (stages + 4)))))

    def _set_law(self) -> None:
        """Give the loop the parameters and masses of the rows that are left."""
        run, loop, field = self.run, self.loop, self.run.field
        # parameters, positions and masks of members that end are removed
        if field.law is not self.given[0] or field.positions is not self.given[1]:
            self.given = (field.law, field.positions)
            set_law(loop, field.law, Tokens.unchecked(run.y, None, field.positions))  # type: ignore[arg-type]
        if run.merger is None and field.masses is not None:
            loop.set_arrays(masses=field.masses.reshape(-1, field.masses.shape[-1]).contiguous())

    def _deferred_rules(self) -> np.ndarray:
        """Index of the rule of each row whose outcome is deferred, or -1."""
        rules = np.full(len(self.run.members), -1)
        if not self.run.termination.deferred:
            return rules
        for row, member in enumerate(self.run.members):
            outcome = self.run.termination.deferred.get(int(member))
            rules[row] = -1 if outcome is None else native.RULES[outcome.name]
        return rules


@dataclass(frozen=True)
class NoisyResult:
    """State of the rows after a call of the loop with noise: steps that each took, those that failed, and those that left the bound."""

    done: np.ndarray
    failed: np.ndarray
    far: np.ndarray
    y: Tensor
    f: Tensor
    evaluations: int


DRAW = 1e-8  # seconds that the normal numbers of a token take


class NativeNoisyLoop:
    """Passes the state of a run with noise to the native loop and back."""

    name = "native"

    def seconds(self, stages: int) -> float:
        """Seconds of a step of all members, about."""
        members, n, _ = self.run.y.shape
        return (stages * (PAIR * n * n + TOKEN * n) + DRAW * n) * -(-members // torch.get_num_threads())

    def __init__(self, run: Integration) -> None:
        self.run, self.loop = run, native.Loop()
        plan, noise = run.plan, run.plan.noise
        assert noise is not None
        self.given: tuple[object, object] = (None, None)  # law and positions that the loop has
        set_system(self.loop, plan, run.field.skip_self)
        self.loop.set(bound=plan.bound)
        self.loop.set_noise(plan.stepper.name, noise.kind == "layer", noise.seed)
        self.loop.set_arrays(saved=run.recorder.points)
        if plan.space.is_curved and plan.space.native_name == "ellipsoid":
            identity = torch.eye(run.y.shape[-1], dtype=torch.float64)
            self.loop.set_arrays(inverse_root=plan.space.sphere_matrix(run.y.shape[-1], inverse=True) @ identity)

    def advance(
        self, first: int, step: float, amplitudes: Tensor, common: np.ndarray, save_rows: np.ndarray, fresh: bool
    ) -> NoisyResult:
        """Take ``len(save_rows)`` steps of every row.

        ``amplitudes`` (steps or 1, members or 1, n or 1) and ``common`` (steps or 1) are standard deviations of the increments, see
        ``cpp/noisy_steps.h``; ``save_rows`` are the places of the steps among the saved states, or -1.
        """
        run, loop = self.run, self.loop
        members, n, _ = run.y.shape
        law, positions = run.field.law, run.field.positions
        if law is not self.given[0] or positions is not self.given[1]:
            self.given = (law, positions)
            set_law(loop, law, Tokens.unchecked(run.y, None, positions))  # type: ignore[arg-type]
        masses = run.field.masses
        loop.set_arrays(masses=None if masses is None else masses.reshape(-1, masses.shape[-1]).contiguous())
        # copies: members that have ended and snapshots may refer to the present arrays
        y, f = (points.clone(memory_format=torch.contiguous_format) for points in (run.y, run.f))
        flags, evaluations, done = np.zeros((3, members), dtype=np.int64)
        source = run.field.source
        assert source is not None
        loop.set(fresh=fresh)
        loop.set_arrays(
            y=y,
            f=f,
            counts=np.full(members, n),
            flags=flags,
            evaluations=evaluations,
            done=done,
            who=run.members,
            draws=source.members.contiguous(),
            amplitudes=amplitudes.contiguous(),
            common=common,
            save_rows=save_rows,
        )
        loop.run_noise(first, len(save_rows), step)
        failed, far = (flags & native.FLAGS[name] > 0 for name in ("failed", "check"))
        return NoisyResult(done, failed, far, y, f, int(evaluations.sum()))


def make_polynomial(taken: np.ndarray, inside: Tensor) -> StepPolynomial:
    """Interpolants of the last steps: starting points and coefficients."""
    return StepPolynomial(taken, inside[:, 0], inside[:, 1:].transpose(0, 1))
