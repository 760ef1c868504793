"""How tokens know where they stand."""

from attractor.attention.positions.absolute import Absolute
from attractor.attention.positions.position import Positions
from attractor.attention.positions.rotary import Rotary

__all__ = ["Absolute", "Positions", "Rotary"]
