"""Sizes and scales that a layer can have."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from attractor.errors import InputError


def check_size(name: str, size: Any) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {size!r}")


def head_size(dim: int, heads: int) -> int:
    """dim / heads."""
    if dim % heads:
        raise InputError(
            f"dimension {dim} does not split into {heads} heads: dim must be a positive multiple of heads, or give head_dim too"
        )
    return dim // heads


def finite_scale(scale: Any) -> float:
    """A scale of the scores."""
    if isinstance(scale, (str, bool)) or not math.isfinite(scale):
        raise InputError(f"scale must be a finite number, got {scale!r}")
    return float(scale)
