"""How much memory there is, how much was used, and a refusal up front of what cannot be had."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None

from attractor import control_groups
from attractor.errors import MemoryShortageError

MEMINFO = Path("/proc/meminfo")


def available(device: Any = None) -> int | None:
    """Bytes that can still be had on a device of torch (None: the main memory), or None where nobody says.

    Of the main memory the least of what the machine has and what the limits of a container leave.
    """
    if device is not None and getattr(device, "type", "cpu") == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    known = [free for free in (_machine(), control_groups.memory_left()) if free is not None]
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
