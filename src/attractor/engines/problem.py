"""The operands and options of one attention evaluation."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal

import torch
from torch import Tensor

from attractor.errors import InputError

Mode = Literal["softmax", "exponential", "sigmoid", "linear"]
MODES: tuple[Mode, ...] = ("softmax", "exponential", "sigmoid", "linear")

Results = tuple[Tensor | None, Tensor | None]  # output (..., n, c) and logsumexp (..., n)

LOG2E = math.log2(math.e)  # the kernels compute powers of two
NARROW = 4  # columns of keys and values that the Triton kernels hold in registers
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter runs the kernels on the CPU, for tests


@dataclass(frozen=True)
class Problem:
    """One call of ``attend``. Shapes: q (..., n, e), k (..., m, e), v (..., m, c) or None, key_bias (..., m).

    ``window`` w leaves keys with \\|i - j\\| < w visible, ``causal`` those with j <= i, ``visible`` (..., n, m) those that
    are True; they combine. ``skip_self`` leaves key i out of output i but keeps it in the normaliser: on a sphere with
    value c I the self term has no tangent part, and dropping it saves the small rates of far clusters from rounding.
    ``offset`` is the position of the first query among the keys (i = offset + row), so that some rows of a problem are a
    problem too. ``tolerance`` is the relative error of a row that an approximating engine may make; None: about rounding.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    key_bias: Tensor | None
    mode: Mode
    causal: bool
    window: int | None
    visible: Tensor | None
    skip_self: bool
    offset: int = 0
    tolerance: float | None = None
    # results of an engine's checks when it was selected, reused by its run
    cache: dict[str, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError unless types and shapes fit together: the kernels rely on them for memory access."""
        parts = {"queries": self.q, "keys": self.k, "values": self.v}
        for name, part in parts.items():
            if part is not None and part.ndim < 2:
                raise InputError(f"{name} must have shape (..., rows, columns), got {tuple(part.shape)}")
        types = {part.dtype for part in (*parts.values(), self.key_bias) if part is not None}
        if len(types) > 1 or not self.q.is_floating_point():
            names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in types))
            raise InputError(f"queries, keys, values and bias must be of one floating-point type, got {names}")
        if self.window is not None and (isinstance(self.window, bool) or not isinstance(self.window, Integral)):
            raise InputError(f"a window is a whole number of tokens, got {self.window!r}")
        if self.window is not None and self.window < 1:
            raise InputError(f"a window must hold at least the token itself, got {self.window}")
        if self.visible is not None and self.visible.dtype != torch.bool:
            raise InputError(f"visible says True or False for every pair, got {self.visible.dtype}")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must be between 0 and 1, got {self.tolerance:g}")
        q, k, v, bias = self.q.shape, self.k.shape, self.v, self.key_bias
        if q[-1] != k[-1]:
            raise InputError(f"queries {tuple(q)} and keys {tuple(k)} must have as many columns")
        if v is not None and v.shape[-2] != k[-2]:
            raise InputError(f"values {tuple(v.shape)} must have a row for each of {k[-2]} keys")
        if bias is not None and bias.shape[-1] != k[-2]:
            raise InputError(f"the key bias {tuple(bias.shape)} must have a number for each of {k[-2]} keys")
        try:
            _ = self.batch
        except RuntimeError:
            shapes = ", ".join(
                str(tuple(part.shape)) for part in (*parts.values(), bias, self.visible) if part is not None
            )
            raise InputError(f"the leading axes of these shapes do not fit together: {shapes}") from None

    @property
    def queries(self) -> int:
        return self.q.shape[-2]

    @property
    def keys(self) -> int:
        return self.k.shape[-2]

    @property
    def is_masked(self) -> bool:
        return self.causal or self.window is not None or self.visible is not None

    @property
    def is_positional(self) -> bool:
        """Whether the result depends on the positions of the queries among the keys."""
        return self.causal or self.window is not None or self.skip_self

    @property
    def has_logsumexp(self) -> bool:
        return self.mode in ("softmax", "exponential")

    def take_rows(self, rows: slice) -> Problem:
        """The problem of some of the queries."""
        visible = None if self.visible is None else self.visible[..., rows, :]
        return replace(self, q=self.q[..., rows, :], visible=visible, offset=self.offset + rows.start)

    def positions(self, rows: slice) -> Tensor:
        """Positions of some queries among the keys, (rows, 1)."""
        first = self.offset
        return torch.arange(first + rows.start, first + rows.stop, device=self.q.device).unsqueeze(-1)

    @property
    def batch(self) -> torch.Size:
        """Leading axes of the result."""
        shapes = [self.q.shape[:-2], self.k.shape[:-2]]
        shapes += [self.v.shape[:-2]] if self.v is not None else []
        shapes += [self.key_bias.shape[:-1]] if self.key_bias is not None else []
        shapes += [self.visible.shape[:-2]] if self.visible is not None else []
        # equal shapes are the usual case, and broadcast_shapes takes as long as a whole small problem
        return shapes[0] if all(shape == shapes[0] for shape in shapes) else torch.broadcast_shapes(*shapes)

    @property
    def pairs(self) -> int:
        """Number of (query, key) pairs in the whole batch."""
        return self.batch.numel() * self.queries * self.keys

    @property
    def needs_gradient(self) -> bool:
        parts = (self.q, self.k, self.v, self.key_bias)
        return torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in parts)

    def hidden_pairs(self, rows: slice, columns: slice) -> Tensor | None:
        """True where the mask hides the key from the query, for a block of pairs; None without a mask."""
        if not self.is_masked:
            return None
        i = self.positions(rows)
        j = torch.arange(columns.start, columns.stop, device=self.q.device)
        hidden = torch.zeros((), dtype=torch.bool, device=self.q.device)
        if self.causal:
            hidden = hidden | (j > i)
        if self.window is not None:
            hidden = hidden | ((i - j).abs() >= self.window)
        if self.visible is not None:
            hidden = hidden | ~self.visible[..., rows, columns]
        return hidden
