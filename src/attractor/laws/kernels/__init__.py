"""Kernels, one file each: how scores become weights. Every module of this folder is imported, and its kernel exported."""

import importlib
import pkgutil

from attractor.laws.kernels.kernel import Kernel, Pairing, has_kernel, kernel_named, list_kernels

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

CLASSES = {kernel.__name__: kernel for kernel in list_kernels()}
globals().update(CLASSES)

__all__ = ["CLASSES", "Kernel", "Pairing", "has_kernel", "kernel_named", "list_kernels"]
