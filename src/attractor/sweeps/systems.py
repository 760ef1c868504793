"""The systems of cells, and what is measured on them: cells that differ only in numbers are integrated as one ensemble."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.laws import Attention, Law
from attractor.observables import Observable, find_observable, list_observables
from attractor.registry import closest, unknown
from attractor.serialization import encode, move_tensors
from attractor.solvers import Noise, Outcome, Redrawn, Trajectory, flow
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere, space_named
from attractor.states import Density, Gaussian, Tokens
from attractor.sweeps.cells import Cell, derive_seed

BLOCK = 64  # starts integrated together where rounding depends on the size of an ensemble
NATIVE_DIM, NATIVE_TOKENS = 32, 1024  # sizes up to which the native loop integrates, each member by itself
GIVEN = ("seed", "starts")  # arguments of a system that are not axes


@dataclass(frozen=True)
class System:
    """What one cell integrates.

    Attributes
    ----------
    law : gives every token its velocity.
    state : Tokens with points (n, d), or (starts, n, d); or a Gaussian, or a Density on the circle.
    space : where it moves; None is flat space.
    noise : the random part of the motion.
    options : further arguments of ``flow`` for this cell.
    """

    law: Law
    state: Tokens | Gaussian | Density
    space: Space | str | None = None
    noise: Noise | Redrawn | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Some starts of one cell: those from ``first`` on, ``count`` of them."""

    cell: Cell
    first: int
    count: int


@dataclass(frozen=True)
class Row:
    """Results of a request, or the reason of its failure.

    Attributes
    ----------
    observed : values (times, starts, ...) of observables of states, (1, starts, ...) of measures of runs.
    times : saved times (times,).
    outcomes, ends : how each run ended, and when.
    """

    request: Request
    reason: str = ""
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)
    times: np.ndarray = field(default_factory=lambda: np.zeros(0))
    outcomes: tuple[str, ...] = ()
    ends: np.ndarray = field(default_factory=lambda: np.zeros(0))


def _end_time(run: Trajectory, outcome: Outcome, merges: np.ndarray) -> float:
    return outcome.time


def _consensus_time(run: Trajectory, outcome: Outcome, merges: np.ndarray) -> float:
    return outcome.time if outcome.name == "consensus" else math.inf


def _blow_up_time(run: Trajectory, outcome: Outcome, merges: np.ndarray) -> float:
    return outcome.time if outcome.name == "blow_up" else math.inf


def _first_merge(run: Trajectory, outcome: Outcome, merges: np.ndarray) -> float:
    return float(merges.min(initial=math.inf))


def _merge_clusters(run: Trajectory, outcome: Outcome, merges: np.ndarray) -> float:
    return float(run.n - len(merges))


# of a run; times are infinite where the event does not happen
MEASURES: dict[str, Callable[[Trajectory, Outcome, np.ndarray], float]] = {
    "blow_up_time": _blow_up_time,
    "consensus_time": _consensus_time,
    "end_time": _end_time,
    "first_merge": _first_merge,
    "merge_clusters": _merge_clusters,
}


def _trace(mean: Tensor, covariance: Tensor) -> Tensor:
    return covariance.diagonal(dim1=-2, dim2=-1).sum(-1)


def _mean_norm(mean: Tensor, covariance: Tensor) -> Tensor:
    return torch.linalg.vector_norm(mean, dim=-1)


def _largest_eigenvalue(mean: Tensor, covariance: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(covariance)[..., -1]


def _covariance_rank(mean: Tensor, covariance: Tensor) -> Tensor:
    eigenvalues = torch.linalg.eigvalsh(covariance)
    return (eigenvalues > 1e-3 * eigenvalues[..., -1:]).sum(-1)


# of a Gaussian along time
GAUSSIAN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "covariance_rank": _covariance_rank,
    "largest_eigenvalue": _largest_eigenvalue,
    "mean_norm": _mean_norm,
    "trace": _trace,
}


def _density_entropy(state: Density) -> np.ndarray:
    return state.entropy()


def _density_peaks(state: Density) -> np.ndarray:
    return state.peaks()


def _density_order(state: Density) -> np.ndarray:
    return np.abs(state.modes[..., 1])


# of a density along time; the order is the size of the first Fourier coefficient
DENSITY: dict[str, Callable[[Density], np.ndarray]] = {
    "density_entropy": _density_entropy,
    "density_order": _density_order,
    "density_peaks": _density_peaks,
}

# depend on products of tokens only, so that they are the same in every orthonormal basis
INVARIANT: tuple[Observable, ...] = (
    observables.attention_entropy,
    observables.cluster_entropy,
    observables.cluster_sizes,
    observables.clusters,
    observables.cosine,
    observables.cosine_min,
    observables.diameter,
    observables.energy,
    observables.kernel_clusters,
    observables.leaders,
    observables.pair_fraction,
    observables.pairwise_distance,
    observables.partition,
    observables.self_weight,
    observables.token_norm,
)


def read_observables(observe: Any) -> dict[str, Any]:
    """Return what is measured by name: functions of states, and names of measures of runs (None as a function).

    Takes a name, a function, a list of them or a mapping from names to them. A name may have options: "clusters(radius=0.2)".
    """
    if isinstance(observe, str) or callable(observe):
        observe = [observe]
    if isinstance(observe, Mapping):
        items = list(observe.items())
    elif isinstance(observe, Sequence):
        items = [(item if isinstance(item, str) else _name_of(item), item) for item in observe]
    else:
        raise InputError(
            f"observe must be the name of an observable, a function, a list or a mapping of them, got {observe!r}"
        )
    found: dict[str, Any] = {}
    for name, item in items:
        if name in found:
            raise InputError(
                f"two observables are called {name!r}: give a mapping such as {{'close': ..., 'near': ...}}"
            )
        if name in ("time", "starts", "cell", "key", "reason", "outcome"):
            raise InputError(f"an observable cannot be called {name!r}, which is a column of every table")
        found[str(name)] = parse_observable(item) if isinstance(item, str) else item
        if not (found[name] is None or callable(found[name])):
            raise InputError(f"an observable is a name or a function, got {item!r}")
    if not found:
        raise InputError("observe is empty; give at least one observable")
    return found


def _name_of(function: Any) -> str:
    if isinstance(function, partial):
        return _name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)


def parse_observable(text: str) -> Observable | None:
    """Return the function of ``name`` or ``name(option=value, ...)``; None for a measure of runs, Gaussians or densities."""
    name, bracket, inside = text.partition("(")
    name = name.strip()
    if not bracket and (name in MEASURES or name in GAUSSIAN or name in DENSITY):
        return None
    if name not in list_observables():
        raise unknown(name, [*list_observables(), *MEASURES, *GAUSSIAN, *DENSITY], "observable")
    function = find_observable(name)
    if not bracket:
        return function
    known = [part for part, given in inspect.signature(function).parameters.items() if given.kind is given.KEYWORD_ONLY]
    if not inside.rstrip().endswith(")"):
        raise InputError(
            f"the options of {text!r} do not end with a bracket; write {name}({known[0] if known else 'option'}=...)"
        )
    options: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in inside.rstrip()[:-1].split(","))):
        option, equals, value = part.partition("=")
        if option.strip() not in known:
            close = closest(option.strip(), known)
            hint = f"did you mean {close!r}?" if close else f"its options are {', '.join(known) or 'none'}"
            raise InputError(f"the observable {name} has no option {option.strip()!r}; {hint}")
        try:
            options[option.strip()] = json.loads(value) if equals else True
        except ValueError:
            raise InputError(f"the option {part!r} of {name} is not a number: write {option.strip()}=0.5") from None
    return partial(function, **options) if options else function


def check_observables(state: Tokens | Gaussian | Density, observe: Mapping[str, Any]) -> None:
    """Raise if an observable does not belong to the kind of state."""
    kind, own = type(state), {Gaussian: GAUSSIAN, Density: DENSITY}.get(type(state), {})
    what = {Gaussian: "a Gaussian", Density: "a density"}.get(kind, "tokens")
    for name, function in observe.items():
        if own and function is not None:
            raise InputError(
                f"{name} is measured on tokens, and the system moves {what}: observe {', '.join((*own, *MEASURES))}"
            )
        if function is None and name not in own and name not in MEASURES:
            theirs = "Gaussians" if name in GAUSSIAN else "densities"
            raise InputError(f"{name} is measured on {theirs}, and the system moves {what}")


@dataclass(frozen=True)
class Experiment:
    """Everything that a process needs to compute a cell.

    Attributes
    ----------
    make : returns the system of a cell.
    observe : what is measured, by name; None for measures of runs, see :func:`read_observables`.
    flow : arguments of ``flow`` for all cells.
    seed : seed of the sweep.
    device : device of the tokens.
    """

    make: Callable[..., Any]
    observe: Mapping[str, Any]
    flow: Mapping[str, Any]
    seed: int = 0
    device: str = "cpu"

    @property
    def given(self) -> tuple[str, ...]:
        """Which of seed and starts the system takes as arguments."""
        parameters = _parameters(self.make)
        return tuple(name for name in GIVEN if name in parameters)

    def check_axes(self, axes: Mapping[str, Any]) -> None:
        """Raise for axes that the system does not have, and for arguments without a value."""
        parameters = _parameters(self.make)
        names = [name for name in parameters if name not in GIVEN]
        free = any(part.kind is part.VAR_KEYWORD for part in parameters.values())
        for axis in axes:
            if axis in GIVEN:
                raise InputError(f"{axis} is no axis: give it as an argument of the sweep")
            if axis not in names and not free:
                close = closest(axis, names)
                hint = f"did you mean {close!r}?" if close else f"it has {', '.join(names) or 'none'}"
                raise InputError(f"the system has no parameter {axis!r}; {hint}")
        needed = [
            name
            for name in names
            if name not in axes
            and parameters[name].default is inspect.Parameter.empty
            and parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        ]
        if needed:
            raise InputError(
                f"the system needs {', '.join(needed)} too: give an axis for it, of one value where it does not vary"
            )

    def build(self, request: Request) -> System | list[Mapping[str, Any]]:
        """Return the system of a request, its starts on one leading axis; or what the system measured, for each start."""
        cell, first, count = request.cell, request.first, request.count
        if self.given == ("seed",) or not self.given:
            starts = range(first, first + count)
            made = [
                self.make(**cell.arguments, **({"seed": derive_seed(self.seed, cell, start)} if self.given else {}))
                for start in (starts if self.given else [0])
            ]
            if isinstance(made[0], Mapping):
                if not self.given and (first, count) != (0, 1):
                    raise InputError("the system takes no seed, so that all starts are the same: give starts=1")
                return [_check_measured(item) for item in made]
            systems = [_read_system(item) for item in made]
            return self._join(systems) if self.given else self._select(systems[0], first, count)
        last = first + count
        seed = {"seed": derive_seed(self.seed, cell)} if "seed" in self.given else {}
        system = _read_system(self.make(**cell.arguments, **seed, starts=last))
        if first:
            alone = _flatten(_read_system(self.make(**cell.arguments, **seed, starts=1)), 1).state
            among = _choose(_flatten(system, last).state, torch.tensor([0]))
            if not torch.equal(_rows(alone), _rows(among)):
                raise InputError(
                    "the first start depends on how many are drawn: a system with the argument starts must draw them one after the other, "
                    "as Tokens.uniform(..., ensemble=starts, seed=seed) does"
                )
        return self._select(system, first, count, last)

    def _select(self, system: System, first: int, count: int, total: int | None = None) -> System:
        """Some of the starts of an ensemble."""
        members = system.state.batch_shape.numel()
        if total is None:
            total = members
            if first + count > members:
                raise InputError(
                    f"the system takes neither seed nor starts and has {members} start{'s' * (members > 1)}, fewer than {first + count}: "
                    "write def make(..., seed) or def make(..., seed, starts)"
                )
        system = _flatten(system, total)
        if (first, count) == (0, total):
            return system
        index = torch.arange(first, first + count)
        return _restrict(system, index)

    @staticmethod
    def _join(systems: list[System]) -> System:
        """One ensemble of systems with one start each."""
        first = systems[0]
        random = [system for system in systems if system.noise is not None and isinstance(system.state, Tokens)]
        if len(systems) > 1 and random:
            raise UnsupportedError(
                "a system with noise takes the argument starts: its starts are one ensemble, of one Noise(...)"
            )
        singles = [_flatten(system, 1) for system in systems]
        same = all(system.law is first.law and system.space is first.space for system in systems)
        if len(singles) == 1:
            return singles[0]
        if same:
            return dataclasses.replace(first, state=_stack([single.state for single in singles]))
        if all(type(single.law) is Attention and isinstance(single.state, Tokens) for single in singles):
            if len({signature(single, {}, "any") for single in singles}) > 1:
                raise InputError("systems of one cell must have the same shape, kernel, mask and space for every seed")
            return _concatenate(singles)
        digests = {_digest(single.law) for single in singles}
        if len(digests) > 1 or None in digests:
            raise UnsupportedError(
                f"a {type(first.law).__name__} must be the same for every seed, or the system takes the argument starts"
            )
        return dataclasses.replace(first, state=_stack([single.state for single in singles]))


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):
        raise InputError(f"the system must be a function whose arguments are the axes, got {make!r}") from None


def _read_system(made: Any) -> System:
    if isinstance(made, tuple) and len(made) in (2, 3):
        made = System(*made)
    if not isinstance(made, System):
        raise InputError(
            f"the system of a cell is (law, state, space), a System, or a mapping of numbers; got {type(made).__name__}"
        )
    if not isinstance(made.law, Law) or not isinstance(made.state, (Tokens, Gaussian, Density)):
        raise InputError(
            f"the system of a cell is (law, state, space), got a {type(made.law).__name__} and a {type(made.state).__name__}"
        )
    if isinstance(made.space, str):
        return dataclasses.replace(made, space=space_named(made.space))
    return made


def _check_measured(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in values.items():
        try:
            np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"the value {name!r} that the system returned is no number: {value!r}") from None
    return values


def _flatten(system: System, starts: int) -> System:
    """The system with one leading axis of its starts."""
    state, shape = system.state, system.state.batch_shape
    if shape.numel() != starts:
        raise InputError(
            f"the system must have {starts} start{'s' * (starts > 1)}, and its state has the shape {tuple(shape)}"
        )
    if len(shape) == 1:
        return system
    if isinstance(state, Density):
        flat: Tokens | Gaussian | Density = Density(state.values.reshape(starts, -1))
    elif isinstance(state, Gaussian):
        flat = Gaussian(state.mean.reshape(starts, -1), state.covariance.reshape(starts, state.dim, state.dim))
    else:
        rows = [
            row if row is None or row.ndim == 1 else row.reshape(starts, state.n)
            for row in (state.masses, state.positions)
        ]
        flat = Tokens.unchecked(state.points.reshape(starts, state.n, state.dim), *rows)
    return dataclasses.replace(system, state=flat)


def _rows(state: Tokens | Gaussian | Density) -> Tensor:
    if isinstance(state, Density):
        return state.values
    return state.points if isinstance(state, Tokens) else state.covariance_rows()


def _restrict(system: System, index: Tensor) -> System:
    """Some starts of a system, which keep their random numbers."""
    noise = system.noise
    if noise is not None and isinstance(system.state, Tokens):  # noise of measures is not random
        noise = noise.restrict(index)
    return dataclasses.replace(system, law=system.law.member(index), state=_choose(system.state, index), noise=noise)


def _choose(state: Tokens | Gaussian | Density, index: Tensor) -> Tokens | Gaussian | Density:
    if isinstance(state, Density):
        return Density(state.values[index])
    if isinstance(state, Gaussian):
        return Gaussian(state.mean[index], state.covariance[index])
    rows = [row if row is None or row.ndim == 1 else row[index] for row in (state.masses, state.positions)]
    return Tokens.unchecked(state.points[index], *rows)


def _stack(states: Sequence[Tokens | Gaussian | Density]) -> Tokens | Gaussian | Density:
    """States with one leading axis each as one."""
    if all(isinstance(state, Density) for state in states):
        return Density(torch.cat([_rows(state) for state in states]))
    if all(isinstance(state, Gaussian) for state in states):
        return Gaussian(torch.cat([state.mean for state in states]), torch.cat([state.covariance for state in states]))  # type: ignore[union-attr]
    rows: list[Tensor | None] = []
    tokens = [state for state in states if isinstance(state, Tokens)]
    if len(tokens) < len(states) or len({state.points.shape[1:] for state in tokens}) > 1:
        raise InputError("states of one cell must have the same number of tokens and dimension for every seed")
    for name in ("masses", "positions"):
        parts = [getattr(state, name) for state in tokens]
        if any(part is None for part in parts) and not all(part is None for part in parts):
            raise InputError(f"states of one cell have {name} for every seed, or for none")
        rows.append(
            None
            if parts[0] is None
            else torch.cat([part.expand(len(state.points), state.n) for part, state in zip(parts, tokens, strict=True)])
        )
    return Tokens.unchecked(torch.cat([state.points for state in tokens]), *rows)


def _digest(record: Any) -> str | None:
    """A checksum of a record and its tensors; None if it cannot be written to a store."""
    try:
        data, arrays = encode(record)
    except AttractorError:
        return None
    content = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        content.update(f"{name}{array.shape}{array.dtype}".encode() + array.tobytes())
    return content.hexdigest()


def digest_system(system: System | list[Mapping[str, Any]]) -> str | None:
    """A checksum of what is integrated, None where there is none: Python functions have no content to compare."""
    if not isinstance(system, System):
        return None
    parts = (system.law, system.state, system.space, system.noise)
    found = [part if part is None else _digest(part) for part in parts]
    if any(name is None for name, part in zip(found, parts, strict=True) if part is not None):
        return None
    return hashlib.sha256(json.dumps([*found, {k: repr(v) for k, v in system.options.items()}]).encode()).hexdigest()


def signature(system: System, options: Mapping[str, Any], device: str = "cpu") -> tuple[Any, ...] | None:
    """What systems that can be integrated as one ensemble have in common; None for a system that is integrated alone.

    On the CPU these are systems of the native loop, which integrates every member by itself, so that its numbers do not depend on
    the others. Properties of parameters that select another formula are part of the signature for the same reason.
    """
    law, state, space = system.law, system.state, system.space
    if type(law) is not Attention or not isinstance(state, Tokens) or system.noise is not None:
        return None
    absent = (law.positions, law.output, law.query_bias, law.key_bias, law.value_bias, law.output_bias, state.positions)
    if any(part is not None for part in absent) or law.kernel.mode is None or not isinstance(law.scale, float):
        return None
    settings = {**options, **system.options}
    if device == "cpu":
        plain = all(
            settings.get(name) is None for name in ("engine", "events", "distributed", "max_seconds", "max_evaluations")
        )
        plain = plain and settings.get("adaptive", True) and settings.get("method") in (None, "dop853", "dopri5")
        small = state.dim <= NATIVE_DIM and law.query.shape[-2] <= NATIVE_DIM and state.n <= NATIVE_TOKENS
        if not (plain and small and type(space) in (type(None), Euclidean, Sphere, Ellipsoid)):
            return None
    query, key, value = law.query, law.key, law.value
    square = query.shape[-1] == query.shape[-2]
    diagonal = square and _is_diagonal(query) and _is_diagonal(key)
    scalars = _value_factors(value)
    return (
        repr(law.kernel),
        _digest(law.kernel),
        None if law.mask is None else _digest(law.mask),
        law.scale,
        (law.heads, *query.shape[-2:]),
        query.dtype,
        diagonal,
        diagonal and _is_multiple(query) and _is_multiple(key),
        scalars is not None,
        scalars is not None and bool((scalars > 0).all()),
        scalars is not None and bool((scalars == 1).all()),
        law._symmetric_scores if law.kernel.uses_symmetry else None,
        (state.n, state.dim, state.points.dtype, state.masses is None),
        None if space is None else _digest(space),
        json.dumps({name: repr(value) for name, value in sorted(settings.items())}),
    )


def _is_diagonal(matrix: Tensor) -> bool:
    return int(torch.count_nonzero(matrix)) == int(torch.count_nonzero(matrix.diagonal(dim1=-2, dim2=-1)))


def _is_multiple(matrix: Tensor) -> bool:
    """Whether diagonal matrices are multiples of the identity."""
    return bool((matrix.diagonal(dim1=-2, dim2=-1) == matrix[..., :1, 0]).all())


def _value_factors(value: Tensor) -> Tensor | None:
    return value[..., 0, 0] if _is_diagonal(value) and _is_multiple(value) else None


def _concatenate(systems: Sequence[System]) -> System:
    """One ensemble of systems with one signature; parameters for each member where they differ."""
    first = systems[0]
    law = first.law
    assert isinstance(law, Attention)
    if any(system.law is not law for system in systems[1:]):
        parts = {}
        for name in ("query", "key", "value"):
            rows = []
            for system in systems:
                matrix = getattr(system.law, name)
                matrix = matrix.reshape((1,) * (4 - matrix.ndim) + tuple(matrix.shape))
                rows.append(matrix.expand(system.state.batch_shape.numel(), *matrix.shape[1:]))
            parts[name] = torch.cat(rows)
        law = dataclasses.replace(law, **parts)
    return dataclasses.replace(first, law=law, state=_stack([system.state for system in systems]))


def reduce_dimension(system: System, functions: Sequence[Observable]) -> System:
    r"""Rotate isotropic systems of few tokens in many dimensions into the span of their tokens.

    Where Q, K and V are multiples of the identity, tokens stay in their span, and rotations of all tokens commute with the flow.
    With :math:`X^\top = QR` the columns of R are the tokens in an orthonormal basis of the span. The system is left unchanged if the
    native loop takes its dimension, or if an observable is not a function of the products of tokens.
    """
    law, state = system.law, system.state
    if type(law) is not Attention or not isinstance(state, Tokens) or not state.n <= NATIVE_DIM < state.dim:
        return system
    if (
        type(system.space) not in (type(None), Euclidean, Sphere)
        or system.noise is not None
        or law.positions is not None
    ):
        return system
    absent = (law.output, law.query_bias, law.key_bias, law.value_bias, law.output_bias)
    square = law.query.shape[-1] == law.query.shape[-2]
    if not square or any(part is not None for part in absent) or state.points.dtype != torch.float64:
        return system
    if not all(_is_diagonal(part) and _is_multiple(part) for part in (law.query, law.key, law.value)):
        return system
    if not all((function.func if isinstance(function, partial) else function) in INVARIANT for function in functions):
        return system
    n = state.n
    points = torch.linalg.qr(state.points.mT).R.mT.contiguous()
    parts = {name: getattr(law, name)[..., :n, :n].contiguous() for name in ("query", "key", "value")}
    tokens = Tokens.unchecked(points, state.masses, state.positions)
    return dataclasses.replace(system, law=dataclasses.replace(law, **parts), state=tokens)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: some sums depend on the number of threads, and processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_failure(error: BaseException) -> str:
    """Return the reason of a failed cell in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, AttractorError) else f"{type(error).__name__}: {text or 'no message'}"


def compute(experiment: Experiment, requests: Sequence[Request]) -> list[Row]:
    """Compute requests, on one thread; a failure costs the request that it comes from."""
    with one_thread():
        rows: dict[Request, Row] = {}
        groups: dict[Any, list[tuple[Request, System]]] = {}
        functions = [function for function in experiment.observe.values() if function is not None]
        for request in requests:
            try:
                system = experiment.build(request)
                if not isinstance(system, System):
                    rows[request] = _measured(experiment, request, system)
                    continue
                if experiment.device == "cpu":
                    system = reduce_dimension(system, functions)
                common = signature(system, experiment.flow, experiment.device)
            except Exception as error:
                rows[request] = Row(request, describe_failure(error))
                continue
            if common is None:  # rounding depends on the size of the ensemble, which must not depend on other requests
                rows[request] = _compute_alone(experiment, request, system)
            else:
                groups.setdefault(common, []).append((request, system))
        for members in groups.values():
            rows |= _compute_group(experiment, members)
    return [rows[request] for request in requests]


def _measured(experiment: Experiment, request: Request, values: list[Mapping[str, Any]]) -> Row:
    wanted = list(experiment.observe) or list(values[0])
    observed = {}
    for name in wanted:
        if name not in values[0]:
            raise unknown(name, values[0], "value")
        observed[name] = np.stack([np.asarray(item[name], dtype=np.float64) for item in values])[None]
    return Row(request, "", observed, outcomes=("computed",) * len(values), ends=np.zeros(len(values)))


def _compute_alone(experiment: Experiment, request: Request, system: System) -> Row:
    """Integrate one system, in blocks of starts whose bounds do not depend on the request."""
    parts: list[Row] = []
    try:
        last = request.first + request.count
        edges = [request.first, *range((request.first // BLOCK + 1) * BLOCK, last, BLOCK), last]
        for begin, end in pairwise(edges):
            index = torch.arange(begin - request.first, end - request.first)
            piece = _restrict(system, index)
            parts.append(_integrate(experiment, piece, [Request(request.cell, begin, end - begin)])[0])
    except Exception as error:
        return Row(request, describe_failure(error))
    observed = {name: np.concatenate([part.observed[name] for part in parts], axis=1) for name in experiment.observe}
    outcomes = tuple(name for part in parts for name in part.outcomes)
    return Row(request, "", observed, parts[0].times, outcomes, np.concatenate([part.ends for part in parts]))


def _compute_group(experiment: Experiment, members: list[tuple[Request, System]]) -> dict[Request, Row]:
    """Integrate systems as one ensemble; each by itself if that fails."""
    try:
        together = _concatenate([system for _, system in members])
        # a basis of the span of each member would come from products whose rounding depends on the ensemble
        together = dataclasses.replace(together, options={"reduce": False, **together.options})
        rows = _integrate(experiment, together, [request for request, _ in members])
        return dict(zip((request for request, _ in members), rows, strict=True))
    except Exception as error:
        if len(members) == 1:
            return {members[0][0]: Row(members[0][0], describe_failure(error))}
    found: dict[Request, Row] = {}
    for member in members:
        found |= _compute_group(experiment, [member])
    return found


def _integrate(experiment: Experiment, system: System, requests: Sequence[Request]) -> list[Row]:
    """Integrate an ensemble that holds the starts of the requests one after the other."""
    options: dict[str, Any] = {**experiment.flow, **system.options}
    times = _save_times(options, system)
    functions = {name: function for name, function in experiment.observe.items() if function is not None}
    check_observables(system.state, experiment.observe)
    measure = not isinstance(system.state, Tokens)
    state = system.state if experiment.device == "cpu" else move_tensors(system.state, torch.device(experiment.device))
    watched = None if measure else functions or {"token_norm": observables.token_norm}
    options |= {"save": times.tolist(), "space": system.space, "noise": system.noise, "observe": watched}
    run = flow(system.law, state, **options)
    found = {name: _extend(name, function, run, len(times)) for name, function in functions.items()}
    if isinstance(system.state, Density):
        states = [run.state(k) for k in range(len(run.times))]
        states += [run.final] * (len(times) - len(states))
        for name in experiment.observe:
            if name in DENSITY:
                found[name] = np.stack([DENSITY[name](cast("Density", one)) for one in states]).astype(np.float64)
    elif isinstance(system.state, Gaussian):
        rows = run._gaussian
        missing = len(times) - len(rows)
        rows = torch.cat([rows, run.final.rows().expand(missing, *rows.shape[1:])]) if missing else rows  # type: ignore[union-attr]
        mean, factor = rows[..., 0, :], rows[..., 1:, :]
        for name in experiment.observe:
            if name in GAUSSIAN:
                found[name] = GAUSSIAN[name](mean, factor.mT @ factor).to(torch.float64).numpy()
    merges = _merge_times(run)
    for name, function in experiment.observe.items():
        if function is None and name in MEASURES:
            values = [MEASURES[name](run, outcome, merges[k]) for k, outcome in enumerate(run.outcomes)]
            found[name] = np.array([values], dtype=np.float64)
    rows_found, begin = [], 0
    for request in requests:
        part = slice(begin, begin := begin + request.count)
        observed = {name: found[name][:, part] for name in experiment.observe}
        outcomes = run.outcomes[part]
        ends = np.array([outcome.time for outcome in outcomes])
        rows_found.append(Row(request, "", observed, times, tuple(outcome.name for outcome in outcomes), ends))
    return rows_found


def _merge_times(run: Trajectory) -> list[np.ndarray]:
    trees = getattr(run.events, "trees", [])
    if not trees:
        return [np.zeros(0)] * len(run.outcomes)
    return [trees[k].rows[:, 0] if k < len(trees) else np.zeros(0) for k in range(len(run.outcomes))]


def _save_times(options: Mapping[str, Any], system: System) -> np.ndarray:
    """The times at which observables are evaluated: the end, if none are asked for."""
    from attractor.solvers import save_times

    start, until, save = float(options.get("start") or 0.0), options.get("until"), options.get("save")
    if until is None:
        until = save[-1] if isinstance(save, (list, tuple)) and len(save) else getattr(system.law, "depth", None)
    if until is None:
        raise InputError("a sweep needs a time to reach: give until=...")
    if save is None:
        return np.array([float(until)])
    return save_times(save, start, float(until), 0)[0]


def _extend(name: str, function: Observable, run: Trajectory, times: int) -> np.ndarray:
    """Values at all saved times: runs that end early stay in their last state."""
    found = run.observed[name]
    missing = times - len(found)
    if missing:
        last = torch.as_tensor(function(run.final, law=run._law_at(run.outcome.time), space=run.space))
        found = torch.cat([found, last.to(found).expand(missing, *last.shape)])
    return found.detach().cpu().to(torch.float64).numpy()
