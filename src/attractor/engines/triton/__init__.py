"""The Triton engine: kernels for NVIDIA GPUs, float32 and float64, forward and backward.

``engine.py`` says when it runs, ``narrow.py`` holds everything in registers for head dimensions up to four, ``wide.py`` uses the
tensor cores above, ``backward.py`` has the sweeps of the gradient, ``layout.py`` packs operands and ``gradient.py`` ties them to
autograd. Nothing here is imported where there is no GPU.
"""

from attractor.engines.triton.engine import accepts, obstacle, priority, reason, run

__all__ = ["accepts", "obstacle", "priority", "reason", "run"]
