"""Normalisations as maps, with the manifold each one maps to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attractor.errors import InputError
from attractor.records import Record
from attractor.states.arrays import finite, floating


@dataclass(frozen=True, eq=False)
class Norm(Record):
    r"""``gain`` (d,) or None for ones, ``bias`` (d,) or None for zeros, ``eps`` inside the root.

    The image of a norm with gain g is an ellipsoid (RMSNorm: :math:`E_W` with :math:`W = \mathrm{diag}(g)^{-2}/d`) or a slice of one
    (LayerNorm, where the coordinates divided by g have mean zero); ``tangent`` projects a velocity to it.
    """

    gain: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0

    def __post_init__(self) -> None:
        for name in ("gain", "bias"):
            given = getattr(self, name)
            if given is not None:
                tensor = finite(floating(given, f"the norm's {name}"), f"the norm's {name}")
                if tensor.ndim != 1:
                    raise InputError(f"a norm's {name} has shape (d,), got {tuple(tensor.shape)}")
                object.__setattr__(self, name, tensor)
        if self.gain is not None and self.bias is not None and self.gain.shape != self.bias.shape:
            raise InputError(f"a norm's gain has shape {tuple(self.gain.shape)} but its bias {tuple(self.bias.shape)}")
        if self.eps < 0:
            raise InputError(f"a norm's eps must not be negative, got {self.eps}")

    @property
    def dim(self) -> int | None:
        """Dimension of the tokens, or None where any will do."""
        part = self.bias if self.gain is None else self.gain
        return None if part is None else part.shape[0]

    def centre(self, x: Tensor) -> Tensor:
        return x

    def __call__(self, x: Tensor) -> Tensor:
        x = self.centre(x)
        x = x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()
        x = x if self.gain is None else x * self.gain.to(x)
        return x if self.bias is None else x + self.bias.to(x)

    def tangent(self, x: Tensor, v: Tensor) -> Tensor:
        """The part of v tangent to the norm's image at a point x of it."""
        u = x if self.bias is None else x - self.bias.to(x)
        if self.gain is not None:
            if bool((self.gain == 0).any()):
                raise InputError("a norm with a zero gain flattens a coordinate; its image has no tangent projection")
            u, v = u / self.gain.to(x), v / self.gain.to(x)
        v = self.centre(v)
        v = v - u * ((u * v).sum(-1, keepdim=True) / (u * u).sum(-1, keepdim=True))
        return v if self.gain is None else v * self.gain.to(x)


@dataclass(frozen=True, eq=False)
class LayerNorm(Norm):
    r""":math:`g \odot (x - \bar x)/\sqrt{\mathrm{var}(x) + \epsilon} + b` [ba2016layer]."""

    def centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    def citations(self) -> tuple[str, ...]:
        return ("ba2016layer",)


@dataclass(frozen=True, eq=False)
class RMSNorm(Norm):
    r""":math:`g \odot x/\sqrt{\mathrm{mean}(x^2) + \epsilon}` [zhang2019root]."""

    def citations(self) -> tuple[str, ...]:
        return ("zhang2019root",)
