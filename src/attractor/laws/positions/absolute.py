"""Absolute positions: a vector for every place in the sequence."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.laws.positions.position import Positions, indices
from attractor.states import Tokens, check_finite, to_float_tensor


@dataclass(frozen=True, eq=False)
class Absolute(Positions):
    """Row p of ``table`` (places, d) belongs to position p.

    ``when="input"`` adds it once, as a flow starts (GPT-2, ViT): the dynamics is unchanged. ``when="every"`` adds it at every
    evaluation; a collapse then ends at x_i = -p_i (regimes 3.2). ``on="qk"`` shifts queries and keys only.
    """

    table: Tensor
    when: Literal["every", "input"] = "every"
    on: Literal["qkv", "qk"] = "qkv"
    name: ClassVar[str] = "absolute"

    def __post_init__(self) -> None:
        table = check_finite(to_float_tensor(self.table, "the position table"), "the position table")
        if table.ndim != 2:
            raise InputError(f"the position table must have shape (places, d), got {tuple(table.shape)}")
        if self.when not in ("every", "input"):
            raise InputError(f"absolute positions are added when='every' or when='input', not {self.when!r}")
        if self.on not in ("qkv", "qk"):
            raise InputError(f"absolute positions act on='qkv' or on='qk', not {self.on!r}")
        object.__setattr__(self, "table", table)

    @classmethod
    def sinusoidal(cls, places: int, dim: int, theta: float = 1e4, **options: Any) -> Absolute:
        r"""The table with :math:`\sin(p\,\theta^{-2i/d})` and :math:`\cos(p\,\theta^{-2i/d})` in columns 2i and 2i+1."""
        if not theta > 0:
            raise InputError(f"sinusoidal positions need theta > 0, got {theta:g}")
        column = torch.arange(dim)
        angles = torch.arange(places, dtype=torch.float64).unsqueeze(-1) * theta ** (-2.0 * (column // 2) / dim)
        return cls(torch.where(column % 2 == 0, angles.sin(), angles.cos()), **options)

    @property
    def changes_dynamics(self) -> bool:
        return self.when == "every"

    @property
    def shifts_scores(self) -> bool:
        return self.when == "every" and self.on == "qk"

    @property
    def shifts_values(self) -> bool:
        return self.when == "every" and self.on == "qkv"

    def _rows(self, tokens: Tokens) -> Tensor:
        places = indices(tokens)
        if (
            bool((places < 0).any())
            or bool((places >= self.table.shape[0]).any())
            or bool((places != places.round()).any())
        ):
            raise InputError(
                f"the position table has places 0 to {self.table.shape[0] - 1}; the tokens stand at "
                f"{float(places.min()):g} to {float(places.max()):g}"
            )
        return self.table.to(tokens.points)[places.long()]

    def enter(self, tokens: Tokens) -> Tensor:
        return tokens.points + self._rows(tokens) if self.when == "input" else tokens.points

    def shift(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        if self.when == "input":
            return tokens.points, tokens.points
        shifted = tokens.points + self._rows(tokens)
        return shifted, (shifted if self.on == "qkv" else tokens.points)

    def added_vectors(self, tokens: Tokens) -> Tensor | None:
        rows = self._rows(tokens)
        return rows.reshape(-1, rows.shape[-1])[: 0 if self.when == "input" else None]

    def restrict(self, basis: Tensor) -> Positions:
        return dataclasses.replace(self, table=self.table.to(basis) @ basis)

    def check(self, dim: int, head_dim: int) -> None:
        if self.table.shape[1] != dim:
            raise InputError(f"the position table has dimension {self.table.shape[1]}, the law has {dim}")
