"""The one hot operation, in several implementations.

``attend`` reduces every kernel, mask and mass to one contract; see :mod:`attractor.engines.problem`.
"""

from attractor.engines.dispatch import Engine, attend, available, choose, register, using
from attractor.engines.problem import MODES, Mode, Problem

__all__ = ["MODES", "Engine", "Mode", "Problem", "attend", "available", "choose", "register", "using"]
