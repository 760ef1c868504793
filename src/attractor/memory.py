"""What the control groups of Linux leave a process: a container's limit of memory, which /proc/meminfo does not know."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from attractor.errors import MemoryShortageError

SELF = Path("/proc/self/cgroup")
ROOT = Path("/sys/fs/cgroup")
# limit, what is used, and of that what is given up when memory is short: pages of files and what the kernel keeps of them
UNIFIED = "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
SPLIT = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
Names = tuple[str, str, tuple[str, ...]]
Group = tuple[Path, Names]


def memory_left() -> int | None:
    """Bytes until the nearest limit of this process's groups, or None where there is none."""
    left = [found for folder, names in _groups() if (found := _left(folder, names)) is not None]
    return min(left, default=None)


@cache
def _groups() -> tuple[Group, ...]:
    """The groups of this process and all above them that count memory."""
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
        if limit == "max" or int(limit) >= 1 << 60:  # version 1 writes no limit as a very large one
            return None
        used = int((folder / used_name).read_text())
        stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, int(limit) - used + sum(int(stats.get(name, 0)) for name in cached))
    except (OSError, ValueError):
        return None


try:
    import resource
except ImportError:  # not on Windows
    resource = None


MEMINFO = Path("/proc/meminfo")


def available(device: Any = None) -> int | None:
    """Bytes that can still be had on a device of torch (None: the main memory), or None where nobody says.

    Of the main memory the least of what the machine has and what the limits of a container leave.
    """
    if device is not None and getattr(device, "type", "cpu") == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_machine(), memory_left()) if free is not None]
    return min(known, default=None)


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


def peak() -> int | None:
    """Most bytes of main memory that this process has held so far, or None where nobody says."""
    if resource is None:
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest


def hand_back() -> bool:
    """Give memory that was freed back to the system, which the C library of Linux else keeps; False where there is no way to ask."""
    trim = _trim()
    return trim is not None and bool(trim(0))


@cache
def _trim() -> Callable[[int], int] | None:
    import ctypes

    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, TypeError, AttributeError):  # another system, or another C library
        return None


def check(needed: float, tokens: int, what: str, *, power: int = 1, device: Any = None, advice: str = "") -> None:
    """Refuse what needs more bytes than there are, and say how many tokens would fit if the need grows as tokens^power."""
    free = available(device)
    if free is None or needed <= free:
        return
    fit = int(tokens * (free / needed) ** (1.0 / power))
    digits = max(0, len(str(fit)) - 2)  # two digits, rounded down: what is free changes
    fit = fit // 10**digits * 10**digits
    room = f"{fit:,} tokens would fit" if fit else "not even one token would fit"
    raise MemoryShortageError(
        f"there is not enough memory for {what}: about {size(needed)} are needed and {size(free)} are free; {room}{advice}"
    )


def size(count: float) -> str:
    """A number of bytes in words."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.3g} {units[step]}"
