"""Attention layer interface, the unconstrained layer, and a Transformer block."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from attractor.errors import InputError
from attractor.laws import (
    ACTIVATIONS,
    MLP,
    Attention,
    Block,
    Kernel,
    LayerNorm,
    Norm,
    Pairing,
    RMSNorm,
    Rotary,
    Visibility,
    kernel_named,
    rotary_of,
    turn_pairs,
)
from attractor.nn.parameters import (
    Weights,
    check_forms,
    check_scale,
    check_size,
    head_size,
    split_heads,
    split_output,
    working_dtype,
)
from attractor.nn.refinements import Refinement, make_refinement
from attractor.registry import check_name


class AttentionLayer(nn.Module):
    r"""Multi-head self-attention, :math:`x_i \mapsto \sum_h O_h \sum_j w^h_{ij} V_h x_j`, for tokens (..., n, d).

    The weights :math:`w^h_{ij}` are those of ``kernel`` for the scores :math:`s\,\langle Q_h x_i, K_h x_j\rangle`; a subclass defines
    Q, K, V and O.

    Parameters
    ----------
    dim, heads : width d and number of heads.
    head_dim : dimension of queries and keys, dim / heads by default.
    kernel : "softmax" (PyTorch's fused attention), "l2", "sinkhorn", "sigmoid" or a ``Kernel``, as in ``at.Attention``.
    causal : token i attends to tokens 0..i only. The sinkhorn kernel couples all tokens before the mask is applied, so later tokens
        still affect its potentials and such a layer is not autoregressive. The sigmoid kernel averages over all n tokens, so its
        output depends on the length of the sequence.
    positions : None, "rotary" or Rotary(...). Absolute positions are added to tokens before the first layer, not here.
    scale : factor s of the scores, 1/sqrt(head_dim) by default.
    refinement : a learned term of the scores: None, "shift", "slice", "metric" or a ``Refinement``.
    dropout : probability of dropping an attention weight, for the softmax kernel.
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
        self._cached_tables: tuple[Any, tuple[Tensor, Tensor]] | None = None
        if self.positions is not None:
            self.positions.check(dim, self.head_dim)
        self.scale = self.head_dim**-0.5 if scale is None else check_scale(scale)
        if not 0.0 <= dropout < 1.0:
            raise InputError(f"dropout must be at least 0 and below 1, got {dropout}")
        if dropout and not self.kernel.scaled_dot_product:
            raise InputError(f"dropout of attention weights goes with the softmax kernel, not with {self.kernel.name}")
        self.dropout = float(dropout)
        self.refinement = make_refinement(refinement, dim, heads)
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
        """The current query, key, value and output weights, differentiable, in float32 at least."""
        raise NotImplementedError

    def scores_scale(self) -> Tensor | float:
        """The factor of the scores."""
        return self.scale

    def scale_value(self) -> float:
        """The factor of the scores as a number, in double precision."""
        return float(self.scale)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the layer to tokens x (..., n, d).

        ``mask`` is boolean, (n, n) or broadcast to (..., h, n, n), and True where a query attends to a key; a mask of padding (b, n)
        is given as ``mask[:, None, None]``.
        """
        if x.ndim < 2 or x.shape[-1] != self.dim:
            raise InputError(f"the layer reads tokens of dimension {self.dim}, got shape {tuple(x.shape)}")
        mask = None if mask is None else self._check_mask(mask, x)
        weights = self.weights().to(_compute(x))
        q, k, v = self._project(x, weights)
        if self.refinement is not None:
            q, k = self.refinement.extend(q, k, v, x, weights, self.metric_diagonal())
        moved = self._attend(q, k, v, mask)
        return functional.linear(moved.transpose(-3, -2).flatten(-2), weights.o, weights.output_bias)

    def _check_mask(self, mask: Tensor, x: Tensor) -> Tensor:
        """A mask that broadcasts to (..., h, n, n); raises for masks that are not boolean or have another shape."""
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            given = str(mask.dtype).removeprefix("torch.") if isinstance(mask, Tensor) else type(mask).__name__
            raise InputError(
                f"a mask is a boolean tensor, True where a query attends to a key; got {given}: convert 0 and 1 with mask.bool(), and "
                "additive masks with mask == 0"
            )
        n, leading = x.shape[-2], tuple(x.shape[:-2])
        wanted = (*leading, self.heads, n, n)
        try:
            broadcast = torch.broadcast_shapes(mask.shape, wanted) == wanted and mask.ndim >= 2
        except RuntimeError:
            broadcast = False
        if not broadcast or mask.shape[-2] not in (1, n) or mask.shape[-1] != n:
            padding = tuple(mask.shape) == (*leading, n)
            hint = ": give a mask of padding as mask[..., None, None, :]" if padding else ""
            raise InputError(
                f"a mask for tokens of shape {tuple(x.shape)} is ({n}, {n}) or broadcasts to {wanted}, got {tuple(mask.shape)}{hint}"
            )
        return mask

    def metric_diagonal(self, dtype: torch.dtype | None = None) -> Tensor | None:
        """The metric A (d,) if it is explicit and diagonal."""
        return None

    def _project(self, x: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (..., h, n, k), with rotary positions applied."""
        parts = []
        for name in ("query", "key", "value"):
            matrix, bias = getattr(weights, name), getattr(weights, f"{name}_bias")
            flat = functional.linear(x, matrix.flatten(0, 1), None if bias is None else bias.flatten())
            parts.append(flat.unflatten(-1, (self.heads, -1)).transpose(-3, -2))
        q, k, v = parts
        if self.positions is not None:
            cos, sin = self._rotary_tables(self.positions, q)
            q, k = turn_pairs(q, cos, sin), turn_pairs(k, cos, sin)
        return q, k, v

    def _rotary_tables(self, positions: Rotary, q: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines (n, pairs) for queries of this length; cached, since computing them synchronises the device."""
        if torch.compiler.is_compiling():
            return _make_tables(positions, q)
        wanted = q.shape[-2:], q.dtype, q.device, torch.is_inference_mode_enabled()
        if self._cached_tables is None or self._cached_tables[0] != wanted:
            self._cached_tables = wanted, _make_tables(positions, q)
        return self._cached_tables[1]

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
        hide: Visibility = {"causal": True} if self.causal else {}
        if mask is not None:
            hide = {"visible": mask & _causal(q.shape[-2], q.device) if self.causal else mask}
        if torch.compiler.is_compiling():
            # outside the compiled graph: the engine is chosen by properties of the tensors
            uncompiled: Any = torch.compiler.disable(_attend_by_engine)
            return uncompiled(self.kernel, q, k, v, scale, hide)
        return _attend_by_engine(self.kernel, q, k, v, scale, hide)

    def export(self, dtype: torch.dtype | None = None) -> tuple[Weights, Rotary | None]:
        """Weights and positions of an equivalent layer without refinement.

        A refinement becomes further rows of query and key, to which positions do not apply.
        """
        with _evaluation_mode(self):
            weights, positions = self.weights(dtype).detach(), self.positions
            if self.refinement is None:
                return weights, positions
            if positions is not None and positions.dim is None:
                positions = Rotary(positions.theta, self.head_dim)
            # strengths are functions of their parameters, computed in this precision
            refinement = self.refinement if dtype is None else copy.deepcopy(self.refinement).to(dtype)
            return refinement.merge(weights, self.metric_diagonal(dtype)).detach(), positions

    def law(self, dtype: torch.dtype = torch.float64) -> Attention:
        """The layer as an ``Attention`` law with a factored value map."""
        weights, positions = self.export(dtype)
        return Attention(
            weights.query,
            weights.key,
            weights.value,
            kernel=self.kernel,
            mask="causal" if self.causal else None,
            positions=positions,
            scale=self.scale_value(),
            output=weights.output,
            query_bias=weights.query_bias,
            key_bias=weights.key_bias,
            value_bias=weights.value_bias,
            output_bias=weights.output_bias,
        )

    def plain(self) -> PlainAttention:
        """An equivalent ``PlainAttention``, refinement included."""
        return PlainAttention.of(self)

    def extra_repr(self) -> str:
        words = [f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, kernel={self.kernel.label}"]
        words += ["causal"] if self.causal else []
        words += [self.positions.name] if self.positions is not None else []
        return ", ".join(words)


@contextmanager
def _evaluation_mode(layer: nn.Module) -> Iterator[None]:
    """Evaluation mode: in training, spectral normalisation updates its vectors whenever a weight is read."""
    training = [module for module in layer.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _positions(positions: Any) -> Rotary | None:
    if positions is None or rotary_of(positions) is positions:
        return positions
    if positions == "rotary":
        return Rotary()
    raise InputError(
        f"positions must be None, 'rotary' or Rotary(...), got {positions!r}; absolute positions are added before the first layer"
    )


def _make_tables(positions: Rotary, q: Tensor) -> tuple[Tensor, Tensor]:
    frequencies = positions.frequencies(q.shape[-1]).to(q.device)
    angles = torch.arange(q.shape[-2], device=q.device, dtype=torch.float64).unsqueeze(-1) * frequencies
    return angles.cos().to(q.dtype), angles.sin().to(q.dtype)


def _compute(x: Tensor) -> torch.dtype:
    """The precision of products of weights and tokens: that of autocast where it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _attend_by_engine(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, scale: Tensor | float, hide: Visibility
) -> Tensor:
    """Attention by one of the engines, which work in float32 and float64."""
    wide = working_dtype(q.dtype, None)
    with torch.autocast(q.device.type, enabled=False):
        return kernel.attend(Pairing(q.to(wide), k.to(wide), scale, None, hide), v.to(wide)).to(v.dtype)


def _causal(n: int, device: torch.device) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool, device=device).tril()


class PlainAttention(AttentionLayer):
    r"""Unconstrained attention with linear maps ``query``, ``key`` (h k, d), ``value`` (h r, d) and ``output`` (d, h r).

    Parameters
    ----------
    value_dim : dimension r of values, head_dim by default.
    bias : whether the linear maps have biases.
    temperature, gain : divisor of the scores and factor of the values; numbers, or "learned" for the exponential of a parameter that
        starts at 0, so that the sign is fixed.

    Other parameters are those of ``AttentionLayer``.
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
        self.temperature, self.log_temperature = _number_or_learned(temperature, "temperature", positive=True)
        self.gain, self.log_gain = _number_or_learned(gain, "gain")

    @classmethod
    def of(cls, layer: AttentionLayer) -> PlainAttention:
        """A plain layer equivalent to another layer."""
        weights, positions = layer.export()
        made = cls(
            layer.dim,
            layer.heads,
            head_dim=weights.query.shape[1],
            value_dim=weights.value.shape[1],
            kernel=layer.kernel,
            causal=layer.causal,
            positions=positions,
            scale=layer.scale_value(),
            dropout=layer.dropout,
        )
        for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            part, bias = getattr(made, name), getattr(weights, f"{name}_bias")
            part.weight = nn.Parameter(getattr(weights, letter).clone())
            part.bias = None if bias is None else nn.Parameter(bias.flatten().clone())
        return made.train(layer.training)

    def weights(self, dtype: torch.dtype | None = None) -> Weights:
        # read once each: a spectrally normalised weight is computed on every access
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
        if self.log_temperature is None:
            return self.scale / self.temperature
        return self.scale * (-self.log_temperature).exp()

    def scale_value(self) -> float:
        learned = self.log_temperature
        return self.scale / self.temperature if learned is None else self.scale * math.exp(-float(learned.detach()))


def _number_or_learned(value: Any, name: str, positive: bool = False) -> tuple[float, nn.Parameter | None]:
    """A number, or 1 and the logarithm of a learned factor."""
    if value == "learned":
        return 1.0, nn.Parameter(torch.zeros(()))
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not abs(float(value)) < float("inf") or (positive and float(value) <= 0):
        raise InputError(f"{name} must be a {'positive' if positive else 'finite'} number or 'learned', got {value!r}")
    return float(value), None


def spectral(layer: PlainAttention, part: str = "value", iterations: int = 1) -> PlainAttention:
    """Normalise a weight of a plain layer to spectral norm 1 during training, in place; the layer's ``gain`` then sets the bound.

    Parameters
    ----------
    layer : a plain layer.
    part : "query", "key", "value" or "output".
    iterations : steps of the power method at each forward pass in training; the bound holds up to its estimate.

    Undo with ``torch.nn.utils.parametrize.remove_parametrizations(layer.value, "weight")``.
    """
    if not isinstance(layer, PlainAttention):
        raise InputError(f"spectral normalisation is for PlainAttention, got {type(layer).__name__}: see its plain()")
    if part not in ("query", "key", "value", "output"):
        raise InputError(f"part must be query, key, value or output, got {part!r}")
    spectral_norm(getattr(layer, part), "weight", n_power_iterations=iterations)
    return layer


Placement = Literal["none", "pre", "post", "peri", "sandwich"] | str
NORMS = {"none": 0, "pre": 2, "post": 2, "peri": 4, "ngpt": 4}


def split_placement(placement: str) -> tuple[str, float]:
    """Return the kind of a placement and the share alpha of "ngpt:0.2"; raise for an unknown one."""
    kind, colon, text = placement.partition(":")
    kind = "peri" if kind == "sandwich" else kind
    check_name(kind, NORMS, "placement")
    try:
        share = float(text) if colon else 1.0
    except ValueError:
        share = 0.0
    if (colon and kind != "ngpt") or (kind == "ngpt" and not (colon and 0 < share <= 1)):
        raise InputError(
            f"placement ngpt takes a share above 0 and at most 1, as in ngpt:0.2, and no other takes one; got {placement!r}"
        )
    return kind, share


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, each added to the residual stream.

    Parameters
    ----------
    attention : a layer of ``attractor.nn``.
    hidden : hidden width of the feed-forward network, 4 d by default; 0 for none.
    placement : "none", "pre", "post", "peri" (also called "sandwich") or "ngpt:0.2" (every part moves a normalised token by this
        share towards its normalised output), as in ``at.Block``.
    norm : "layer" or "rms".
    activation : of the feed-forward network.
    dropout : probability of dropping an entry of what each part adds.
    drop_path : probability that a part is skipped for a sequence in training (stochastic depth).
    eps : of the norms.
    """

    def __init__(
        self,
        attention: AttentionLayer,
        hidden: int | None = None,
        *,
        placement: Placement = "pre",
        norm: Literal["layer", "rms"] = "layer",
        activation: str = "gelu",
        dropout: float = 0.0,
        drop_path: float = 0.0,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        dim, hidden = attention.dim, 4 * attention.dim if hidden is None else hidden
        self.placement, self.share = split_placement(placement)
        if norm not in ("layer", "rms"):
            raise InputError(f"norm must be 'layer' or 'rms', got {norm!r}")
        check_name(activation, ACTIVATIONS, "activation")
        self.attention, self.activation = attention, activation
        self.widen = nn.Linear(dim, hidden) if hidden else None
        self.narrow = nn.Linear(hidden, dim) if hidden else None
        kind = nn.LayerNorm if norm == "layer" else nn.RMSNorm
        self.norms = nn.ModuleList([kind(dim, eps=eps) for _ in range(NORMS[self.placement])])
        if not 0.0 <= drop_path < 1.0:
            raise InputError(f"drop_path must be at least 0 and below 1, got {drop_path}")
        self.dropout, self.drop_path = nn.Dropout(dropout), float(drop_path)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block to tokens x (..., n, d); ``mask`` as in ``AttentionLayer``."""
        x = self._add(x, 0, mask)
        return x if self.widen is None else self._add(x, 1, mask)

    def _add(self, x: Tensor, part: int, mask: Tensor | None) -> Tensor:
        before = self.norms[part](x) if self.placement in ("pre", "peri") else x
        moved = self.attention(before, mask) if part == 0 else self._feed(before)
        moved = self.norms[2 + part](moved) if self.placement in ("peri", "ngpt") else moved
        moved = self.share * (moved - x) if self.placement == "ngpt" else moved
        moved = self.dropout(moved)
        if self.drop_path and self.training:
            kept = 1 - self.drop_path
            moved = moved * moved.new_empty(moved.shape[0], *[1] * (moved.ndim - 1)).bernoulli_(kept) / kept
        x = x + moved
        return self.norms[part](x) if self.placement in ("post", "ngpt") else x

    def _feed(self, x: Tensor) -> Tensor:
        assert self.widen is not None
        assert self.narrow is not None
        return self.narrow(ACTIVATIONS[self.activation](self.widen(x)))

    def law(self, dtype: torch.dtype = torch.float64) -> Block:
        """The block as a ``Block`` law, whose discrete layer with step 1 is this block."""
        norms: list[Norm] = []
        for norm in self.norms:
            assert isinstance(norm, (nn.LayerNorm, nn.RMSNorm))
            gain, eps = norm.weight.detach().to(dtype), float(norm.eps or 0.0)
            centred = isinstance(norm, nn.LayerNorm)
            norms.append(LayerNorm(gain, norm.bias.detach().to(dtype), eps) if centred else RMSNorm(gain, eps=eps))
        feed = None
        if self.widen is not None and self.narrow is not None:
            parts = [part.detach().to(dtype) for line in (self.widen, self.narrow) for part in (line.weight, line.bias)]
            feed = MLP(*parts, activation=self.activation)
        placement = f"ngpt:{self.share}" if self.placement == "ngpt" else self.placement
        return Block(self.attention.law(dtype), feed, placement, tuple(norms))  # type: ignore[arg-type]
