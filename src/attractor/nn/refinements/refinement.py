r"""What a refinement is: a learned term of the scores, carried by further coordinates of queries and keys.

.. math:: s_{ij} = \text{scale}\,(\langle q_i, k_j\rangle + \langle a_i, b_j\rangle)
                = \text{scale}\,\langle [q_i ; a_i], [k_j ; b_j]\rangle

so that fused attention kernels run as they are. The coordinates are joined after positions have turned queries and keys.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError
from attractor.nn.forms import Formed
from attractor.nn.weights import Weights

Sign = Literal["+", "-", "free"]
START = 0.05  # of a signed strength, as in the published code


class Refinement(Formed):
    r"""Strengths :math:`\lambda` of the given ``shape``, by sign.

    "+" and "-" are :math:`\pm\mathrm{softplus}(\theta)`, never zero; "free" is :math:`\theta` itself, zero at the start unless ``value``
    says otherwise.
    """

    name: ClassVar[str] = ""
    default_sign: ClassVar[Sign] = "free"
    sizes: tuple[int, int] | None = None  # dimension and heads of the layer that it is for

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
        start = self.value if self.sign == "free" else math.log(math.expm1(self.value))
        self.theta = nn.Parameter(torch.full(shape, start))
        self._known: tuple[int, int, bool] | None = None
        self.mark_form()

    @property
    def form(self) -> str:
        return f"{self.name or type(self).__name__} of sign {self.sign!r}"

    def check(self, dim: int, heads: int) -> None:
        """Refuse a layer of other sizes."""
        if self.sizes is not None and self.sizes != (dim, heads):
            own, other = self.sizes
            raise InputError(
                f"the {self.name} was made for dimension {own} and {other} heads, the layer has {dim} and {heads}: "
                f"make it as {type(self).__name__}({dim}, {heads}), or give its name {self.name!r}"
            )

    def check_metric(self, metric: Tensor | None) -> None:
        """Refuse a layer without what the term reads of its metric; most read nothing."""

    @property
    def strength(self) -> Tensor:
        r""":math:`\lambda`, of the shape of the parameter."""
        if self.sign == "free":
            return self.theta
        return functional.softplus(self.theta) if self.sign == "+" else -functional.softplus(self.theta)

    def idle(self) -> bool:
        """Whether all strengths are exactly zero.

        The answer waits for the device, so a no is kept while the parameter is the same, and in training for good: a step from zero
        leaves zero behind. A yes is asked again every time: fused optimisers change a parameter without a sign of it.
        """
        if self.sign != "free" or torch.compiler.is_compiling():
            return False
        if self.theta.is_inference():
            return not bool(self.theta.any())
        state = self.theta.data_ptr(), self.theta._version
        if self._known is not None and not self._known[2]:
            training = self.training and torch.is_grad_enabled()
            if self._known[:2] == state or training:
                return False
        self._known = *state, not bool(self.theta.detach().any())
        return self._known[2]

    def query_part(self, x: Tensor, output: Tensor, metric: Tensor | None) -> Tensor:
        """The coordinates a (..., h, n, e) from tokens x (..., n, d), with the output weights (d, h r)."""
        raise NotImplementedError

    def key_part(self, x: Tensor, v: Tensor) -> Tensor:
        """The coordinates b (..., h, n, e) from tokens x or values v (..., h, n, r)."""
        raise NotImplementedError

    def rows(self, weights: Weights, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The same as matrices (h, e, d) for queries and keys, and the bias (h, e) of the latter."""
        raise NotImplementedError

    def extend(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, weights: Weights, metric: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys with their further coordinates."""
        a, b = self.query_part(x, weights.o, metric), self.key_part(x, v)
        return torch.cat((q, a.to(q.dtype)), dim=-1), torch.cat((k, b.to(k.dtype)), dim=-1)

    def merge(self, weights: Weights, metric: Tensor | None) -> Weights:
        """Weights with further rows of query and key."""
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
