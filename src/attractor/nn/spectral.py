"""Spectral normalisation of the value: the largest singular value stays at 1."""

from __future__ import annotations

from torch.nn.utils.parametrizations import spectral_norm

from attractor.errors import InputError
from attractor.nn.plain import PlainAttention


def spectral(layer: PlainAttention, part: str = "value", iterations: int = 1) -> PlainAttention:
    """Keep the spectral norm of a plain layer's weight at 1 while it trains, in place; ``gain`` of the layer then sets the bound.

    ``part`` is "query", "key", "value" or "output". One step of the power method refreshes the estimate at each training forward, so the
    bound holds up to that estimate. Undo with ``torch.nn.utils.parametrize.remove_parametrizations(layer.value, "weight")``.
    """
    if not isinstance(layer, PlainAttention):
        raise InputError(f"spectral normalisation is for PlainAttention, got {type(layer).__name__}: see its plain()")
    if part not in ("query", "key", "value", "output"):
        raise InputError(f"part must be query, key, value or output, got {part!r}")
    spectral_norm(getattr(layer, part), "weight", n_power_iterations=iterations)
    return layer
