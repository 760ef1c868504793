"""The compiled module, or why there is none, and which instruction set of this processor it uses."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

from attractor.errors import InputError

VARIABLE = "ATTRACTOR_ISA"  # forces one of `instruction_sets()`


def _load() -> tuple[ModuleType | None, str]:
    try:
        return importlib.import_module("attractor.engines.fused._kernels"), ""
    except ImportError as error:
        note = Path(__file__).with_name("not_built.txt")
        if note.exists():
            return None, f"the compiled extension is not built: {note.read_text().strip()}"
        if isinstance(error, ModuleNotFoundError):
            return None, "the compiled extension is not built: install attractor with pip where there is a C++ compiler"
        return None, f"the compiled extension cannot be loaded: {error}"


_module, reason = _load()


def module() -> ModuleType:
    if _module is None:
        raise InputError(reason)
    return _module


def instruction_sets() -> list[str]:
    """Those that were compiled and that this processor runs, the fastest first."""
    return [] if _module is None else list(_module.instruction_sets())


_sets = instruction_sets()


def instruction_set() -> str:
    """The one in use: the fastest, or the one that the environment variable ``ATTRACTOR_ISA`` names."""
    name = os.environ.get(VARIABLE)
    if not name:
        return _sets[0]
    if name not in _sets:
        raise InputError(f"{VARIABLE} is {name!r}, but the instruction sets that run here are {', '.join(_sets)}")
    return name
