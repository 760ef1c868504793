r"""How much attention is predicted to lengthen tokens, from weights alone.

Let M be the sum of value maps and c what attention writes whatever it reads. Tokens with random directions and entries of mean square one
that all agree, or that each attend to themselves, become :math:`x + Mx + c`, of mean square
:math:`1 + (2\,\mathrm{tr}\,M + \|M\|_F^2 + |c|^2)/d`; where attention is spread evenly over many unrelated tokens only c remains.
What attention really does lies between and depends on data, as does the length of the stream that a pre-norm model adds to.
For wide models :math:`\|M\|_F` is estimated by random probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from attractor.attention import Attention

EXACT, PROBES = 1024, 64


@dataclass(frozen=True)
class Growth:
    """``consensus`` and ``diffuse`` are factors of the root mean square of a stream of unit size; ``written`` is the root mean
    square of what attention adds to it at consensus, ``drift`` that of its constant part; ``estimated`` says that probes were used."""

    consensus: float
    diffuse: float
    written: float
    drift: float
    estimated: bool

    def row(self) -> dict[str, Any]:
        """Flat, ready for JSON and tables."""
        return {f"growth_{name}": value for name, value in vars(self).items()}


class Growing:
    """The predicted growth of a layer whose heads may come in several laws, one after the other."""

    def __init__(self, dim: int, seed: int = 0) -> None:
        self._dim, self._trace = dim, 0.0
        self.probes = _probes(dim, seed)
        self._moved = torch.zeros_like(self.probes)
        self._drift = torch.zeros(dim, dtype=torch.float64)
        self._adding = Lock()  # heads are looked at in several threads

    def add(self, law: Attention) -> None:
        """Some of the heads; the bias of their outputs is counted at the end."""
        self.count(_trace(law), _moved(law, self.probes), _drift(law))

    def count(self, trace: float, moved: Tensor, drift: Tensor | None) -> None:
        """The same of heads whose trace, moved probes and constant part are known."""
        with self._adding:
            self._trace += trace
            self._moved += moved
            if drift is not None:
                self._drift += drift

    def result(self, output_bias: Tensor | None = None) -> Growth:
        """For all heads that were added."""
        drift, dim = self._drift, self._dim
        if output_bias is not None:
            drift = drift + output_bias.detach().double().cpu().reshape(-1, dim).sum(0)
        # E |M x|^2 = |M|_F^2 for normal x; the identity as probes gives it exactly
        exact = self.probes.shape[1] == dim
        squared = float(self._moved.square().sum()) / (1.0 if exact else self.probes.shape[1])
        steady = float(drift.square().sum()) / dim
        consensus = max(0.0, 1 + (2 * self._trace + squared) / dim + steady) ** 0.5
        return Growth(consensus, (1 + steady) ** 0.5, (squared / dim + steady) ** 0.5, steady**0.5, not exact)


def growth(law: Attention, seed: int = 0) -> Growth:
    """The predicted growth of a layer."""
    growing = Growing(law.dim, seed)
    growing.add(law)
    return growing.result(law.output_bias)


def _probes(dim: int, seed: int) -> Tensor:
    if dim <= EXACT:
        return torch.eye(dim, dtype=torch.float64)
    return torch.randn(dim, PROBES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _maps(law: Attention) -> tuple[Tensor, Tensor | None]:
    """Value and output with an axis of heads, in the precision of the law."""
    value = law.value.detach().cpu().reshape(-1, *law.value.shape[-2:])
    output = None if law.output is None else law.output.detach().cpu().reshape(-1, *law.output.shape[-2:])
    return value, output


def _trace(law: Attention) -> float:
    value, output = _maps(law)
    inner = value if output is None else value @ output
    return float(inner.diagonal(dim1=-2, dim2=-1).sum(dtype=torch.float64))


def _moved(law: Attention, probes: Tensor) -> Tensor:
    value, output = _maps(law)
    moved = value @ probes.to(value.dtype)
    return (moved if output is None else output @ moved).sum(0).double()


def _drift(law: Attention) -> Tensor:
    """What is written whatever is read: biases of values through their outputs."""
    if law.value_bias is None:
        return torch.zeros(law.dim, dtype=torch.float64)
    bias = law.value_bias.detach().cpu().expand(law.value.shape[:-1]).reshape(-1, law.value.shape[-2])
    _, output = _maps(law)
    written = bias if output is None else (output @ bias[..., None])[..., 0]
    return written.double().sum(0)
