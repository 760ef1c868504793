"""Refinements: learned terms of the scores, carried by extra coordinates of queries and keys."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError, StoreError, UnsupportedError
from attractor.nn.parameters import Formed, Weights
from attractor.registry import find


def can_fuse(*parts: Tensor) -> bool:
    """Whether the Triton kernels apply to these tensors (batch, h, n, c); compiled graphs fuse such copies themselves."""
    first = parts[0]
    if not first.is_cuda or first.dtype not in (torch.float16, torch.bfloat16, torch.float32) or not first.numel():
        return False
    if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    alike = all(x.ndim == 4 and x.dtype == first.dtype and x.shape[2] == first.shape[2] for x in parts)
    return alike and all(x.stride(-1) == 1 for x in parts) and _triton()


def _triton() -> bool:
    global _present
    if _present is None:
        from torch.utils._triton import has_triton

        _present = torch.version.hip is None and has_triton()
    return _present


_present: bool | None = None


Sign = Literal["+", "-", "free"]
START = 0.05  # of a signed strength, as in the published code


class Refinement(Formed):
    r"""A learned term of the scores, :math:`\langle a_i, b_j\rangle`, with strengths :math:`\lambda`.

    The term is carried by further coordinates a of queries and b of keys.

    Parameters
    ----------
    shape : shape of the strengths.
    sign : "+" and "-" are :math:`\pm\mathrm{softplus}(\theta)`, never zero; "free" is :math:`\theta` itself.
    value : initial size of the strengths, by default 0 for "free" and 0.05 otherwise.
    """

    name: ClassVar[str] = ""
    default_sign: ClassVar[Sign] = "free"
    sizes: tuple[int, int] | None = None  # dimension and heads of the layer

    def __init__(self, shape: tuple[int, ...], sign: Sign | None = None, value: float | None = None) -> None:
        super().__init__()
        self.sign = self.default_sign if sign is None else sign
        if self.sign not in ("+", "-", "free"):
            raise InputError(f"sign {sign!r} is not known; give '+', '-' or 'free'")
        self.value = (0.0 if self.sign == "free" else START) if value is None else float(value)
        if not math.isfinite(self.value):
            raise InputError(f"the strength of a refinement must be a finite number, got {value}")
        if self.sign != "free" and self.value <= 0:
            raise InputError(
                f"a strength of sign {self.sign!r} is {self.sign}softplus(theta), so its size must start above 0, got {value}; "
                "sign='free' may start at 0"
            )
        start = self.value if self.sign == "free" else self.value + math.log(-math.expm1(-self.value))
        self.theta = nn.Parameter(torch.full(shape, start))
        self._cached: tuple[int, int, bool] | None = None
        self.mark_form()

    @property
    def form(self) -> str:
        return f"{self.name or type(self).__name__} of sign {self.sign!r}"

    def check(self, dim: int, heads: int) -> None:
        """Raise if the refinement was made for a layer of other sizes."""
        if self.sizes is not None and self.sizes != (dim, heads):
            own, other = self.sizes
            raise InputError(
                f"the {self.name} was made for dimension {own} and {other} heads, the layer has {dim} and {heads}: "
                f"make it as {type(self).__name__}({dim}, {heads}), or give its name {self.name!r}"
            )

    def check_metric(self, metric: Tensor | None) -> None:
        """Raise if the refinement needs a metric and the layer has none."""

    @property
    def strength(self) -> Tensor:
        r""":math:`\lambda`, of the shape of the parameter."""
        if self.sign == "free":
            return self.theta
        return functional.softplus(self.theta) if self.sign == "+" else -functional.softplus(self.theta)

    def is_idle(self) -> bool:
        """Whether all strengths are exactly zero.

        The test synchronises with the device. A negative result is cached while the parameter is unchanged, and during training for
        good, because a step from zero leaves zero. A positive one is not: fused optimisers change a parameter without increasing
        its version.
        """
        if self.sign != "free" or torch.compiler.is_compiling():
            return False
        if self.theta.is_inference():
            return not bool(self.theta.any())
        state = self.theta.data_ptr(), self.theta._version
        if self._cached is not None and not self._cached[2]:
            training = self.training and torch.is_grad_enabled()
            if self._cached[:2] == state or training:
                return False
        self._cached = *state, not bool(self.theta.detach().any())
        return self._cached[2]

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        """Coordinates a (..., h, n, e) of queries from tokens x (..., n, d) and the output weights (d, h r)."""
        raise NotImplementedError

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        """Coordinates b (..., h, n, e) of keys from tokens x (..., n, d) or values v (..., h, n, r)."""
        raise NotImplementedError

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Rows (h, e, d) of query and key that give these coordinates, and the bias (h, e) of the latter."""
        raise NotImplementedError

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, weights: Weights, metric: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys with the coordinates of the refinement appended."""
        a, b = self.query_part(x, weights.o, metric), self.key_part(x, v)
        return torch.cat((q, a.to(q.dtype)), dim=-1), torch.cat((k, b.to(k.dtype)), dim=-1)

    def merge(self, weights: Weights, metric: Tensor | None) -> Weights:
        """Weights with the rows of the refinement appended to query and key."""
        query, key, bias = self.rows(weights, metric)
        more, wide = query.shape[-2], weights.query
        key_bias = weights.key_bias
        if key_bias is not None or bias is not None:
            key_bias = wide.new_zeros(wide.shape[:2]) if key_bias is None else key_bias
            bias = wide.new_zeros(wide.shape[0], more) if bias is None else bias
            key_bias = torch.cat((key_bias, bias.to(wide)), -1)
        return Weights(
            torch.cat((wide, query.to(wide)), -2),
            torch.cat((weights.key, key.to(wide)), -2),
            weights.value,
            weights.output,
            None if weights.query_bias is None else functional.pad(weights.query_bias, (0, more)),
            key_bias,
            weights.value_bias,
            weights.output_bias,
        )

    def extra_repr(self) -> str:
        return f"sign={self.sign}"


class Shift(Refinement):
    r"""Adds :math:`\lambda_h \langle x_i, O_h V_h x_j\rangle` to the scores, with one strength for each head."""

    name: ClassVar[str] = "shift"

    def __init__(self, dim: int, heads: int, sign: Sign | None = None, value: float | None = None) -> None:
        if dim < 1 or heads < 1:
            raise InputError(f"a shift needs a dimension and heads of at least 1, got {dim} and {heads}")
        super().__init__((heads,), sign, value)
        self.sizes = dim, heads

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        # scaling the weights is cheaper than scaling the result: they are smaller than tokens times channels
        scaled = output.unflatten(1, (self.theta.shape[0], -1)) * self.strength.to(output.dtype).unsqueeze(-1)
        return (x @ scaled.flatten(1).to(x.dtype)).unflatten(-1, scaled.shape[1:]).transpose(-3, -2)

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        return v

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        strength = self.strength.to(weights.query)[:, None, None]
        return strength * weights.output.mT, weights.value, weights.value_bias


class Slice(Refinement):
    r"""Adds :math:`\sum_c \lambda_{hc}\, x_{ic} x_{jc}` over the channels c of the head's slice of width d / h.

    One strength for each head and channel, "+" and 0.05 at the start by default. ``channels`` uses only the first channels of every
    slice, which makes queries and keys narrower.
    """

    name: ClassVar[str] = "slice"
    default_sign: ClassVar[Sign] = "+"

    def __init__(
        self,
        dim: int,
        heads: int,
        sign: Sign | None = None,
        value: float | None = None,
        *,
        channels: int | None = None,
    ) -> None:
        if dim < 1 or heads < 1 or dim % heads:
            raise InputError(
                f"a slice for each head needs a dimension that is a multiple of heads, got {dim} and {heads}"
            )
        self.heads, self.width = heads, dim // heads
        self.channels = self.width if channels is None else channels
        if not 1 <= self.channels <= self.width:
            raise InputError(f"a slice of {self.width} channels has 1 to {self.width} of them to use, got {channels}")
        super().__init__(self.strengths(), sign, value)
        self.sizes = dim, heads

    def strengths(self) -> tuple[int, ...]:
        """Shape of the strengths."""
        return self.heads, self.channels

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        return self.key_part(x, x) * self.diagonal(metric).to(x.dtype).unsqueeze(-2)

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.width))[..., : self.channels].transpose(-3, -2)

    def diagonal(self, metric: Tensor | None) -> Tensor:
        """Factors of the channels of each slice, (h, channels)."""
        return self.strength

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        identity = torch.eye(self.heads * self.width, dtype=weights.query.dtype, device=weights.query.device)
        key = identity.unflatten(0, (self.heads, self.width))[:, : self.channels]
        return self.diagonal(metric).to(key).unsqueeze(-1) * key, key, None


class MetricSlice(Slice):
    r"""Adds :math:`\lambda_h \sum_c A_c\, x_{ic} x_{jc}` over the head's slice, with the layer's diagonal metric A; zero at the start."""

    name: ClassVar[str] = "metric"
    default_sign: ClassVar[Sign] = "free"

    def strengths(self) -> tuple[int, ...]:
        return self.heads, 1

    def check_metric(self, metric: Tensor | None) -> None:
        if metric is None:
            raise UnsupportedError(
                "the metric refinement needs an explicit diagonal metric: DefiniteAttention(..., metric='diagonal') has one"
            )

    def diagonal(self, metric: Tensor | None) -> Tensor:
        self.check_metric(metric)
        assert metric is not None
        return self.strength.to(metric) * metric.unflatten(0, (self.heads, self.width))[:, : self.channels]


REFINEMENTS: dict[str, type[Shift] | type[Slice]] = {kind.name: kind for kind in (Shift, Slice, MetricSlice)}


FORM = re.compile(r"(\w+) of sign '(.+)'")


def restore_refinement(theta: Tensor, letters: Tensor | None, record: Any, dim: int, heads: int) -> Refinement:
    """A refinement from its stored parameter.

    Parameters
    ----------
    theta : the parameter, whose precision the refinement gets.
    letters : the stored ``form``; where there is none, the kind and the sign are those of ``record``.
    record : the options of ``refine`` in the configuration of the model.
    dim, heads : dimension and heads of the layer.
    """
    kind: Any
    sign: Any
    if letters is not None:
        named = FORM.fullmatch(bytes(letters.flatten().to(torch.uint8).tolist()).decode(errors="replace"))
        kind, sign = named.groups() if named else (None, None)
    else:
        kind, sign = (record or {}).get("kind"), (record or {}).get("sign")
    if kind not in REFINEMENTS:
        raise StoreError(
            "its refinement is of an unknown kind: the tensor form_letters and the configuration are damaged"
        )
    channels = theta.shape[-1] if kind == "slice" and theta.ndim == 2 else None
    made: Any = make_refinement(kind, dim, heads, sign, channels=channels)
    if made.theta.shape != theta.shape:
        raise StoreError(
            f"the strengths of its {kind} have the shape {tuple(theta.shape)}, not {tuple(made.theta.shape)}"
        )
    made = made.to(theta)
    with torch.no_grad():
        made.theta.copy_(theta)
    return made


def make_refinement(
    kind: str | Refinement | None,
    dim: int,
    heads: int,
    sign: Sign | None = None,
    value: float | None = None,
    channels: int | None = None,
) -> Refinement | None:
    """A refinement by name; a ``Refinement`` or None is returned unchanged."""
    if kind is None or isinstance(kind, Refinement):
        return kind
    made = find(kind, REFINEMENTS, "refinement")
    if issubclass(made, Slice):
        return made(dim, heads, sign, value, channels=channels)
    if channels is not None:
        raise InputError(
            f"channels are a choice of the slice, not of the {kind}: without all of them its sign is not safe"
        )
    return made(dim, heads, sign, value)
