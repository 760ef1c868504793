"""The spectral engine: attention on the circle and the 2-sphere in time linear in the number of tokens.

``expansion.py`` has the mathematics and its error bound, ``harmonics.py`` the harmonics of products, ``plan.py`` says whether
a problem lies on a sphere and what it would cost, and ``engine.py`` runs it. The two passes over tokens are in ``cpp/zonal.h``.
"""

from attractor.engines.fused import reason
from attractor.engines.spectral.engine import accepts, obstacle, priority, run

__all__ = ["accepts", "obstacle", "priority", "reason", "run"]
