"""Positional encodings."""

from attractor.laws.positions.absolute import Absolute
from attractor.laws.positions.alibi import Alibi
from attractor.laws.positions.position import Positions
from attractor.laws.positions.relative import Relative
from attractor.laws.positions.rotary import Rotary, ScaledRotary

__all__ = ["Absolute", "Alibi", "Positions", "Relative", "Rotary", "ScaledRotary"]
