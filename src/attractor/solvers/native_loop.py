"""Integration of small systems in the compiled loop."""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor.engines import MODES, native
from attractor.laws import Attention, Kernel
from attractor.solvers.step_control import GROW, SAFETY, SHRINK
from attractor.solvers.steppers.stepper import Inside
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
from attractor.spaces import Ellipsoid, Euclidean, Sphere
from attractor.states import Tokens

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration, Plan
    from attractor.solvers.merging import Merger

RULES = (Consensus, Collapse, Steady)
SPACES = {Euclidean: "euclidean", Sphere: "sphere", Ellipsoid: "ellipsoid"}
FEATURES = 32  # of tokens and of heads: above, matrix products are the work, and libraries do them better
LARGEST = 1024  # tokens of a system: above, Python takes no time beside the evaluations


def fits(run: Integration) -> bool:
    """Whether the native loop knows everything that the run asks for."""
    return run.plan.native and run.y.dtype == torch.float64 and suits(run.plan, run.y)


def suits(plan: Plan, y: Tensor) -> bool:
    """Whether the native loop could march such points, were they in float64."""
    n, dim = y.shape[-2:]
    return (
        not native.reason
        and plan.adaptive
        and plan.stepper.coefficients is not None
        and not plan.events
        and y.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and _knows_law(plan.law)
        and type(plan.space) in SPACES
        and all(type(rule) in RULES for rule in plan.rules)
        and len({type(rule) for rule in plan.rules}) == len(plan.rules)
        and dim <= FEATURES
        and n <= LARGEST
    )


def _knows_law(law: Any) -> bool:
    absent = ("positions", "output", "query_bias", "key_bias", "value_bias", "output_bias")
    return (
        type(law) is Attention
        and isinstance(law.kernel, Kernel)
        and law.kernel.mode is not None
        and all(getattr(law, name) is None for name in absent)
        and isinstance(law.scale, float)
        and law.query.shape[-2] <= FEATURES
    )


def set_plan(loop: native.Loop, plan: Plan, skip_self: bool) -> None:
    """All that does not change while a run marches."""
    assert plan.stepper.coefficients is not None
    loop.set_method(plan.stepper.error_order, plan.stepper.coefficients)
    loop.set_rules([(rule.name, rule.tolerance) for rule in plan.rules])  # type: ignore[attr-defined]
    loop.set(
        start=plan.start, end=plan.until, rtol=plan.rtol, atol=plan.atol, first_step=plan.step or 0.0, bound=plan.bound
    )
    loop.set(safety=SAFETY, shrink=SHRINK, grow=GROW)
    loop.set(noise=NOISE, patience=float(PATIENCE), enough_rest=float(REST), calm_growth=CALM_GROWTH, tiny=TINY)
    loop.set(least_time=LEAST_TIME, least_move=LEAST_MOVE)
    loop.set(unresolved_spacings=UNRESOLVED_SPACINGS, failed_spacings=FAILED_SPACINGS)
    law = plan.law
    assert isinstance(law, Attention)
    kernel = law.kernel
    assert isinstance(kernel, Kernel)
    assert kernel.mode is not None
    loop.set(mode=MODES.index(kernel.mode), squared=not kernel.bilinear, scale=law.scale)
    loop.set(averaged=not kernel.normalised, bias=kernel.score_bias)
    loop.set(skip_self=skip_self and law._value_scalars is not None)
    loop.set_space(SPACES[type(plan.space)])  # type: ignore[index]
    loop.set(radius=getattr(plan.space, "radius", 1.0))
    if isinstance(plan.space, Ellipsoid):
        loop.set_arrays(matrix=plan.space.W.to(torch.float64).contiguous())


def set_law(loop: native.Loop, law: Attention, tokens: Tokens) -> None:
    """Parameters, of each member or of all, and the mask."""
    contents = tuple(matrix.detach().numpy().tobytes() for matrix in (law.query, law.key, law.value))
    known = _known.get(law)
    if known is None or known[0] != contents:  # parameters may be changed in place
        _known[law] = known = (contents, *_parameters(law))
    _, arrays, numbers = known
    loop.set_arrays(**arrays)
    loop.set(**numbers)
    hide = {} if law.mask is None else law.mask.hide(tokens)
    window, visible = hide.get("window"), hide.get("visible")
    loop.set(causal=hide.get("causal", False), window=0 if window is None else min(window, 2 * tokens.n))
    loop.set_arrays(visible=None if visible is None else visible.reshape(-1, tokens.n, tokens.n).contiguous())


_known: WeakKeyDictionary[Attention, tuple[tuple[bytes, ...], dict[str, np.ndarray | None], dict[str, float]]] = (
    WeakKeyDictionary()
)


def _parameters(law: Attention) -> tuple[dict[str, np.ndarray | None], dict[str, float]]:
    """Arrays and numbers of a law, as the loop takes them."""
    query, key, value = (_four(matrix) for matrix in (law.query, law.key, law.value))
    diagonal = query.shape[-2] == query.shape[-1] and _diagonal(query) and _diagonal(key)
    uniform = diagonal and _uniform(query) and _uniform(key)
    scalars = None if law._value_scalars is None else np.ascontiguousarray(value[..., 0, 0])
    arrays = {"query": query, "key": key, "value": value if scalars is None else None, "factors": scalars}
    return arrays, {"diagonal": diagonal, "uniform": uniform}


def _four(matrix: Tensor) -> np.ndarray:
    """(members or 1, heads, rows, d)."""
    array = np.ascontiguousarray(matrix.detach().numpy(), dtype=np.float64)
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _uniform(matrix: np.ndarray) -> bool:
    """Whether diagonal matrices are multiples of the identity."""
    return bool((matrix.diagonal(axis1=-2, axis2=-1) == matrix[..., :1, 0]).all())


def _diagonal(matrix: np.ndarray) -> bool:
    return bool(np.count_nonzero(matrix) == np.count_nonzero(matrix.diagonal(axis1=-2, axis2=-1)))


SECONDS = 0.1  # of a burst: signals, budgets, stores and bars wait as long
PAIR, TOKEN = 2e-9, 2e-8  # seconds that an evaluation takes for each pair and for each token, roughly


@dataclass(frozen=True)
class Stops:
    """Which members stopped and why; ``taken`` is the length of their last step."""

    entered: np.ndarray
    look: np.ndarray
    failed: np.ndarray
    arrived: np.ndarray
    taken: np.ndarray


def burst_of(run: Integration) -> Burst | None:
    """The native loop for a run, if it knows everything that the run asks for."""
    return Burst(run) if fits(run) else None


class Burst:
    """Carries the state of an integration to the native loop and back."""

    def __init__(self, run: Integration) -> None:
        self.run, self.loop = run, native.Loop()
        self.known: tuple[object, object] = (None, None)  # the law and the positions that the loop was given
        set_plan(self.loop, run.plan, run.field.skip_self)
        recorder = run.recorder
        self.loop.set_arrays(save_times=np.ascontiguousarray(recorder.times), saved=recorder.points)
        self.loop.set(named_times=recorder.explicit)

    def advance(self, seconds: float) -> Stops:
        """Steps of every member, for about as long; one attempt each if there is no time."""
        watch, plan = self.run.watch, self.run.plan
        seconds = min(seconds, plan.max_seconds - (clock.perf_counter() - watch.opened[0]))
        flags, taken = self._go(self._attempts(seconds), seconds)
        entered, look, failed, arrived = (
            (flags & native.FLAGS[name]) > 0 for name in ("at_start", "check", "failed", "arrived")
        )
        return Stops(entered, look & ~entered, failed, arrived, taken)

    def _attempts(self, seconds: float) -> int:
        """As many as fill a burst, so that members march side by side; few where a budget of evaluations ends soon."""
        run = self.run
        members, n, _ = run.y.shape
        stages = len(run.plan.stepper.coefficients[0]) + 1  # type: ignore[index]
        each = stages * (PAIR * n * n + TOKEN * n) * -(-members // torch.get_num_threads())
        left = run.plan.max_evaluations - (run.field.evaluations - run.watch.opened[1])
        return int(max(1, min(seconds / each, left // (members * (stages + 4)))))

    def _go(self, attempts: int, seconds: float) -> tuple[np.ndarray, np.ndarray]:
        run, loop, merger = self.run, self.loop, self.run.merger
        members, width, d = run.y.shape
        self._set_law()
        # copies: finished members and snapshots may still refer to the arrays of before
        y, f, anchor = (
            points.clone(memory_format=torch.contiguous_format) for points in (run.y, run.f, run.watch.anchor)
        )
        state = {name: np.array(getattr(run, name)) for name in ("t", "t_low", "h", "retried")}
        watched = {name: np.array(getattr(run.watch, name)) for name in ("streak", "last", "anchor_t", "rest")}
        followed, taken = run.recorder.next[run.who], np.zeros(members)
        counts = np.full(members, width) if merger is None else merger.alive.numpy().sum(1)
        flags, *spent = np.zeros((4, members), dtype=np.int64)
        inside = torch.empty(members, 1 + loop.parts, width, d, dtype=torch.float64)
        loop.set(attempts=attempts, fresh=not run.h.any())
        loop.set_arrays(y=y, f=f, anchor=anchor, counts=counts, flags=flags, taken=taken, inside=inside)
        loop.set_arrays(evaluations=spent[0], accepted=spent[1], rejected=spent[2], **state, **watched)
        loop.set_arrays(who=run.who, next=followed, noted=self._noted(), size=run.watch.size[run.who])
        carried = None if merger is None else Carried(merger, loop, y)
        loop.run(seconds)

        for owner, arrays in ((run, state), (run.watch, watched)):
            for name, array in arrays.items():
                setattr(owner, name, array)
        run.recorder.next[run.who] = run.recorder.reached[run.who] = followed
        evaluations, accepted, rejected = (sum(number.tolist()) for number in spent)
        run.field.evaluations += evaluations
        run.accepted, run.rejected = run.accepted + accepted, run.rejected + rejected
        run.engines.add("native")
        if carried is not None:
            # where all have arrived nobody asks for the rows again
            width = carried.back(counts, over=bool((flags == native.FLAGS["arrived"]).all()))
            run.field.masses = carried.merger.masses
        run.y, run.f, run.watch.anchor = (_rows(points, width) for points in (y, f, anchor))
        run.history.restart(run.y, run.f)
        located = bool((flags & native.FLAGS["interpolated"]).any())
        run.interpolant = partial(_polynomial, taken, inside[:, :, :width]) if located else None
        return flags, taken

    def _set_law(self) -> None:
        """Parameters and masses of the members that still march."""
        run, loop, field = self.run, self.loop, self.run.field
        # members that end take their parameters and their positions, and so their masks, with them
        if field.law is not self.known[0] or field.positions is not self.known[1]:
            self.known = (field.law, field.positions)
            set_law(loop, field.law, Tokens.trusted(run.y, None, field.positions))  # type: ignore[arg-type]
        if run.merger is None and field.masses is not None:
            loop.set_arrays(masses=field.masses.reshape(-1, field.masses.shape[-1]).contiguous())

    def _noted(self) -> np.ndarray:
        """The rule that was seen of each member, by its number, or -1."""
        noted = np.full(len(self.run.who), -1)
        if not self.run.watch.noted:
            return noted
        for row, member in enumerate(self.run.who):
            outcome = self.run.watch.noted.get(int(member))
            noted[row] = -1 if outcome is None else native.RULES[outcome.name]
        return noted


class Carried:
    """The state of a merger on its way through the native loop."""

    def __init__(self, merger: Merger, loop: native.Loop, y: Tensor) -> None:
        self.merger = merger
        members, width = merger.masses.shape
        known = merger.anchor is not None and merger.anchor.shape == y.shape
        self.masses = merger.masses.clone()
        self.anchor = (merger.anchor if known else y).clone(memory_format=torch.contiguous_format)  # type: ignore[union-attr]
        self.slack = merger.slack.copy() if known else np.zeros(members)
        self.row_of, self.node_of = np.array(merger.row_of), np.array(merger.node_of)
        self.merges = np.zeros(members, dtype=np.int64)
        self.times, self.weights = np.empty((2, members, width))
        self.left, self.right = np.empty((2, members, width), dtype=np.int64)
        nodes = np.array([merger.n + len(merger.forest[member]) for member in merger.who])
        loop.set(merge=merger.tolerance)
        loop.set_arrays(masses=self.masses, near_anchor=self.anchor, slack=self.slack, merges=self.merges)
        loop.set_arrays(row_of=self.row_of, node_of=self.node_of, nodes=nodes)
        loop.set_arrays(log_time=self.times, log_mass=self.weights, log_left=self.left, log_right=self.right)

    def back(self, counts: np.ndarray, over: bool) -> int:
        """Give the merger what became of it; how many rows are left, or lie there still if the run is over."""
        merger, width = self.merger, self.masses.shape[1]
        merger.slack, merger.anchor = self.slack, self.anchor
        for row, merges in enumerate(self.merges.tolist()):
            if merges:
                logs = (log[row, :merges] for log in (self.times, self.left, self.right, self.weights))
                merger.forest[merger.who[row]].extend(*logs)
        merger.row_of = self.row_of
        if over or not self.merges.any():
            return width
        width = int(counts.max())
        merger.masses, merger.anchor = _rows(self.masses, width), _rows(self.anchor, width)
        merger.node_of = self.node_of[:, :width].copy()
        merger.alive = torch.from_numpy(np.arange(width)[None] < counts[:, None])
        return width


def _polynomial(taken: np.ndarray, inside: Tensor) -> Inside:
    """Where the last steps began, and their polynomials."""
    return Inside(taken, inside[:, 0], inside[:, 1:].transpose(0, 1))


def _rows(array: Tensor, width: int) -> Tensor:
    """The first rows of every member, of their own."""
    return array if array.shape[1] == width else array[:, :width].contiguous()
