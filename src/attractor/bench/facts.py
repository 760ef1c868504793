"""What produced the figures: machine, versions, commit and time."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

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


def machine() -> dict[str, Any]:
    """Processor, cores, instruction set, memory, GPU, and how busy others keep it."""
    import torch

    from attractor.engines.fused import kernels

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "instruction_set": None if kernels.reason else kernels.instruction_set(),
        "memory_gib": _memory(),
        "gpu": gpu,
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def processor() -> str:
    """The name the processor gives itself."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


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


def commit() -> str | None:
    """The commit of the sources, marked if they were changed; None outside a repository of ours."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        ask = {"cwd": root, "capture_output": True, "text": True, "timeout": 10, "check": True}
        name = subprocess.run(["git", "rev-parse", "HEAD"], **ask).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **ask).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name} with changes" if changed else name


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
