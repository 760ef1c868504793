"""What ``flow`` has in C++ beside the kernels of attention.

The native loop: adaptive steps of many small systems, from plain arrays; ``cpp/run.h`` is the loop itself. The search for tokens that
may become one, of larger systems: ``cpp/cells.h``.

The loop evaluates attention by the kernels of the fused engine and returns where something happens that is not its matter.
"""

from attractor.engines.native.cells import cell_mates, mutual_pairs
from attractor.engines.native.loop import ARRIVED, ENTERED, FAILED, LOCATED, LOOK, Loop, reason

__all__ = ["ARRIVED", "ENTERED", "FAILED", "LOCATED", "LOOK", "Loop", "cell_mates", "mutual_pairs", "reason"]
