"""The fused engine: C++ kernels with vector instructions for the CPU, float32 and float64, forward and backward.

``engine.py`` says when it runs, ``kernels.py`` finds the compiled module, ``layout.py`` hands tensors to it in place and
``gradient.py`` ties it to autograd. The kernels themselves are in ``cpp/``.
"""

from attractor.engines.fused.engine import accepts, obstacle, portion, rank, run, share
from attractor.engines.fused.kernels import instruction_sets, reason

__all__ = ["accepts", "instruction_sets", "obstacle", "portion", "rank", "reason", "run", "share"]
