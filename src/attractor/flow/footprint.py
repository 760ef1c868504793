"""How much memory a run takes, known before it begins."""

from __future__ import annotations

import math
from typing import Any

from attractor import memory
from attractor.flow.steppers.stepper import Stepper

SMALL = 1 << 20  # bytes of a state below which nobody asks how much memory there is


def check_footprint(shape: tuple[int, ...], stepper: Stepper, saved: int, bytes_each: int, device: Any = None) -> None:
    """Refuse a run of points (..., n, d) whose arrays cannot be had, before any of them is made.

    Saved states count twice: they are put together at the end. What an engine needs is not counted; those chosen for many
    tokens need little.
    """
    state, (n, d) = bytes_each * math.prod(shape), shape[-2:]
    if state < SMALL:
        return
    what = f"a run of {n:,} tokens of dimension {d} by {stepper.name} with {saved} saved states"
    advice = ", or save fewer states" if 2 * saved > stepper.arrays else ""
    memory.check((2 * saved + stepper.arrays) * float(state), n, what, device=device, advice=advice)
