"""What a kernel is given, what it must return, and how it is found by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from attractor.engines import Mode, attend
from attractor.registry import find
from attractor.serialization import Record


@dataclass(frozen=True)
class Pairing:
    """Queries and keys ready to meet: q (..., h, n, k), k (..., h, n, k), masses (..., 1, n) or None for 1/n each.

    ``hide`` holds the mask in the words of ``engines.attend``; ``symmetric`` promises a symmetric positive semi-definite
    score matrix, which lets Sinkhorn converge faster.
    """

    q: Tensor
    k: Tensor
    scale: Tensor | float
    masses: Tensor | None = None
    hide: dict[str, object] = field(default_factory=dict)
    skip_self: bool = False
    symmetric: bool = False

    @property
    def scaled_query(self) -> Tensor:
        return self.q if isinstance(self.scale, float) and self.scale == 1.0 else self.q * self.scale

    @property
    def log_masses(self) -> Tensor | None:
        return None if self.masses is None else self.masses.log()

    def meet(self, q: Tensor, v: Tensor, key_bias: Tensor | None, mode: Mode) -> Tensor:
        """The weighted sum of values that one call of the engine gives."""
        output, _ = attend(q, self.k, v, key_bias, mode, skip_self=self.skip_self, **self.hide)  # type: ignore[arg-type]
        assert output is not None
        return output

    def average(self, q: Tensor, v: Tensor, key_bias: Tensor | None, mode: Mode) -> Tensor:
        """The same for kernels that weigh values by mass instead of normalising rows."""
        if self.masses is None:
            return self.meet(q, v, key_bias, mode) / self.k.shape[-2]
        return self.meet(q, v * self.masses.unsqueeze(-1), key_bias, mode)


class Kernel(Record):
    """How scores become weights. ``normalised`` kernels have rows that sum to one."""

    name: ClassVar[str] = ""
    normalised: ClassVar[bool] = True

    def attend(self, pairing: Pairing, v: Tensor) -> Tensor:
        """Weighted sums of v (..., h, n, c) for every query."""
        raise NotImplementedError


def kernel_named(kernel: str | Kernel) -> Kernel:
    """A kernel by name, or the kernel itself."""
    if isinstance(kernel, Kernel):
        return kernel
    kernels = {found.name: found for found in sorted(Kernel.__subclasses__(), key=lambda found: found.name)}
    return find(kernel, kernels, "kernel")()


def as_bias(value: float, like: Tensor) -> Tensor | None:
    """A constant added to every score, as a key bias (..., n)."""
    return None if value == 0.0 else torch.full_like(like[..., 0], value)
