"""Feed-forward laws: every token moves by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from attractor.attention.law import Law
from attractor.errors import InputError
from attractor.states import Tokens
from attractor.states.arrays import alike

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


@dataclass(frozen=True, eq=False)
class Affine(Law):
    r""":math:`F(x) = W x + c`: ``matrix`` (d, d), ``offset`` (d,)."""

    matrix: Tensor
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        alike(self, ("matrix", "offset"))
        matrix, offset = tuple(self.matrix.shape), None if self.offset is None else tuple(self.offset.shape)
        if len(matrix) != 2 or matrix[0] != matrix[1] or offset not in (None, matrix[:1]):
            given = f"{matrix}" if offset is None else f"{matrix} and {offset}"
            raise InputError(f"an affine law needs a (d, d) matrix and a (d,) offset, got {given}")

    @property
    def dim(self) -> int:
        return self.matrix.shape[-1]

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        moved = tokens.points @ self.matrix.to(tokens.points).mT
        return moved if self.offset is None else moved + self.offset.to(moved)


@dataclass(frozen=True, eq=False)
class MLP(Law):
    r""":math:`F(x) = W_2\,\sigma(W_1 x + b_1) + b_2`; with ``gate`` G (m, d):
    :math:`W_2\,(\sigma(G x) \odot (W_1 x + b_1)) + b_2`.

    Shapes: w1 (m, d), b1 (m,), w2 (d, m), b2 (d,). Activations: relu, gelu, gelu_tanh, silu, tanh, identity.
    """

    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None = None
    activation: str = "gelu"
    gate: Tensor | None = None

    def __post_init__(self) -> None:
        alike(self, ("w1", "b1", "w2", "b2", "gate"))
        if self.activation not in ACTIVATIONS:
            raise InputError(
                f"activation {self.activation!r} is not known; the activations are {', '.join(ACTIVATIONS)}"
            )
        if self.w1.ndim != 2:
            raise InputError(f"w1 must be (m, d), got {tuple(self.w1.shape)}")
        m, d = self.w1.shape
        wanted = {"b1": (m,), "w2": (d, m), "b2": (d,), "gate": (m, d)}
        for name, shape in wanted.items():
            part = getattr(self, name)
            if part is not None and tuple(part.shape) != shape:
                raise InputError(f"{name} must be {shape} to go with w1 {(m, d)}, got {tuple(part.shape)}")

    @property
    def dim(self) -> int:
        return self.w1.shape[-1]

    def velocity(self, tokens: Tokens, time: float = 0.0, *, skip_self: bool = False) -> Tensor:
        x, like = tokens.points, tokens.points
        hidden = functional.linear(x, self.w1.to(like), None if self.b1 is None else self.b1.to(like))
        activate = ACTIVATIONS[self.activation]
        hidden = activate(hidden) if self.gate is None else activate(x @ self.gate.to(like).mT) * hidden
        return functional.linear(hidden, self.w2.to(like), None if self.b2 is None else self.b2.to(like))
