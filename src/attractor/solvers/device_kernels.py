"""The CUDA kernels of runs (``device_loop.cu``): compilation at run time, launches, and laws as their arguments."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from attractor import files
from attractor.engines import MODES
from attractor.errors import UnsupportedError
from attractor.laws import Attention, Positions
from attractor.solvers.native_loop import REASONS, RULES
from attractor.solvers.steppers.stepper import RungeKutta, Stepper
from attractor.states import Tokens, read_contents

if TYPE_CHECKING:
    from attractor.solvers.integration import Plan

SOURCES = tuple(Path(__file__).with_name(name) for name in ("device_loop.cu", "device_gradient.cu"))
ENTRY = """
#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) integrate(const __grid_constant__ Run run) { integrate_member(run); }
#endif
"""
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
MAX_WIDE_TOKENS = 2048  # of more than WIDE dimensions; of more tokens, engines compute products on tensor cores
WIDE = 8
OTHER_ENGINE = (
    "an engine was named, several processes share the run, or gradients are needed that the kernels do not compute"
)
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
        + [(name, ctypes.c_int64) for name in ("interaction_stride", "value_stride", "mass_stride", "turn_stride")]
        + [(name, ctypes.c_void_p) for name in ("y", "f", "anchor", "inside", "saved", "masses", "near_anchor")]
        + [(name, ctypes.c_void_p) for name in ("interaction", "query", "key", "value", "shifts", "matrix")]
        + [(name, ctypes.c_void_p) for name in ("state", "totals", "log", "row_of", "node_of")]
        + [(name, ctypes.c_void_p) for name in ("workspace", "partials", "arrived", "save_times", "turns")]
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
        + [(name, ctypes.c_double) for name in ("calm_steps", "first_wait", "merge", "ties")]
        + [(name, ctypes.c_void_p) for name in ("amplitudes", "common", "inverse_root", "save_rows", "draws")]
        + [(name, ctypes.c_int64) for name in ("amplitude_steps", "amplitude_members", "amplitude_tokens")]
        + [(name, ctypes.c_int64) for name in ("common_steps", "first")]
        + [("seed", ctypes.c_uint32 * 2), ("noise_step", ctypes.c_double)]
        + [(name, ctypes.c_void_p) for name in ("record", "record_steps", "kept")]
        + [(name, ctypes.c_int64) for name in ("record_room", "record_slots")]
        + [(name, ctypes.c_void_p) for name in ("again", "read_first", "read_step", "read_place", "read_grads")]
        + [(name, ctypes.c_void_p) for name in ("grad_start", "grad_masses", "grad_law")]
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
        """Number of blocks that can wait for each other, and of their threads."""
        return self.processors(device), RESIDENT[dtype]

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


def obstacle(plan: Plan, y: Tensor, positions: Tensor | None = None, differentiable: bool = False) -> str:
    """Why the device loop cannot run a plan on points y; empty if it can. ``differentiable``: it records the steps for gradients."""
    if plan.differentiable and not differentiable:
        return "gradients are needed that it does not compute"
    if y.device.type != backend.device_type:
        return f"the tokens are on the {y.device.type}"
    if not (plan.adaptive and plan.stepper.coefficients is not None):
        return f"the method {plan.stepper.name} does not adapt explicit steps"
    if plan.events:
        return "events are Python functions"
    if not all(type(rule) in RULES for rule in plan.rules) or len({type(rule) for rule in plan.rules}) < len(
        plan.rules
    ):
        return "a rule is a Python class"
    return system_obstacle(plan, y, positions)


def system_obstacle(plan: Plan, y: Tensor, positions: Tensor | None = None) -> str:
    """Why the kernels cannot evaluate the field of a plan at points y; empty if they can."""
    n, dim = y.shape[-2:]
    law, space = plan.law, plan.space
    if backend.reason:
        return str(backend.reason)
    if y.dtype not in CALM:
        return f"it takes float32 and float64, and the tokens are {y.dtype}"
    if torch.compiler.is_compiling():
        return "it does not run inside torch.compile"
    largest = MAX_GRID_TOKENS if dim <= WIDE else MAX_WIDE_TOKENS
    if n > (largest if len(y) == 1 and backend.grid(y.device, y.dtype)[0] else MAX_TOKENS):
        return f"there are {n} tokens, and it takes up to {MAX_TOKENS} of each of several systems and {largest} of one"
    if dim > MAX_DIM:
        return f"tokens have {dim} dimensions, and it takes up to {MAX_DIM}"
    if "native_name" not in vars(type(space)) or space.native_name not in SPACES:
        return f"it does not know the {space.name}"
    if not SMALLEST < space.size < LARGEST:
        return f"the size {space.size:g} of the {space.name} leaves the range of float32"
    if found := _law_obstacle(law, y, positions):
        return found
    assert isinstance(law, Attention)
    shared, most = find_layout(y, len(y), n, law.query.shape[-2], plan.stepper).shared, backend.shared_memory(y.device)
    if shared > most:
        return f"a system takes {shared} bytes of shared memory, and a multiprocessor has {most}"
    return ""


def _law_obstacle(law: Any, y: Tensor, positions: Tensor | None) -> str:
    if type(law) is not Attention:
        return f"it does not know {type(law).__name__}"
    if law.kernel.device_mode is None:
        return f"it does not know the kernel {law.kernel.name}"
    absent = ("output", "query_bias", "key_bias", "value_bias", "output_bias")
    if present := [name for name in absent if getattr(law, name) is not None]:
        return f"it does not know {present[0]}"
    if law.positions is not None and type(law.positions).turning_angles is Positions.turning_angles:
        return f"it does not know {law.positions.name} positions"
    if law.query.shape[-2] > 2 * MAX_DIM:
        return f"heads have {law.query.shape[-2]} dimensions, and it takes up to {2 * MAX_DIM}"
    if positions is not None and law.positions is None:
        return "tokens have positions"
    hidden = set() if law.mask is None else set(law.mask.hide(Tokens.unchecked(y, None, positions)))
    if not hidden <= {"causal", "window"}:
        return "the mask is a table"
    if not law.kernel.normalised or law.kernel.smooth:
        return ""
    if law.mask is not None and getattr(law.kernel, "exclude_self", False):
        return "a token might see no key"
    return ""


@dataclass(frozen=True)
class Layout:
    """How a launch divides threads and shared memory."""

    split: int  # threads of a token
    threads: int  # of a block
    tile: int  # keys that are in shared memory at a time, if all blocks integrate one system; else 0
    shared: int  # bytes of shared memory of a block
    shared_slopes: bool
    rows: int  # numbers of a token in the two copies of keys and points, at most

    def extended(self, bytes_more: int) -> Layout:
        """The layout with more shared memory after that of the loop."""
        return replace(self, shared=-(-self.shared // 16) * 16 + bytes_more)

    def workspace(self, y: Tensor) -> int:
        """Numbers of what a grid has in global memory instead of shared memory."""
        return 2 * y.shape[1] * self.rows + _board_bytes(y) // y.element_size() + 4


def find_layout(y: Tensor, members: int, n: int, head_dim: int, stepper: Any) -> Layout:
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
    number = 0 if stepper.coefficients is None else count_slopes(type(stepper))[1]
    slopes = threads * dim * number * size
    fits = slopes <= min(SLOPE_BYTES, backend.shared_memory(device) - shared)
    return Layout(split, threads, tile, shared + slopes * fits, fits, rows)


def _board_bytes(y: Tensor) -> int:
    """Bytes of the arrays of a merge, as laid out in device_loop.cu."""
    _, width, dim = y.shape
    return width * (2 * dim + 3) * y.element_size() + 8 * (width + 2)


def find_parameters(law: Attention, plan: Plan, y: Tensor) -> Parameters:
    """The parameters of a law on the device; those of the last laws are kept, unless their gradients are needed."""
    space, parts = plan.space, (law.query, law.key, law.value)
    if any(part.requires_grad for part in parts):
        return _make_parameters(law, plan, y)
    contents = read_contents(parts)
    key = (contents, scale_of(law), y.dtype, y.device, space.native_name, getattr(space, "radius", 1.0))
    known = _known.get(law)
    if known is None or known[0] != key or contents is None:
        _known[law] = known = (key, _make_parameters(law, plan, y))
    return known[1]


_known: WeakKeyDictionary[Attention, tuple[Any, Parameters]] = WeakKeyDictionary()
DEVICE_MODES = (*MODES, "hardmax")


def _make_parameters(law: Attention, plan: Plan, y: Tensor) -> Parameters:
    kernel, space = law.kernel, plan.space
    wide = {"device": y.device, "dtype": torch.float64}
    query, key, value = (
        part.detach().to(**wide).reshape((1,) * (4 - part.ndim) + tuple(part.shape))
        for part in (law.query, law.key, law.value)
    )
    assert kernel.device_mode is not None
    mode = DEVICE_MODES.index(kernel.device_mode)
    # equal tokens of hardmax have equal queries and keys; positions turn those
    features = not kernel.bilinear or kernel.exact or law.positions is not None
    heads = query.shape[1]
    interaction = scale_of(law) * score_unit(law) * (key.mT @ query)  # <Q x, K y> = <y, K'Q x>
    bound = np.inf
    shifts = torch.zeros(query.shape[:2], **wide)
    if space.native_name == "sphere" and not features:
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
        "SQUARED": int(not kernel.bilinear),
        "MATRICES": int(scalars is None),
    }
    return Parameters(arrays, strides, tuple(macros.items()), bound)


def scale_of(law: Attention) -> float:
    """The scale of a law as a number."""
    return float(law.scale.detach()) if isinstance(law.scale, Tensor) else float(law.scale)


def score_unit(law: Attention) -> float:
    """Factor of scores in the kernels: log2(e) where they are exponents of 2."""
    return 1.0 if law.kernel.device_mode in ("linear", "hardmax") else float(np.log2(np.e))


@dataclass(frozen=True)
class System:
    """The field of a run as the kernels take it: macros, tensors and numbers of the argument, and the layout of a launch."""

    macros: dict[str, Any]
    tensors: dict[str, Tensor | None]
    numbers: dict[str, Any]
    layout: Layout


def describe_system(
    plan: Plan,
    law: Attention,
    y: Tensor,
    masses: Tensor | None,
    positions: Tensor | None,
    skip_self: bool,
    whole: Any,
    parameters: Parameters,
) -> System:
    """The field of a law at points y (members, width, d).

    ``whole`` is the number of members and of tokens at the start; ``parameters`` are those of the law.
    """
    _, width, dim = y.shape
    kernel, space = law.kernel, plan.space
    hide = {} if law.mask is None else law.mask.hide(Tokens.unchecked(y, None, positions))
    turns = None
    if law.positions is not None:
        angles = law.positions.turning_angles(law.query.shape[-2], Tokens.unchecked(y, None, positions))
        assert angles is not None
        turns = torch.stack((angles.cos(), angles.sin()), -1).reshape(-1, *angles.shape[-2:], 2).to(y).contiguous()
    layout = find_layout(y, whole[0], whole[1], law.query.shape[-2], plan.stepper)
    surface = None if space.dim is None else space.surface(space.dim)
    macros = {
        **dict.fromkeys(("NOISE", "MERGING", "RULES", "RECORD", "REVERSE"), 0),
        "REAL": "double" if y.dtype == torch.float64 else "float",
        "WIDE": int(y.dtype == torch.float64),
        "D": dim,
        **dict(parameters.macros),
        "CAUSAL": int(hide.get("causal", False)),
        "WINDOWED": int(hide.get("window") is not None),
        "SKIP_SELF": int(skip_self and law._value_scalars is not None),
        "HIDE_SELF": int(getattr(kernel, "exclude_self", False)),
        "TURNED": 0 if turns is None else turns.shape[-2],
        "WEIGHTED": int(masses is not None),
        "SPACE": SPACES.index(str(space.native_name)),
        "SHIFTED": int(not parameters.bound < CALM[y.dtype]),
        "SPLIT": layout.split,
        "THREADS": layout.threads,
        "BLOCKS": max(1, RESIDENT[y.dtype] // layout.threads),
        "SHARED_SLOPES": int(layout.shared_slopes),
        "GRID": int(layout.tile > 0),
        "TILE": layout.tile,
    }
    tensors = {"matrix": None if surface is None else surface.to(y).contiguous(), "turns": turns, **parameters.arrays}
    numbers = {
        **parameters.strides,
        "mass_stride": 0 if masses is None or len(masses) == 1 else width,
        "turn_stride": 0 if turns is None or len(turns) == 1 else turns[0].numel(),
        "width": width, "heads": law.heads, "window": min(hide.get("window") or 0, 2 * width),
        "scale": scale_of(law) * score_unit(law), "bias": kernel.score_bias * score_unit(law),
        "radius": float(getattr(space, "radius", 1.0)), "ties": float(getattr(kernel, "tie_tolerance", 0.0)),
    }  # fmt: skip
    return System(macros, tensors, numbers, layout)


@lru_cache(maxsize=64)
def _tableau(stepper: type[Stepper]) -> str:
    """The macros of a method."""
    coefficients = stepper().coefficients
    if coefficients is None:
        return ""
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


def find_function(macros: dict[str, Any], stepper: type[Stepper], device: torch.device, shared: int) -> Any:
    """The compiled function of some macros."""
    return _function(tuple(macros.items()), stepper, device, shared)


@lru_cache(maxsize=256)
def _function(macros: tuple[tuple[str, Any], ...], stepper: type[Stepper], device: torch.device, shared: int) -> Any:
    defined = "".join(f"#define {name} {value}\n" for name, value in macros)
    loop, gradient = (source.read_text() for source in SOURCES)
    reverse = gradient if dict(macros)["REVERSE"] else ""
    return backend.compile(defined + _tableau(stepper) + loop + reverse + ENTRY, device, shared)


@lru_cache(maxsize=16)
def count_slopes(stepper: type[RungeKutta]) -> tuple[int, int]:
    """Number of coefficients of the interpolant, and of slopes."""
    coefficients = stepper().coefficients
    assert coefficients is not None
    inner, _, _, extra, parts = coefficients
    return 3 + len(parts), len(inner) + 2 + len(extra)
