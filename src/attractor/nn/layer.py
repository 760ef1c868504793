"""Attention layer interface and the unconstrained layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from attractor.errors import InputError
from attractor.laws import Attention, Kernel, Pairing, Rotary, kernel_named, rotary_of, turn_pairs
from attractor.nn.parameters import (
    Weights,
    check_forms,
    check_size,
    finite_scale,
    head_size,
    split_heads,
    split_output,
    working_dtype,
)
from attractor.nn.refinements import Refinement, refinement_named


class AttentionLayer(nn.Module):
    r"""Multi-head self-attention, x (..., n, d) to :math:`\sum_h O_h \sum_j w^h_{ij} V_h x_j`, with weights that a subclass makes.

    Parameters
    ----------
    dim, heads : sizes; ``head_dim`` is dim / heads unless given.
    kernel : "softmax" (through PyTorch's fused attention), "l2", "sinkhorn", "sigmoid", or a Kernel: those of ``at.Attention``.
    causal : whether token i sees tokens 0..i only. Under sinkhorn the coupling is made of all tokens first, as in the dynamics, so
        a later token still moves the potentials: such a layer is no autoregressive model. Sigmoid averages over all n tokens,
        so its output is scaled by the length of the sequence.
    positions : None, "rotary" or Rotary(...). Absolute positions are added to tokens before the first layer, not here.
    scale : of the scores, 1/sqrt(head_dim) unless given.
    refinement : None, "shift", "slice", "metric", or a Refinement: a learned term of the scores.
    dropout : of attention weights, softmax only.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        kernel: Kernel | str = "softmax",
        causal: bool = False,
        positions: Rotary | str | None = None,
        scale: float | None = None,
        refinement: Refinement | str | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("dim", dim), ("heads", heads), ("head_dim", 1 if head_dim is None else head_dim)):
            check_size(name, size)
        self.dim, self.heads = dim, heads
        self.head_dim = head_size(dim, heads) if head_dim is None else head_dim
        self.kernel, self.causal = kernel_named(kernel), bool(causal)
        self.positions = _positions(positions)
        self._kept: tuple[Any, tuple[Tensor, Tensor]] | None = None
        if self.positions is not None:
            self.positions.check(dim, self.head_dim)
        self.scale = self.head_dim**-0.5 if scale is None else finite_scale(scale)
        if not 0.0 <= dropout < 1.0:
            raise InputError(f"dropout must be at least 0 and below 1, got {dropout}")
        if dropout and not self.kernel.scaled_dot_product:
            raise InputError(f"dropout of attention weights goes with the softmax kernel, not with {self.kernel.name}")
        self.dropout = float(dropout)
        self.refinement = refinement_named(refinement, dim, heads)
        if self.refinement is not None:
            self.refinement.check(dim, heads)
        if self.refinement is not None and not self.kernel.bilinear:
            raise InputError(
                f"refinements add to scores, and the {self.kernel.name} kernel has distances instead: take another kernel"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **options: Any) -> None:
        check_forms(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **options)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        """The plain weights that the layer has now, differentiable, in float32 at least."""
        raise NotImplementedError

    def scores_scale(self) -> Tensor | float:
        """What multiplies every score."""
        return self.scale

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (..., n, d); ``mask`` is boolean, (n, n) or broadcast to (..., h, n, n), True where a query sees a key."""
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise InputError(f"the layer reads tokens of dimension {self.dim}, got shape {tuple(x.shape)}")
        weights = self.weights().to(_compute(x))
        q, k, v = self._project(x, weights)
        if self.refinement is not None:
            q, k = self.refinement.extend(q, k, v, x, weights, self.metric_diagonal())
        moved = self._attend(q, k, v, mask)
        return functional.linear(moved.transpose(-3, -2).flatten(-2), weights.o, weights.output_bias)

    def metric_diagonal(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """The metric A (d,) where it is explicit and diagonal."""
        return None

    def _project(self, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., h, n, k), turned by positions."""
        parts = []
        for name in ("query", "key", "value"):
            matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
            flat = functional.linear(x, matrix.flatten(0, 1), None if bias is None else bias.flatten())
            parts.append(flat.unflatten(-1, (self.heads, -1)).transpose(-3, -2))
        q, k, v = parts
        if self.positions is not None:
            cos, sin = self._turns(self.positions, q)
            q, k = turn_pairs(q, cos, sin), turn_pairs(k, cos, sin)
        return q, k, v

    def _turns(self, positions: Rotary, q: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (n, pairs) for queries of this length; the last ones are kept, since making them waits for the device."""
        if torch.compiler.is_compiling():
            return _tables(positions, q)
        wanted = q.shape[-2:], q.dtype, q.device, torch.is_inference_mode_enabled()
        if self._kept is None or self._kept[0] != wanted:
            self._kept = wanted, _tables(positions, q)
        return self._kept[1]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        scale = self.scores_scale()
        if self.kernel.scaled_dot_product:
            if isinstance(scale, Tensor):
                q, scale = q * scale.to(q.dtype), 1.0
            visible = mask if mask is None or not self.causal else mask & _causal(q.shape[-2], q.device)
            causal, dropout = self.causal and mask is None, self.dropout if self.training else 0.0
            return functional.scaled_dot_product_attention(
                q, k, v, visible, is_causal=causal, dropout_p=dropout, scale=scale
            )
        hide: dict[str, object] = {"causal": True} if self.causal else {}
        if mask is not None:
            hide = {"visible": mask & _causal(q.shape[-2], q.device) if self.causal else mask}
        if torch.compiler.is_compiling():
            # outside any compiled graph: which engine runs is decided by what the tensors are
            apart: Any = torch.compiler.disable(_by_engine)
            return apart(self.kernel, q, k, v, scale, hide)
        return _by_engine(self.kernel, q, k, v, scale, hide)

    def exported(self, dtype: torch.dtype | None = None) -> tuple[Weights, Rotary | None]:
        """Plain weights and positions that compute what the layer computes.

        A refinement becomes further rows of query and key, which positions leave alone.
        """
        with _looked_at(self):
            weights, positions = self.weights(dtype).detach(), self.positions
            if self.refinement is None:
                return weights, positions
            if positions is not None and positions.dim is None:
                positions = Rotary(positions.theta, self.head_dim)
            return self.refinement.merge(weights, self.metric_diagonal(dtype)).detach(), positions

    def law(self, dtype: torch.dtype = torch.float64) -> Attention:
        """The layer as a law of motion, its value map factored."""
        weights, positions = self.exported(dtype)
        scale = self.scores_scale()
        return Attention(
            weights.query,
            weights.key,
            weights.value,
            kernel=self.kernel,
            mask="causal" if self.causal else None,
            positions=positions,
            scale=float(scale.detach()) if isinstance(scale, Tensor) else scale,
            output=weights.output,
            query_bias=weights.query_bias,
            key_bias=weights.key_bias,
            value_bias=weights.value_bias,
            output_bias=weights.output_bias,
        )

    def plain(self) -> PlainAttention:
        """A layer with free query, key, value and output weights that computes the same, refinement included."""

        return PlainAttention.of(self)

    def extra_repr(self) -> str:
        words = [f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, kernel={self.kernel.name}"]
        words += ["causal"] if self.causal else []
        words += [self.positions.name] if self.positions is not None else []
        return ", ".join(words)


@contextmanager
def _looked_at(layer: nn.Module) -> Iterator[None]:
    """As in evaluation: spectral normalisation would move its vectors at every look at a weight in training."""
    training = [module for module in layer.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _positions(positions: Any) -> Rotary | None:
    if positions is None or rotary_of(positions) is not None:
        return positions
    if positions == "rotary":
        return Rotary()
    raise InputError(
        f"positions must be None, 'rotary' or Rotary(...), got {positions!r}; absolute positions are added before the first layer"
    )


def _tables(positions: Rotary, q: Tensor) -> tuple[Tensor, Tensor]:
    frequencies = positions.frequencies(q.shape[-1]).to(q.device)
    angles = torch.arange(q.shape[-2], device=q.device, dtype=torch.float64).unsqueeze(-1) * frequencies
    return angles.cos().to(q.dtype), angles.sin().to(q.dtype)


def _compute(x: Tensor) -> torch.dtype:
    """Return the dtype of products of weights and tokens: that of autocast if it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _by_engine(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float, hide: dict[str, object]
) -> Tensor:
    """A kernel of the dynamics, whose engines work in float32 and float64."""
    wide = working_dtype(q.dtype, None)
    with torch.autocast(q.device.type, enabled=False):
        return kernel.attend(Pairing(q.to(wide), k.to(wide), scale, None, hide), v.to(wide)).to(v.dtype)


def _causal(n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


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
        wide = working_dtype(query_weight.dtype, dtype)
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


def spectral(layer: PlainAttention, part: str = "value", iterations: int = 1) -> PlainAttention:
    """Keep the spectral norm of a plain layer's weight at 1 while it trains, in place; ``gain`` of the layer then sets the bound.

    ``part`` is "query", "key", "value" or "output". One step of the power method refreshes the estimate at each training forward, so the
    bound holds up to that estimate. Undo with ``torch.nn.utils.parametrize.remove_parametrizations(layer.value, "weight")``.
    """
    if not isinstance(layer, PlainAttention):
        raise InputError(f"spectral normalisation is for PlainAttention, got {type(layer).__name__}: see its plain()")
    if part not in ("query", "key", "value", "output"):
        raise InputError(f"part must be query, key, value or output, got {part!r}")
    spectral_norm(getattr(layer, part), "weight", n_power_iterations=iterations)
    return layer
