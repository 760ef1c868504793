"""Spectral engine: attention on the circle and the 2-sphere in time linear in the number of tokens.

``harmonics.py`` has the expansion and its error bound, ``engine.py`` the conditions, the cost model and the evaluation. The two
passes over tokens are in ``cpp/zonal.h``.
"""

from attractor.engines.fused import reason
from attractor.engines.spectral.engine import accepts, obstacle, priority, run

__all__ = ["accepts", "obstacle", "priority", "reason", "run"]
