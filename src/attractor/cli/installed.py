"""What this machine has: packages, extras, processors, programs."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib import metadata
from typing import Any

from attractor.cli.printing import version

ASIDE = {"all", "dev", "docs"}  # extras that are no part of using attractor
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def required() -> dict[str, str | None]:
    """Python, attractor and what it always needs."""
    names = ["attractor", *(name for name, extra in _requirements() if extra is None)]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def extras() -> dict[str, dict[str, Any]]:
    """Every extra: its packages with their versions (None: not installed), and the command that installs it."""
    found: dict[str, dict[str, Any]] = {}
    for name, extra in _requirements():
        if extra is None or extra in ASIDE:
            continue
        entry = found.setdefault(extra, {"packages": {}, "install": f"pip install 'attractor[{extra}]'"})
        entry["packages"][name] = version(name)
    return found


def _requirements() -> list[tuple[str, str | None]]:
    """Names of the packages attractor asks for, each with the extra that asks (None: always)."""
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
    """Processors and memory that torch sees."""
    import torch

    from attractor.engines.fused import kernels

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


def programs() -> dict[str, str | None]:
    """A browser, which the tests of interactive pictures use, and ffmpeg, which writes .mp4."""
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    return {"chromium": browser, "ffmpeg": shutil.which("ffmpeg") or _packaged_ffmpeg()}


def _packaged_ffmpeg() -> str | None:
    try:
        import imageio_ffmpeg

        return imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return None
