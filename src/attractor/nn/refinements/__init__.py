"""Learned terms of the scores, folded into queries and keys: one refinement a file."""

from __future__ import annotations

from attractor.errors import InputError
from attractor.nn.refinements.metric import MetricSlice
from attractor.nn.refinements.refinement import Refinement, Sign
from attractor.nn.refinements.shift import Shift
from attractor.nn.refinements.slice import Slice

REFINEMENTS: dict[str, type[Shift] | type[Slice]] = {kind.name: kind for kind in (Shift, Slice, MetricSlice)}


def refinement_named(
    kind: str | Refinement | None,
    dim: int,
    heads: int,
    sign: Sign | None = None,
    value: float | None = None,
    channels: int | None = None,
) -> Refinement | None:
    """A refinement by name, or the refinement itself."""
    if kind is None or isinstance(kind, Refinement):
        return kind
    if kind not in REFINEMENTS:
        raise InputError(f"refinement {kind!r} is not known; the refinements are {', '.join(REFINEMENTS)}")
    made = REFINEMENTS[kind]
    if issubclass(made, Slice):
        return made(dim, heads, sign, value, channels=channels)
    if channels is not None:
        raise InputError(
            f"channels are a choice of the slice, not of the {kind}: without all of them its sign is not safe"
        )
    return made(dim, heads, sign, value)


__all__ = ["REFINEMENTS", "MetricSlice", "Refinement", "Shift", "Sign", "Slice", "refinement_named"]
