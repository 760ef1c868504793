"""Speed against the real peers, contenders interleaved in one run; ``attractor bench`` is its face.

One file for each group of rows; the peers (JAX, diffrax, torchdiffeq, KeOps) are an extra that only functions in here import, when
their row is run.
"""

from attractor.bench.contest import Contender, Contest, Ready, Skip
from attractor.bench.program import CPU, GPU, GROUPS, benchmark, chosen
from attractor.bench.settings import Settings

__all__ = ["CPU", "GPU", "GROUPS", "Contender", "Contest", "Ready", "Settings", "Skip", "benchmark", "chosen"]
