"""The attention operation ``attend`` and its implementations (engines), selected by device, dtype and size."""

from attractor.engines.dispatch import Engine, attend, available, choose, register, using
from attractor.engines.problem import MODES, Mode, Problem

__all__ = ["MODES", "Engine", "Mode", "Problem", "attend", "available", "choose", "register", "using"]
