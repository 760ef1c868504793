"""Machine facts and measured hardware limits."""

from __future__ import annotations

import datetime
import os
import platform
import time
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import torch

from attractor.cli.environment import processor_name
from benchmarks.racing import Settings

PACKAGES = (
    "attractor",
    "torch",
    "numpy",
    "scipy",
    "triton",
    "torchdiffeq",
    "jax",
    "jaxlib",
    "diffrax",
    "equinox",
    "pykeops",
)


def describe_machine() -> dict[str, Any]:
    """Processor, cores, instruction set, memory, GPU, and load."""
    from attractor.engines import fused as kernels

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "instruction_set": None if kernels.reason else kernels.instruction_set(),
        "memory_gib": _memory(),
        "gpu": gpu,
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def versions() -> dict[str, str | None]:
    """Installed versions, peers among them; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


DTYPES = ("float32", "float64")
ROUNDS = 5
CHAIN = 64  # exponentials one after the other for each number that is read
TRIES = 60  # of a few milliseconds: on a shared machine some of them are undisturbed


def limit(ceilings: dict[str, Any] | None, dtype: str | None, dim: int | None) -> float | None:
    """Pairs a second that the hardware allows; None where it is not known."""
    if not ceilings or dtype is None or dim is None or dtype not in ceilings["rates"]:
        return None
    rates = ceilings["rates"][dtype]
    return 1.0 / (1.0 / rates["exponentials"] + 2.0 * dim / rates["multiply_adds"])


def measure_ceilings(groups: Iterable[str], settings: Settings, of_gpu: Iterable[str]) -> dict[str, Any]:
    """Peak rates of the CPU and of the GPU, where a group of rows needs them."""
    on_gpu = set(groups) & set(of_gpu)
    return {
        "cpu": cpu_rates(settings.threads, settings.quick) if set(groups) - on_gpu else None,
        "cuda": gpu_rates() if on_gpu else None,
    }


def cpu_rates(threads: int, quick: bool = False) -> dict[str, Any]:
    """Rates of the CPU with one thread and with all that the benchmark uses."""
    from attractor.engines import fused as kernels

    compiled = not kernels.reason and hasattr(kernels.module(), "ceiling")
    rate = _compiled if compiled else _by_torch
    counts = sorted({1, threads})
    found = {count: {dtype: _both(rate, dtype, count, quick) for dtype in DTYPES} for count in counts}
    source = f"kernels for {kernels.instruction_set()}" if compiled else "torch.exp and torch.matmul"
    return {"source": source, "threads": threads, "rates": found[threads], "one_thread": found[1]}


def _both(rate: Any, dtype: str, threads: int, quick: bool) -> dict[str, float]:
    seconds = 0.0005 if quick else 0.004
    return {
        what: max(rate(what, dtype, threads, seconds) for _ in range(1 if quick else TRIES))
        for what in ("exponentials", "multiply_adds")
    }


def _compiled(what: str, dtype: str, threads: int, seconds: float) -> float:
    """By loops in registers and the first cache, in the instruction set of the fused engine."""
    from attractor.engines import fused as kernels

    exponentials, repeats = what == "exponentials", 100
    while True:
        took, done = kernels.module().ceiling(
            kernels.instruction_set(), dtype == "float64", exponentials, threads, repeats
        )
        if took >= seconds:
            return done / took
        repeats *= max(2, min(100, int(1.2 * seconds / max(took, 1e-9))))


def _by_torch(what: str, dtype: str, threads: int, seconds: float) -> float:
    """Without the kernels: what torch reaches, which for exponentials is well below the limit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        if what == "exponentials":
            x = torch.rand(1 << 14, dtype=getattr(torch, dtype))
            return _repeated(lambda: torch.exp2(x, out=x.new_empty(x.shape)), x.numel(), seconds)
        x = torch.rand(512, 512, dtype=getattr(torch, dtype))
        return _repeated(lambda: x @ x, 512**3, seconds)
    finally:
        torch.set_num_threads(before)


def _repeated(call: Any, operations: int, seconds: float) -> float:
    call()
    done, start = 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        call()
        done += operations
    return max(done, operations) / max(took, 1e-9)


def gpu_rates() -> dict[str, Any] | None:
    """Rates of the GPU: products of matrices, without tensor-core shortcuts, and a long chain of exponentials in one kernel."""
    if not torch.cuda.is_available():
        return None
    from benchmarks.gpu import time_by_events

    def best(call: Any, operations: float) -> float:
        call()
        return operations / min(time_by_events(call)[0] for _ in range(ROUNDS))

    chain = torch.compile(_chain, dynamic=False)
    rates: dict[str, dict[str, float]] = {}
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        for dtype in DTYPES:
            x = torch.rand(8192, 8192, device="cuda", dtype=getattr(torch, dtype))
            y = torch.rand(1 << 24, device="cuda", dtype=getattr(torch, dtype))
            rates[dtype] = {
                "multiply_adds": best(lambda x=x: x @ x, 8192.0**3),
                "exponentials": best(lambda y=y: chain(y), CHAIN * y.numel()),
            }
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32
    return {"source": "torch.matmul and a compiled chain of torch.exp2", "threads": None, "rates": rates}


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN):
        x = torch.exp2(-x)
    return x
