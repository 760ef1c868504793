"""How scores become weights: one kernel a file; a new file in this folder is a new kernel."""

import importlib
import pkgutil

from attractor.laws.kernels.capped import Capped
from attractor.laws.kernels.exponential import Exponential
from attractor.laws.kernels.kernel import Kernel, Pairing, kernel_named
from attractor.laws.kernels.l2 import L2
from attractor.laws.kernels.linear import Linear
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.laws.kernels.softmax import Softmax

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "L2",
    "Capped",
    "Exponential",
    "Kernel",
    "Linear",
    "Pairing",
    "Sigmoid",
    "Sinkhorn",
    "Softmax",
    "kernel_named",
]
