"""How tokens know where they stand."""

from attractor.attention.positions.absolute import Absolute
from attractor.attention.positions.alibi import Alibi
from attractor.attention.positions.position import Positions
from attractor.attention.positions.relative import Relative
from attractor.attention.positions.rotary import Rotary
from attractor.attention.positions.scaled_rotary import ScaledRotary

__all__ = ["Absolute", "Alibi", "Positions", "Relative", "Rotary", "ScaledRotary"]
