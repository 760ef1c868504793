"""Installed packages, the machine, and the state of the sources."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from attractor._version import __version__

PACKAGES = ("torch", "numpy", "scipy")
DEVELOPMENT_EXTRAS = {"all", "dev", "docs", "peers"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions(*more: str) -> dict[str, str | None]:
    """Return the versions of Python and of the packages that a result depends on."""
    own = {"python": ".".join(map(str, sys.version_info[:3])), "attractor": __version__}
    return own | {name: version(name) for name in (*PACKAGES, *more)}


def required_packages() -> dict[str, str | None]:
    """Return the versions of Python, attractor and its mandatory requirements."""
    names = ["attractor", *(name for name, extra in _requirements() if extra is None)]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def extras() -> dict[str, dict[str, Any]]:
    """Return for every extra its packages with their versions (None: not installed) and the command that installs it."""
    found: dict[str, dict[str, Any]] = {}
    for name, extra in _requirements():
        if extra is None or extra in DEVELOPMENT_EXTRAS:
            continue
        entry = found.setdefault(extra, {"packages": {}, "install": f"pip install 'attractor[{extra}]'"})
        entry["packages"][name] = version(name)
    return found


def _requirements() -> list[tuple[str, str | None]]:
    """Return the names of required packages, each with its extra (None: mandatory)."""
    try:
        lines = metadata.requires("attractor") or []
    except metadata.PackageNotFoundError:
        return [(name, None) for name in ("torch", "numpy", "scipy", "typer", "rich")]
    found = []
    for line in lines:
        name = re.match(r"[A-Za-z0-9._-]+", line)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        if name is not None:
            found.append((name.group(), extra.group(1) if extra else None))
    return found


def machine() -> dict[str, Any]:
    """Return the operating system, the processor and the GPUs that torch can use."""
    import torch

    from attractor.engines import fused as kernels

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    metal = ["Apple Metal"] if torch.backends.mps.is_available() else []
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": None if kernels.reason else kernels.instruction_set(),
        "gpu": ", ".join([*gpus, *metal]) or None,
    }


def accelerator_name() -> str:
    """Return the name of the first GPU, or of the processor."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else processor_name()


def processor_name() -> str:
    """Return the model name of the processor."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def source_commit() -> str | None:
    """Return the commit of a source checkout, marked if files were changed; None for an installed package."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    options: dict[str, Any] = {"cwd": root, "capture_output": True, "text": True, "timeout": 10, "check": True}
    try:
        name = subprocess.run(["git", "rev-parse", "HEAD"], **options).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name} with changes" if changed else name


def programs() -> dict[str, str | None]:
    """Return the paths of a browser (tests of interactive figures use it) and of ffmpeg (writes .mp4)."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    return {"chromium": browser, "ffmpeg": shutil.which("ffmpeg") or _packaged_ffmpeg()}


def _packaged_ffmpeg() -> str | None:
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return None
