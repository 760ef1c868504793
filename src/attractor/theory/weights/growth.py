r"""How much attention is predicted to lengthen tokens, from weights alone.

Let M be the sum of value maps and c what attention writes whatever it reads. Tokens with random directions and entries of mean square one
that all agree, or that each attend to themselves, become :math:`x + Mx + c`, of mean square
:math:`1 + (2\,\mathrm{tr}\,M + \|M\|_F^2 + |c|^2)/d`; where attention is spread evenly over many unrelated tokens only c remains.
What attention really does lies between and depends on data, as does the length of the stream that a pre-norm model adds to.
For wide models :math:`\|M\|_F` is estimated by random probes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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


def growth(laws: Iterable[Attention], seed: int = 0) -> Growth:
    """The predicted growth of a layer whose heads may come in several laws."""
    moved, drift, trace = torch.zeros(()), torch.zeros(()), 0.0
    probes = torch.zeros(0, 0)
    for law in laws:
        if not probes.numel():
            probes = _probes(law.dim, seed)
        trace += _trace(law)
        moved = moved + _moved(law, probes)
        drift = drift + _drift(law)
    dim = len(probes)
    # E |M x|^2 = |M|_F^2 for normal x; the identity as probes gives it exactly
    exact = probes.shape[1] == dim
    squared = float(moved.square().sum()) / (1.0 if exact else probes.shape[1])
    steady = float(drift.square().sum()) / dim
    consensus = max(0.0, 1 + (2 * trace + squared) / dim + steady) ** 0.5
    return Growth(consensus, (1 + steady) ** 0.5, (squared / dim + steady) ** 0.5, steady**0.5, not exact)


def _probes(dim: int, seed: int) -> Tensor:
    if dim <= EXACT:
        return torch.eye(dim, dtype=torch.float64)
    return torch.randn(dim, PROBES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _maps(law: Attention) -> tuple[Tensor, Tensor | None]:
    value = law.value.detach().double().cpu()
    output = None if law.output is None else law.output.detach().double().cpu()
    return value, output


def _trace(law: Attention) -> float:
    value, output = _maps(law)
    if output is None:
        return float(value.diagonal(dim1=-2, dim2=-1).sum())
    return float((value * output.mT).sum())


def _moved(law: Attention, probes: Tensor) -> Tensor:
    value, output = _maps(law)
    if output is None:
        return value.reshape(-1, *value.shape[-2:]).sum(0) @ probes
    inner = value.reshape(-1, value.shape[-1])
    outer = output.reshape(-1, *output.shape[-2:]).transpose(0, 1).reshape(law.dim, -1)
    return outer @ (inner @ probes)


def _drift(law: Attention) -> Tensor:
    """What is written whatever is read: biases of values through their outputs, and of the output."""
    drift = torch.zeros(law.dim, dtype=torch.float64)
    if law.value_bias is not None:
        bias = law.value_bias.detach().double().cpu().expand(law.value.shape[:-1])
        _, output = _maps(law)
        written = bias if output is None else (output @ bias[..., None])[..., 0]
        drift += written.reshape(-1, law.dim).sum(0)
    if law.output_bias is not None:
        drift += law.output_bias.detach().double().cpu().reshape(-1, law.dim).sum(0)
    return drift
