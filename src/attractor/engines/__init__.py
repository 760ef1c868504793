"""The one hot operation, in several implementations.

``attend`` reduces every kernel, mask and mass to one contract; see :mod:`attractor.engines.contract`.
"""

from attractor.engines.contract import Mode, Problem
from attractor.engines.dispatch import Engine, attend, available, choose, register, using

__all__ = ["Engine", "Mode", "Problem", "attend", "available", "choose", "register", "using"]
