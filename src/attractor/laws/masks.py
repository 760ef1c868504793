"""Which keys a query sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.serialization import Record
from attractor.states import Tokens


class Visibility(TypedDict, total=False):
    """Which keys a query sees, as keyword arguments of ``engines.attend``; without entries, all of them."""

    causal: bool
    window: int | None
    visible: Tensor | None


class Mask(Record):
    """Which keys a query sees, in the words of ``engines.attend``."""

    name: ClassVar[str] = ""

    @property
    def is_causal(self) -> bool:
        """Whether no query sees a key after it."""
        return False

    @property
    def sees_prefix(self) -> bool:
        """Whether every query sees all keys up to itself, and no others."""
        return False

    def hide(self, tokens: Tokens) -> Visibility:
        raise NotImplementedError


@dataclass(frozen=True)
class Causal(Mask):
    """Token i sees the tokens whose position is not after its own, itself included; equal positions see each other."""

    name: ClassVar[str] = "causal"

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def sees_prefix(self) -> bool:
        return True

    def hide(self, tokens: Tokens) -> Visibility:
        if tokens.positions is None:
            return {"causal": True}
        return {"visible": _heads(_lag(tokens.positions) >= 0, tokens)}


@dataclass(frozen=True)
class Window(Mask):
    """A sliding window: token i sees positions at a distance below ``width``; with ``causal`` only earlier ones and itself."""

    width: int
    causal: bool = True
    name: ClassVar[str] = "window"

    @property
    def is_causal(self) -> bool:
        return self.causal

    def __post_init__(self) -> None:
        if int(self.width) != self.width or self.width < 1:
            raise InputError(f"a window needs a whole width of at least 1, got {self.width}")

    def hide(self, tokens: Tokens) -> Visibility:
        if tokens.positions is None:
            return {"causal": self.causal, "window": int(self.width)}
        lag = _lag(tokens.positions)
        visible = lag.abs() < self.width
        return {"visible": _heads(visible & (lag >= 0) if self.causal else visible, tokens)}


@dataclass(frozen=True)
class Chunked(Mask):
    """Token i sees earlier tokens and itself within its chunk of ``size`` positions (Llama 4)."""

    size: int
    name: ClassVar[str] = "chunked"

    def __post_init__(self) -> None:
        if int(self.size) != self.size or self.size < 1:
            raise InputError(f"a chunk needs a whole size of at least 1, got {self.size}")

    @property
    def is_causal(self) -> bool:
        return True

    def hide(self, tokens: Tokens) -> Visibility:
        positions = tokens.positions
        if positions is None:
            positions = torch.arange(tokens.n, dtype=tokens.points.dtype, device=tokens.points.device)
        chunk = positions.div(self.size, rounding_mode="floor")
        return {"visible": _heads((_lag(positions) >= 0) & (_lag(chunk) == 0), tokens)}


@dataclass(frozen=True, eq=False)
class Visible(Mask):
    """Any boolean matrix (n, n): True where query i sees key j."""

    matrix: Tensor
    name: ClassVar[str] = "boolean"

    def __post_init__(self) -> None:
        matrix = torch.as_tensor(self.matrix)
        if matrix.dtype != torch.bool or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise InputError(
                f"a mask matrix must be boolean and square, (n, n), got {matrix.dtype} of shape {tuple(matrix.shape)}"
            )
        blind = ~matrix.any(dim=-1)
        if bool(blind.any()):
            raise InputError(
                f"row {int(torch.nonzero(blind)[0])} of the mask sees no key; every token must see at least one"
            )
        object.__setattr__(self, "matrix", matrix)

    def hide(self, tokens: Tokens) -> Visibility:
        if self.matrix.shape[0] != tokens.n:
            raise InputError(f"the mask is for {self.matrix.shape[0]} tokens, the state has {tokens.n}")
        return {"visible": self.matrix.to(tokens.points.device)}


def as_mask(mask: Any) -> Mask | None:
    """A mask from None, a name ("causal", "window:64"), a boolean matrix or a Mask."""
    if mask is None or isinstance(mask, Mask):
        return mask
    if isinstance(mask, str):
        if mask == "none":
            return None
        if mask == "causal":
            return Causal()
        if mask.startswith("window:") and mask.removeprefix("window:").isdigit():
            return Window(int(mask.removeprefix("window:")))
        raise InputError(
            f"mask {mask!r} is not known; give None, 'causal', 'window:64', a boolean (n, n) matrix or a Mask"
        )
    try:
        return Visible(torch.as_tensor(mask))
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"mask {mask!r} is not known; give None, a name, a boolean (n, n) matrix or a Mask") from None


def _lag(positions: Tensor) -> Tensor:
    return positions.unsqueeze(-1) - positions.unsqueeze(-2)


def _heads(visible: Tensor, tokens: Tokens) -> Tensor:
    """Room for the head axis where positions differ between ensemble members."""
    return visible.unsqueeze(-3) if visible.ndim > 2 else visible
