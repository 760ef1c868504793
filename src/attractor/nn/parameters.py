"""Parameters of attention layers: checks of sizes, matrices with fixed signs, and plain weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError


def check_size(name: str, size: Any) -> None:
    """Raise unless a size is an integer of at least 1."""
    if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {size!r}")


def head_size(dim: int, heads: int) -> int:
    """Return dim / heads; raise if it is not an integer."""
    if dim % heads:
        raise InputError(
            f"dimension {dim} does not split into {heads} heads: dim must be a positive multiple of heads, or "
            "give head_dim (in a configuration options = {head_dim = ...})"
        )
    return dim // heads


def check_scale(scale: Any) -> float:
    """Return a scale as a float; raise if it is not finite."""
    if isinstance(scale, (str, bool)) or not math.isfinite(scale):
        raise InputError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


LETTERS = "form_letters"


class Formed(nn.Module):
    """A module whose parameters have a meaning, the ``form``, that is stored with its weights and checked when weights are loaded.

    A subclass calls ``mark_form`` in its constructor.
    """

    @property
    def form(self) -> str:
        raise NotImplementedError

    def mark_form(self) -> None:
        """Store the form in a buffer."""
        self.register_buffer(LETTERS, torch.tensor(list(self.form.encode()), dtype=torch.uint8))

    def check_form(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise if weights have another form."""
        given = state.get(prefix + LETTERS)
        if not isinstance(given, Tensor) or given.is_meta:
            return
        other = bytes(given.flatten().to(torch.uint8).tolist()).decode(errors="replace")
        if other != self.form:
            raise InputError(
                f"the weights are of a {other} and this is a {self.form}: they fit in shape and mean something else; make the layer "
                "with the form that they were trained with"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **options: Any) -> None:
        self.check_form(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **options)
        missing = options["missing_keys"] if "missing_keys" in options else args[2]  # torch passes them by position
        if prefix + LETTERS in missing:
            missing.remove(prefix + LETTERS)


def check_forms(module: nn.Module, state: Mapping[str, Any], prefix: str) -> None:
    """Raise if weights for any part of a module have another form, before any of them is copied."""
    for name, part in module.named_modules(prefix=prefix.removesuffix(".")):
        if isinstance(part, Formed):
            part.check_form(state, name + "." if name else "")


PIVOT = 0.15  # initial size of pivots, as in the published experiments
SKEW = 0.02  # initial standard deviation of the skew part


class Signed(nn.Module):
    r"""A matrix :math:`L\,\mathrm{diag}(\pm\mathrm{softplus}(\theta))\,L^\top` with unit lower triangular L and fixed signs.

    Parameters
    ----------
    signs : signs of the pivots, (size,) or (copies, size).
    copies : number of matrices; None for one without a leading axis.
    diagonal : L is the identity.
    skew : add a skew part T - T'.
    pivot : initial size of the pivots.

    Products are computed in float32 at least, also under autocast.
    """

    signs: Tensor

    def __init__(
        self,
        signs: Tensor,
        copies: int | None = None,
        *,
        diagonal: bool = False,
        skew: bool = False,
        pivot: float = PIVOT,
    ) -> None:
        super().__init__()
        self.size, self.copies, self.diagonal = signs.shape[-1], copies, diagonal
        leading = () if copies is None else (copies,)
        below = self.size * (self.size - 1) // 2
        self.register_buffer("signs", signs.to(torch.get_default_dtype()))
        self.pivots = nn.Parameter(torch.full((*leading, self.size), math.log(math.expm1(pivot))))
        self.lower = None if diagonal else nn.Parameter(torch.zeros(*leading, below))
        self.skew = nn.Parameter(SKEW * torch.randn(*leading, below)) if skew else None

    def start(self, lower: Tensor, skew: Tensor) -> None:
        """Set the strictly lower triangle of L, and the skew part if there is one."""
        assert self.lower is not None
        row, column = _below(self.size, lower.device)
        with torch.no_grad():
            self.lower.copy_(lower[..., row, column])
            if self.skew is not None:
                self.skew.copy_(skew[..., row, column])

    def scaled_pivots(self, dtype: torch.dtype | None = None) -> Tensor:
        """The signed pivots (..., size)."""
        pivots = self.pivots.to(working_dtype(self.pivots.dtype, dtype))
        # softplus underflows to zero, which has no sign
        return self.signs.to(pivots) * functional.softplus(pivots).clamp_min(torch.finfo(pivots.dtype).tiny)

    def forward(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix (..., size, size)."""
        with torch.autocast(self.pivots.device.type, enabled=False):
            pivots = self.scaled_pivots(dtype)
            matrix = torch.diag_embed(pivots) if self.lower is None else self._product(self.lower.to(pivots), pivots)
            if self.skew is None:
                return matrix
            half = self._fill(self.skew.to(pivots))
            return matrix + half - half.mT

    def _product(self, lower: Tensor, pivots: Tensor) -> Tensor:
        factor = self._fill(lower) + torch.eye(self.size, dtype=lower.dtype, device=lower.device)
        return (factor * pivots.unsqueeze(-2)) @ factor.mT

    def _fill(self, packed: Tensor) -> Tensor:
        """A strictly lower triangular matrix from its entries, row by row."""
        row, column = _below(self.size, packed.device)
        empty = packed.new_zeros(*packed.shape[:-1], self.size * self.size)
        filled = empty.index_copy(-1, row * self.size + column, packed)
        return filled.unflatten(-1, (self.size, self.size))


def working_dtype(own: torch.dtype, requested: torch.dtype | None) -> torch.dtype:
    """The precision for products of factors: the requested one, or that of the parameters but at least float32."""
    if requested is not None:
        return requested
    return torch.float32 if own in (torch.float16, torch.bfloat16) else own


def _below(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    row, column = torch.tril_indices(size, size, -1, device=device)
    return row, column


@dataclass(frozen=True, eq=False)
class Weights:
    r"""Query, key (h, k, d), value (h, r, d) and output (h, d, r): scores :math:`\langle Q_h x_i, K_h x_j\rangle`, value map
    :math:`O_h V_h`.

    Symbols: :math:`W_h = Q_h^\top K_h` is the interaction; :math:`O_h V_h` is :math:`M_h^\top` of [pham2025dynamical] with the output
    projection folded in. ``q``, ``k``, ``v``, ``o`` are the same numbers as ``nn.Linear`` keeps them.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None

    @property
    def heads(self) -> int:
        return self.query.shape[0]

    @property
    def q(self) -> Tensor:
        """(h k, d)"""
        return self.query.flatten(0, 1)

    @property
    def k(self) -> Tensor:
        """(h k, d)"""
        return self.key.flatten(0, 1)

    @property
    def v(self) -> Tensor:
        """(h r, d)"""
        return self.value.flatten(0, 1)

    @property
    def o(self) -> Tensor:
        """(d, h r)"""
        return self.output.transpose(0, 1).flatten(1)

    def interaction(self) -> Tensor:
        """W_h = Q_h' K_h, (h, d, d)."""
        return self.query.mT @ self.key

    def value_map(self) -> Tensor:
        """O_h V_h, (h, d, d)."""
        return self.output @ self.value

    def to(self, like: torch.dtype | Tensor) -> Weights:
        """Convert to another precision, or to that and the device of a tensor."""
        return self._each(lambda part: part.to(like))

    def detach(self) -> Weights:
        """Detach from the autograd graph."""
        return self._each(Tensor.detach)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Weights:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(part) for name, part in parts.items() if part is not None}
        return Weights(**changed)


def split_heads(matrix: Tensor, heads: int) -> Tensor:
    """Split a weight (h k, d) of a linear layer into heads, (h, k, d)."""
    return matrix.unflatten(0, (heads, -1))


def split_output(matrix: Tensor, heads: int) -> Tensor:
    """Split an output weight (d, h r) of a linear layer into heads, (h, d, r)."""
    return matrix.unflatten(1, (heads, -1)).transpose(0, 1)
