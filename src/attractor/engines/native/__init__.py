"""The native loop: adaptive steps of many small systems in C++, from plain arrays; ``cpp/run.h`` is the loop itself.

It evaluates attention by the kernels of the fused engine and returns where something happens that is not its matter.
"""

from attractor.engines.native.loop import ARRIVED, ENTERED, FAILED, LOCATED, LOOK, Loop, reason

__all__ = ["ARRIVED", "ENTERED", "FAILED", "LOCATED", "LOOK", "Loop", "reason"]
