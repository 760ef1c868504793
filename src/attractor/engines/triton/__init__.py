"""Triton engine: kernels for NVIDIA GPUs, float32 and float64, forward and backward.

``engine.py`` has the requirements, ``launch.py`` packs operands and launches kernels. ``narrow.py`` keeps everything in registers
for head dimensions up to four, ``symmetric.py`` computes each pair once, ``wide.py`` uses the tensor cores, ``backward.py`` has the
gradients. Only ``engine.py`` is imported where there is no GPU.
"""

from attractor.engines.triton.engine import accepts, obstacle, priority, reason, run

__all__ = ["accepts", "obstacle", "priority", "reason", "run"]
