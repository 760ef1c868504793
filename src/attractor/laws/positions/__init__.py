"""Positional encodings."""

from attractor.laws.positions.absolute import Absolute
from attractor.laws.positions.alibi import Alibi
from attractor.laws.positions.combined import Combined
from attractor.laws.positions.position import Positions
from attractor.laws.positions.relative import Disentangled, Relative
from attractor.laws.positions.rotary import DynamicRotary, GridRotary, LongRotary, Rotary, ScaledRotary, Temperature

__all__ = [
    "Absolute",
    "Alibi",
    "Combined",
    "Disentangled",
    "DynamicRotary",
    "GridRotary",
    "LongRotary",
    "Positions",
    "Relative",
    "Rotary",
    "ScaledRotary",
    "Temperature",
]
