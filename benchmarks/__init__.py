"""Benchmark program: ``python -m benchmarks`` measures attractor against its peers, interleaved in one run.

One file for each group of rows; the peers (JAX, diffrax, torchdiffeq, KeOps) are an extra that only functions in here import, when
their row is run.
"""

from benchmarks.program import CPU, GPU, GROUPS, benchmark, choose_rows
from benchmarks.racing import Contender, Contest, Ready, Settings, Skip

__all__ = ["CPU", "GPU", "GROUPS", "Contender", "Contest", "Ready", "Settings", "Skip", "benchmark", "choose_rows"]
