"""The device loop: integration of ensembles of small systems by one CUDA kernel (``device_loop.cu``), compiled at run time."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import time
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor import files
from attractor.engines import MODES
from attractor.errors import UnsupportedError
from attractor.laws import Attention
from attractor.solvers import termination as constants
from attractor.solvers.merging import NativeMerges
from attractor.solvers.native_loop import REASONS, RULES, LoopResult, make_polynomial
from attractor.solvers.step_control import GROW, SAFETY, SHRINK
from attractor.solvers.steppers.stepper import RungeKutta
from attractor.solvers.stiffness import CALM_STEPS, INTERVAL, NEAR, STIFF_STEPS
from attractor.states import Tokens, tensor_version

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration, Plan

MAX_TOKENS, MAX_DIM = 512, 16  # of a system; keys and values are in the shared memory of one block
SMALLEST, LARGEST = 1e-12, 1e12  # size of a space; squares of coordinates are taken in float32
CALM = {torch.float64: 400.0, torch.float32: 50.0}  # scores (in units of log 2) below which one shift serves all
WARPS = 4  # warps of a multiprocessor up to which the threads of a token are doubled
RESIDENT = {
    torch.float64: 384,
    torch.float32: 640,
}  # threads that a multiprocessor should hold; more have too few registers
GRID_TOKENS = 96  # above, one system is integrated by all blocks
MAX_GRID_TOKENS = 16384
TILE_BYTES = 48 << 10  # of keys and points
SLOPE_BYTES = 64 << 10  # of a block; slopes that take more are in local memory
PAIRS = {torch.float64: 4e11, torch.float32: 1e12}  # pairs per second that a launch is planned with
STEP_SECONDS = 2e-5  # least time of an attempt
OLDEST = (7, 0)  # compute capability
SPACES = ("euclidean", "sphere", "ellipsoid")
RULE_NUMBERS = {"consensus": 0, "collapsed": 1, "steady": 2}
FLAGS = {"check": 1, "arrived": 2, "failed": 4, "interpolated": 8, "at_start": 16, "stiff": 32}
STOPS = np.array([[FLAGS[name]] for name in REASONS])

# rows of the state of members, in the order of the enumeration in device_loop.cu
STATES = (
    *("t", "t_low", "h", "retried", "next", "flags", "taken", "streak", "last", "anchor_t", "rest"),
    *("implicit", "steps", "wait", "suspect", "calm", "evaluations", "accepted", "rejected"),
    *("count", "slack", "nodes", "merges", "size", "hold", "noted", "who"),
)


class Run(ctypes.Structure):
    """The argument of the kernel: ``Run`` in device_loop.cu."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("members", "columns", "saves", "attempts")]
        + [(name, ctypes.c_int64) for name in ("interaction_stride", "value_stride", "mass_stride")]
        + [(name, ctypes.c_void_p) for name in ("y", "f", "anchor", "inside", "saved", "masses", "near_anchor")]
        + [(name, ctypes.c_void_p) for name in ("interaction", "query", "key", "value", "shifts", "matrix")]
        + [(name, ctypes.c_void_p) for name in ("state", "totals", "log", "row_of", "node_of")]
        + [(name, ctypes.c_void_p) for name in ("workspace", "partials", "arrived", "save_times")]
        + [(name, ctypes.c_int) for name in ("width", "n", "heads", "window", "fresh", "named_times")]
        + [("order", ctypes.c_int * 3)]
        + [
            (name, ctypes.c_double)
            for name in ("start", "end", "rtol", "atol", "first_step", "safety", "shrink", "grow")
        ]
        + [(name, ctypes.c_double) for name in ("bound", "scale", "bias", "radius", "consensus", "collapse", "steady")]
        + [
            (name, ctypes.c_double)
            for name in ("noise", "patience", "enough_rest", "calm_growth", "tiny", "least_time")
        ]
        + [(name, ctypes.c_double) for name in ("least_move", "unresolved", "given_up", "stability", "stiff_steps")]
        + [(name, ctypes.c_double) for name in ("calm_steps", "first_wait", "merge")]
    )  # type: ignore[assignment]


class Cuda:
    """Compiles kernels by NVRTC and launches them on PyTorch's current stream."""

    device_type = "cuda"

    @property
    def reason(self) -> str:
        """Why kernels cannot be compiled or run here; empty if they can."""
        return _cuda_reason()

    def compile(self, source: str, device: torch.device, shared: int) -> Any:
        """Return the function ``integrate`` of a source; compiled code is kept in the cache folder."""
        return _load(_compile(source, torch.cuda.get_device_capability(device)), device.index or 0, shared)

    def launch(
        self, function: Any, grid: int, block: int, shared: int, run: Run, device: torch.device, together: bool
    ) -> None:
        """Launch a function; ``together`` if its blocks wait for each other."""
        from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(run))
        stream = torch.cuda.current_stream(device).cuda_stream
        size = (grid, 1, 1, block, 1, 1, shared, stream, ctypes.addressof(pointers))
        result = (
            driver.cuLaunchCooperativeKernel(function, *size) if together else driver.cuLaunchKernel(function, *size, 0)
        )
        _check(result[0])

    def grid(self, device: torch.device, dtype: torch.dtype) -> tuple[int, int]:
        """Number of blocks that can wait for each other, and of their threads.

        The grid has been tested in emulation only, so it is used where ATTRACTOR_GPU_GRID=1.
        """
        return (self.processors(device), RESIDENT[dtype]) if os.environ.get("ATTRACTOR_GPU_GRID") == "1" else (0, 0)

    def processors(self, device: torch.device) -> int:
        """Number of multiprocessors."""
        return int(torch.cuda.get_device_properties(device).multi_processor_count)

    def shared_memory(self, device: torch.device) -> int:
        """Bytes of shared memory that one block can have."""
        return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


@cache
def _cuda_reason() -> str:
    if not torch.cuda.is_available():
        return "PyTorch sees no NVIDIA GPU"
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        return "the package cuda-bindings is not installed (pip install cuda-bindings)"
    if torch.cuda.get_device_capability() < OLDEST:
        return f"the GPU is older than compute capability {OLDEST[0]}.{OLDEST[1]}"
    return ""


def _check(error: Any) -> None:
    if int(error) != 0:
        raise UnsupportedError(f"the kernel for small systems could not be launched: {error!r}")


def _compile(source: str, capability: tuple[int, int]) -> bytes:
    """Machine code of a source, from the cache folder if it was compiled before."""
    from cuda.bindings import nvrtc  # pyright: ignore[reportMissingImports]

    from attractor.assets import cache_folder

    version = nvrtc.nvrtcVersion()[1:]
    name = hashlib.sha256(repr((source, capability, version)).encode()).hexdigest()[:32]
    path = cache_folder() / "kernels" / f"{name}.cubin"
    if path.is_file():
        return path.read_bytes()
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"device_loop.cu", 0, None, None)
    options = [
        b"--gpu-architecture=sm_%d%d" % capability,
        b"--std=c++17",
        b"--fmad=true",
        b"-default-device",
        b"-ftz=true",
        b"-prec-div=false",
        b"-prec-sqrt=false",
    ]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(error) != 0:
        size = nvrtc.nvrtcGetProgramLogSize(program)[1]
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise UnsupportedError(
            f"the kernel for small systems could not be compiled: {log.decode(errors='replace')[:2000]}"
        )
    code = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(program)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.write_atomic(path) as temporary:
            temporary.write_bytes(code)
    except OSError:
        pass  # the cache only saves time
    return code


@lru_cache(maxsize=256)
def _load(code: bytes, device: int, shared: int) -> Any:
    from cuda.bindings import driver  # pyright: ignore[reportMissingImports]

    torch.cuda.current_stream(device).synchronize()  # the context exists
    error, module = driver.cuModuleLoadData(code)
    _check(error)
    error, function = driver.cuModuleGetFunction(module, b"integrate")
    _check(error)
    if shared > 48 << 10:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(driver.cuFuncSetAttribute(function, attribute, shared)[0])
    return function


backend: Any = Cuda()


def device_loop_reason() -> str:
    """Return why the device loop does not work here; empty if it does."""
    return str(backend.reason)


@dataclass(frozen=True)
class Parameters:
    """A law as the kernel takes it: arrays on the device, and the macros that they need."""

    arrays: dict[str, Tensor]
    strides: dict[str, int]
    macros: tuple[tuple[str, Any], ...]
    bound: float  # of all scores, in units of log 2; infinite if there is none


def is_supported(plan: Plan, y: Tensor, positions: Tensor | None = None) -> bool:
    """Whether the device loop can run a plan on points y."""
    n, dim = y.shape[-2:]
    law = plan.law
    return (
        y.device.type == backend.device_type
        and not backend.reason
        and y.dtype in CALM
        and plan.adaptive
        and not plan.differentiable
        and plan.stepper.coefficients is not None
        and not plan.events
        and n <= (MAX_GRID_TOKENS if len(y) == 1 and backend.grid(y.device, y.dtype)[0] else MAX_TOKENS)
        and dim <= MAX_DIM
        and not torch.compiler.is_compiling()
        and "native_name" in vars(type(plan.space))
        and plan.space.native_name in SPACES
        and SMALLEST < plan.space.size < LARGEST
        and all(type(rule) in RULES for rule in plan.rules)
        and len({type(rule) for rule in plan.rules}) == len(plan.rules)
        and type(law) is Attention
        and law.kernel.mode is not None
        and all(
            getattr(law, name) is None
            for name in ("output", "query_bias", "key_bias", "value_bias", "output_bias", "positions")
        )
        and isinstance(law.scale, float)
        and law.query.shape[-2] <= 2 * MAX_DIM
        and positions is None
        and (law.mask is None or set(law.mask.hide(Tokens.unchecked(y[:1], None, None))) <= {"causal", "window"})
        and _find_layout(y, len(y), n, law.query.shape[-2], plan.stepper).shared <= backend.shared_memory(y.device)
    )


@dataclass(frozen=True)
class Layout:
    """How a launch divides threads and shared memory."""

    split: int  # threads of a token
    threads: int  # of a block
    tile: int  # keys that are in shared memory at a time, if all blocks integrate one system; else 0
    shared: int  # bytes of shared memory of a block
    shared_slopes: bool
    rows: int  # numbers of a token in the two copies of keys and points, at most


def _find_layout(y: Tensor, members: int, n: int, head_dim: int, stepper: Any) -> Layout:
    """The layout for points y of a run that began with ``members`` systems of n tokens.

    Sums, and so the last bits, depend on it: it must not depend on when the kernel returns.
    """
    device, dim, size = y.device, y.shape[-1], y.element_size()
    unit = 16 // size
    rows = sum(-(-length // unit) * unit for length in (max(dim, head_dim) + 1, dim))
    blocks, threads = backend.grid(device, y.dtype)
    if members == 1 and n > GRID_TOKENS and blocks:
        split = 1
        while split < 32 and 2 * split * n <= blocks * threads:
            split *= 2
        tile = max(32, min(1024, TILE_BYTES // (rows * size)) // 32 * 32)
        shared = tile * rows * size + 128 * size
    else:
        split, tile = 1, 0
        enough = WARPS * backend.processors(device) * 32
        while split < 8 and 2 * split * n <= 512 and (2 * split * n <= 32 or members * n * split < enough):
            split *= 2
        threads = -(-y.shape[1] * split // 32) * 32
        shared = (2 * y.shape[1] * rows + 128) * size + _board_bytes(y)
    slopes = threads * dim * _count_slopes(type(stepper))[1] * size
    fits = slopes <= min(SLOPE_BYTES, backend.shared_memory(device) - shared)
    return Layout(split, threads, tile, shared + slopes * fits, fits, rows)


def _board_bytes(y: Tensor) -> int:
    """Bytes of the arrays of a merge, as laid out in device_loop.cu."""
    _, width, dim = y.shape
    return width * (2 * dim + 3) * y.element_size() + 8 * (width + 2)


def _parameters(law: Attention, plan: Plan, y: Tensor) -> Parameters:
    """The parameters of a law on the device; those of the last laws are kept."""
    space = plan.space
    versions = tuple(tensor_version(part) for part in (law.query, law.key, law.value))
    key = (versions, y.dtype, y.device, space.native_name, getattr(space, "radius", 1.0))
    known = _known.get(law)
    if known is None or known[0] != key or min(versions) < 0:
        _known[law] = known = (key, _make_parameters(law, plan, y))
    return known[1]


_known: WeakKeyDictionary[Attention, tuple[Any, Parameters]] = WeakKeyDictionary()


def _make_parameters(law: Attention, plan: Plan, y: Tensor) -> Parameters:
    kernel, space = law.kernel, plan.space
    wide = {"device": y.device, "dtype": torch.float64}
    query, key, value = (
        part.detach().to(**wide).reshape((1,) * (4 - part.ndim) + tuple(part.shape))
        for part in (law.query, law.key, law.value)
    )
    assert kernel.mode is not None
    mode = MODES.index(kernel.mode)
    features = not kernel.bilinear
    log2e = 1.0 if kernel.mode == "linear" else float(np.log2(np.e))
    scale, heads = law.scale * log2e, query.shape[1]
    interaction = scale * (key.mT @ query)  # <Q x, K y> = <y, K'Q x>
    bound = np.inf
    shifts = torch.zeros(query.shape[:2], **wide)
    if space.native_name == "sphere" and kernel.bilinear:
        shifts = torch.linalg.matrix_norm(interaction) * float(space.radius) ** 2  # type: ignore[attr-defined]
        bound = float(shifts.max())
    scalars = law._value_scalars
    maps = value if scalars is None else value[..., 0, 0]
    arrays = {"shifts": shifts, "value": maps}
    arrays |= {"query": query, "key": key} if features else {"interaction": interaction}
    arrays = {name: part.to(y.dtype).contiguous() for name, part in arrays.items()}
    one = query.shape[0] == 1
    strides = {
        "interaction_stride": 0 if one else heads * (query.shape[2] if features else law.dim) * law.dim,
        "value_stride": 0 if one else maps[0].numel(),
    }
    macros = {
        "MODE": mode,
        "E": query.shape[2],
        "FEATURES": int(features),
        "SQUARED": int(features),
        "MATRICES": int(scalars is None),
    }
    return Parameters(arrays, strides, tuple(macros.items()), bound)


@lru_cache(maxsize=64)
def _tableau(stepper: type[RungeKutta]) -> str:
    """The macros of a method."""
    coefficients = stepper().coefficients
    assert coefficients is not None
    inner, end, errors, extra, parts = coefficients
    rows = [[], *inner, end, *extra]
    width = len(rows)

    def table(lines: list[list[float]], columns: int) -> str:
        padded = ([*line, *([0.0] * (columns - len(line)))] for line in lines)
        return "{" + ", ".join("{" + ", ".join(map(repr, line)) + "}" for line in padded) + "}"

    macros = {
        "STAGES": len(end),
        "ERRORS": len(errors),
        "EXTRA": len(extra),
        "PARTS": 3 + len(parts),
        "ORDER": float(stepper.error_order),
        "A": table(rows, width),
        "ERROR": table(errors, len(end) + 1),
        "PART": table(parts, width),
    }
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


@lru_cache(maxsize=256)
def _function(macros: tuple[tuple[str, Any], ...], stepper: type[RungeKutta], device: torch.device, shared: int) -> Any:
    defined = "".join(f"#define {name} {value}\n" for name, value in macros)
    source = Path(__file__).with_suffix(".cu").read_text()
    return backend.compile(defined + _tableau(stepper) + source, device, shared)


class DeviceLoop:
    """Passes the state of an integration to the kernel and back; the counterpart of ``NativeLoop``."""

    name = "device"

    def __init__(self, run: Integration) -> None:
        self.run = run

    def advance(self, seconds: float) -> LoopResult:
        """Take steps of every row for about so many seconds; one attempt each if that is 0."""
        run, plan, merger, termination = self.run, self.run.plan, self.run.merger, self.run.termination
        seconds = min(seconds, plan.max_seconds - (time.perf_counter() - termination.budget_start[0]))
        members, width, dim = run.y.shape
        device, law = run.y.device, run.field.law
        assert isinstance(law, Attention)
        assert isinstance(plan.stepper, RungeKutta)
        fresh = not run.h.any()
        parameters = _parameters(law, plan, run.y)
        y = run.y.clone(memory_format=torch.contiguous_format)
        f = torch.empty_like(y) if fresh else run.f.clone(memory_format=torch.contiguous_format)
        merges = None if merger is None else DeviceMerges(merger, y)
        state = self._state(fresh, merges)
        totals = torch.zeros(8, dtype=torch.float64, device=device)
        rules, order = bool(plan.rules), [RULE_NUMBERS[rule.name] for rule in plan.rules]
        anchor = termination.anchor.clone(memory_format=torch.contiguous_format) if rules else y
        sized = [name for name in order if name != RULE_NUMBERS["steady"]]
        parts = _count_slopes(type(plan.stepper))[0]
        inside = y.new_empty((members, 1 + parts, width, dim)) if sized else None
        masses = merges.masses if merges is not None else run.field.masses
        masses = None if masses is None else masses.to(y).reshape(-1, masses.shape[-1]).contiguous()
        if merges is not None:
            merges.masses = masses
        hide = {} if law.mask is None else law.mask.hide(Tokens.unchecked(y[:1], None, None))
        shifted = not parameters.bound < CALM[y.dtype]
        whole = run.recorder.points.shape
        layout = _find_layout(y, whole[1], whole[2], law.query.shape[-2], plan.stepper)
        macros = {
            "REAL": "double" if y.dtype == torch.float64 else "float",
            "WIDE": int(y.dtype == torch.float64),
            "D": dim,
            **dict(parameters.macros),
            "CAUSAL": int(hide.get("causal", False)),
            "WINDOWED": int(hide.get("window") is not None),
            "SKIP_SELF": int(run.field.skip_self and law._value_scalars is not None),
            "WEIGHTED": int(masses is not None),
            "SPACE": SPACES.index(str(plan.space.native_name)),
            "SHIFTED": int(shifted),
            "MERGING": int(merges is not None),
            "RULES": int(rules),
            "SPLIT": layout.split,
            "THREADS": layout.threads,
            "BLOCKS": max(1, RESIDENT[y.dtype] // layout.threads),
            "SHARED_SLOPES": int(layout.shared_slopes),
            "GRID": int(layout.tile > 0),
            "TILE": layout.tile,
        }
        function = _function(tuple(macros.items()), type(plan.stepper), device, layout.shared)
        blocks = -(-width * layout.split // layout.threads) if layout.tile else members
        workspace = partials = None
        if layout.tile:
            workspace = y.new_empty(2 * width * layout.rows + _board_bytes(y) // y.element_size() + 4)
            partials = y.new_empty(8 * blocks)
        recorder = run.recorder
        save_times = torch.from_numpy(np.ascontiguousarray(recorder.times)).to(device)
        surface = None if plan.space.dim is None else plan.space.surface(plan.space.dim)
        matrix = None if surface is None else surface.to(y).contiguous()
        tensors = {
            "y": y, "f": f, "anchor": anchor, "inside": inside, "saved": recorder.points, "masses": masses, "matrix": matrix,
            "state": state, "totals": totals, "arrived": totals[-1:], "workspace": workspace, "partials": partials,
            "save_times": save_times, **parameters.arrays,
            **({} if merges is None else merges.arrays()),
        }  # fmt: skip
        kernel = law.kernel
        log2e = 1.0 if kernel.mode == "linear" else float(np.log2(np.e))
        tolerances = {rule.name: float(rule.tolerance) for rule in plan.rules}  # type: ignore[attr-defined]
        numbers = {
            "members": members, "columns": recorder.points.shape[1], "saves": len(recorder.times), "attempts": self._attempts(seconds),
            **parameters.strides, "mass_stride": 0 if masses is None or len(masses) == 1 else width,
            "width": width, "n": run.recorder.points.shape[2], "heads": law.heads, "window": min(hide.get("window") or 0, 2 * width),
            "fresh": int(fresh), "named_times": int(recorder.explicit),
            "start": plan.start, "end": plan.until, "rtol": plan.rtol, "atol": plan.atol, "first_step": plan.step or 0.0,
            "safety": SAFETY, "shrink": SHRINK, "grow": GROW, "bound": plan.bound, "scale": law.scale * log2e,
            "bias": kernel.score_bias * log2e, "radius": float(getattr(plan.space, "radius", 1.0)),
            "consensus": tolerances.get("consensus", -1.0), "collapse": tolerances.get("collapsed", -1.0),
            "steady": tolerances.get("steady", -1.0), "noise": constants.NOISE, "patience": constants.PATIENCE,
            "enough_rest": constants.REST, "calm_growth": constants.CALM_GROWTH, "tiny": constants.TINY,
            "least_time": constants.LEAST_TIME, "least_move": constants.LEAST_MOVE, "unresolved": constants.UNRESOLVED_SPACINGS,
            "given_up": constants.FAILED_SPACINGS, "stability": 0.0, "stiff_steps": STIFF_STEPS, "calm_steps": CALM_STEPS,
            "first_wait": INTERVAL, "merge": 0.0 if merger is None else merger.tolerance,
        }  # fmt: skip
        if plan.implicit is not None:
            numbers["stability"] = NEAR * plan.stepper.stability
        argument = Run(**numbers)
        argument.order[:] = [*order, -1, -1, -1][:3]
        for name, tensor in tensors.items():
            setattr(argument, name, None if tensor is None else tensor.data_ptr())
        backend.launch(function, blocks, layout.threads, layout.shared, argument, device, layout.tile > 0)
        evaluations, accepted, rejected, others, merged = (round(total) for total in totals.tolist()[:5])

        if merges is not None:
            merges.fetch(state, merged)
        if not others:  # everyone arrived: nothing else of the state is needed
            if merger is not None and merges is not None:
                merger.apply_native(merges, np.zeros(members, dtype=np.int64), finished=True)
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


@lru_cache(maxsize=16)
def _count_slopes(stepper: type[RungeKutta]) -> tuple[int, int]:
    """Number of coefficients of the interpolant, and of slopes."""
    coefficients = stepper().coefficients
    assert coefficients is not None
    inner, _, _, extra, parts = coefficients
    return 3 + len(parts), len(inner) + 2 + len(extra)


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
