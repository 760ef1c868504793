"""Free and used memory of the machine and its containers, and checks before large allocations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from attractor.errors import InputError, MemoryShortageError, UnsupportedError

try:
    import resource
except ImportError:  # Windows
    resource = None

MEMINFO = Path("/proc/meminfo")
SELF = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
# files with the limit and the usage of a control group, and the parts of the usage that the kernel can reclaim
UNIFIED = "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
SPLIT = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
Names = tuple[str, str, tuple[str, ...]]
Group = tuple[Path, Names]


def check(needed: float, tokens: int, what: str, *, power: int = 1, device: Any = None, advice: str = "") -> None:
    """Raise ``MemoryShortageError`` if fewer than ``needed`` bytes are free.

    The message gives the number of tokens that would fit, if the memory needed grows as tokens^power.
    """
    free = available(device)
    if free is None or needed <= free:
        return
    fit = int(tokens * (free / needed) ** (1.0 / power))
    digits = max(0, len(str(fit)) - 2)  # two digits, rounded down, since free memory varies
    fit = fit // 10**digits * 10**digits
    room = f"{fit:,} tokens would fit" if fit else "not even one token would fit"
    raise MemoryShortageError(
        f"there is not enough memory for {what}: about {format_size(needed)} are needed and {format_size(free)} are free; {room}{advice}"
    )


def available(device: Any = None) -> int | None:
    """Return the free bytes of a torch device (None: main memory), or None if they are not known.

    For main memory it is the smaller of the machine's free memory and what the limits of a container leave.
    """
    if device is not None and getattr(device, "type", "cpu") == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_machine(), cgroup_memory_left()) if free is not None]
    return min(known, default=None)


def find_device(name: Any = None) -> Any:
    """Return the torch device of this name, the CPU by default; raises if it does not exist here."""
    import torch

    try:
        device = torch.device("cpu" if name is None else name)
    except RuntimeError:
        raise InputError(f"the device {name!r} is not known; give cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"the device {name!r} is not known; give cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UnsupportedError(f"device {name}: no GPU is found here, or this PyTorch is built without CUDA")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UnsupportedError(
            f"device {name}: there {'is' if count == 1 else 'are'} {count} GPU{'s' * (count != 1)} here"
        )
    return device


def _machine() -> int | None:
    try:
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def cgroup_memory_left() -> int | None:
    """Return the bytes below the tightest memory limit of this process's control groups, or None without a limit."""
    left = [found for folder, names in _groups() if (found := _left(folder, names)) is not None]
    return min(left, default=None)


@cache
def _groups() -> tuple[Group, ...]:
    """Return the control groups of this process, and their parents, that account for memory."""
    try:
        lines = SELF.read_text().splitlines()
    except OSError:
        return ()
    found: list[Group] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and "memory" not in controllers.split(","):
            continue
        root, names = (ROOT, UNIFIED) if unified else (ROOT / "memory", SPLIT)
        here = root / path.lstrip("/")
        found += [(folder, names) for folder in (here, *here.parents) if folder.is_relative_to(root)]
    return tuple(group for group in found if (group[0] / group[1][0]).is_file())


def _left(folder: Path, names: Names) -> int | None:
    limit_name, used_name, cached = names
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= 1 << 60:  # version 1 stores "no limit" as a very large number
            return None
        used = int((folder / used_name).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + sum(int(stats.get(name, 0)) for name in cached))
    except (OSError, ValueError):
        return None


def peak(age: float = 0.0) -> int | None:
    """Return the peak main memory of this process in bytes, or None if it is not known.

    A value that is at most ``age`` seconds old is returned again: the system call can take longer than a small run.
    """
    global _last_peak
    if resource is None:
        return None
    now = time.perf_counter()
    if _last_peak is None or now - _last_peak[0] > age:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _last_peak = now, largest if sys.platform == "darwin" else 1024 * largest
    return _last_peak[1]


_last_peak: tuple[float, int] | None = None  # when it was read, and its value


def trim() -> bool:
    """Return freed memory to the system (glibc otherwise keeps it); False if this is not possible."""
    function = _malloc_trim()
    return function is not None and bool(function(0))


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # not glibc
        return None


def format_size(count: float) -> str:
    """Format a number of bytes, such as "1.5 GiB"."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.3g} {units[step]}"
