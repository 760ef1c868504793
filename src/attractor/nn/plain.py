"""Ordinary multi-head attention with free weights: the layer to compare with, and what every other layer exports."""

from __future__ import annotations

from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attractor.attention import Kernel, Rotary
from attractor.errors import InputError
from attractor.nn.factors import working
from attractor.nn.layer import AttentionLayer
from attractor.nn.refinements import Refinement
from attractor.nn.sizes import check_size
from attractor.nn.weights import Weights, split_heads, split_output


class PlainAttention(AttentionLayer):
    r"""Four linear maps ``query``, ``key`` (h k, d), ``value`` (h r, d) and ``output`` (d, h r).

    ``temperature`` divides every score and ``gain`` multiplies every value: numbers, or "learned" from 1 on (as the exponential of a
    parameter, so that neither can change its sign). Further options are those of ``AttentionLayer``.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = False,
        kernel: Kernel | str = "softmax",
        causal: bool = False,
        positions: Rotary | str | None = None,
        scale: float | None = None,
        refinement: Refinement | str | None = None,
        dropout: float = 0.0,
        temperature: float | Literal["learned"] = 1.0,
        gain: float | Literal["learned"] = 1.0,
    ) -> None:
        shared: dict[str, Any] = dict(kernel=kernel, causal=causal, positions=positions, scale=scale, dropout=dropout)
        super().__init__(dim, heads, head_dim=head_dim, refinement=refinement, **shared)
        self.value_dim = self.head_dim if value_dim is None else value_dim
        check_size("value_dim", self.value_dim)
        if self.refinement is not None:
            self.refinement.check_metric(None)
        self.query = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.key = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.value = nn.Linear(dim, heads * self.value_dim, bias=bias)
        self.output = nn.Linear(heads * self.value_dim, dim, bias=bias)
        self.temperature, self.log_temperature = _positive(temperature, "temperature")
        self.gain, self.log_gain = _factor(gain)

    @classmethod
    def of(cls, layer: AttentionLayer) -> PlainAttention:
        """A plain layer that computes what another one computes."""
        weights, positions = layer.exported()
        scale = layer.scores_scale()
        made = cls(
            layer.dim,
            layer.heads,
            head_dim=weights.query.shape[1],
            value_dim=weights.value.shape[1],
            kernel=layer.kernel,
            causal=layer.causal,
            positions=positions,
            scale=float(scale.detach()) if isinstance(scale, Tensor) else scale,
            dropout=layer.dropout,
        )
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            part, bias = getattr(made, name), getattr(weights, f"{name}_bias")
            part.weight = nn.Parameter(getattr(weights, letter).clone())
            part.bias = None if bias is None else nn.Parameter(bias.flatten().clone())
        return made.train(layer.training)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        # each read once: a normalised weight is made at every reading
        query_weight, key_weight, value_weight = self.query.weight, self.key.weight, self.value.weight
        wide = working(query_weight.dtype, dtype)
        heads, gain = self.heads, self.gain if self.log_gain is None else self.log_gain.exp().to(wide)
        biases = [None if part.bias is None else part.bias.to(wide) for part in (self.query, self.key, self.value)]
        query, key, value = (None if bias is None else split_heads(bias, heads) for bias in biases)
        return Weights(
            split_heads(query_weight.to(wide), heads),
            split_heads(key_weight.to(wide), heads),
            gain * split_heads(value_weight.to(wide), heads),
            split_output(self.output.weight.to(wide), heads),
            query,
            key,
            None if value is None else gain * value,
            None if self.output.bias is None else self.output.bias.to(wide),
        )

    def scores_scale(self) -> Tensor | float:
        return (
            self.scale / self.temperature
            if self.log_temperature is None
            else self.scale * (-self.log_temperature).exp()
        )


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _positive(value: float | str, name: str) -> tuple[float, nn.Parameter | None]:
    if value == "learned":
        return 1.0, nn.Parameter(torch.zeros(()))
    if not _number(value) or not 0 < float(value) < float("inf"):
        raise InputError(f"{name} must be a positive number or 'learned', got {value!r}")
    return float(value), None


def _factor(value: float | str) -> tuple[float, nn.Parameter | None]:
    if value == "learned":
        return 1.0, nn.Parameter(torch.zeros(()))
    if not _number(value) or not abs(float(value)) < float("inf"):
        raise InputError(f"gain must be a finite number or 'learned', got {value!r}")
    return float(value), None
