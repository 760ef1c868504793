"""Several models of one shape, evaluated together by batched matrix products."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from attractor.errors import UnsupportedError
from attractor.laws import ACTIVATIONS, turn_pairs
from attractor.nn import AttentionLayer, Shift, Slice, TransformerBlock
from attractor.training.models import group_parameters, mean_cosine


@dataclass(frozen=True)
class SharedShape:
    """What all models and layers share. ``share`` belongs to the placement "ngpt"; ``extra`` is the refinement: "none", "shift" or
    "slice"; ``pad`` pads values to the width of keys, as the fastest attention kernel requires."""

    heads: int
    placement: str
    activation: str
    scale: float
    causal: bool
    extra: str
    eps: float
    compute: torch.dtype
    pad: bool
    share: float = 1.0


@dataclass(frozen=True)
class AttentionMaps:
    """Query, key, value (s, h, k, d) and output (s, h, d, k) of one layer; ``strength`` (s, h, channels) or (s, h, 1) of a refinement;
    ``scale`` (s,) where it is learned."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    scale: Tensor | None = None
    strength: Tensor | None = None


def block(
    x: Tensor, maps: AttentionMaps, rest: dict[str, Tensor], turns: tuple[Tensor, Tensor] | None, shape: SharedShape
) -> Tensor:
    """Apply a block; ``rest`` holds its norms and feed-forward weights under the names of ``TransformerBlock``."""
    x = _add(x, 0, lambda y: attention(y, maps, turns, shape), rest, shape)
    return x if "widen.weight" not in rest else _add(x, 1, lambda y: _feed(y, rest, shape), rest, shape)


def attention(x: Tensor, maps: AttentionMaps, turns: tuple[Tensor, Tensor] | None, shape: SharedShape) -> Tensor:
    """Apply an attention layer to x (s, b, n, d)."""
    models, batch = x.shape[:2]
    rows = [maps.query, maps.key, maps.value]
    if shape.extra == "shift":
        assert maps.strength is not None
        rows.append(maps.strength.unsqueeze(-1) * maps.output.mT)
    sizes = [part.shape[1] * part.shape[2] for part in rows]
    projected = linear(x, torch.cat([part.flatten(1, 2) for part in rows], 1).to(shape.compute))
    parts = [_split(part, shape.heads) for part in projected.split(sizes, -1)]
    q, k, v = parts[:3]
    if turns is not None:
        q, k = turn_pairs(q, *turns), turn_pairs(k, *turns)
    if shape.extra == "shift":
        q, k = torch.cat((q, parts[3]), -1), torch.cat((k, v), -1)
    elif shape.extra == "slice":
        assert maps.strength is not None
        slices = x.to(shape.compute).unflatten(-1, (shape.heads, -1))[..., : maps.strength.shape[-1]]
        strong = slices * maps.strength.to(shape.compute)[:, None, None]
        q = torch.cat((q, strong.flatten(0, 1).transpose(1, 2)), -1)
        k = torch.cat((k, slices.flatten(0, 1).transpose(1, 2)), -1)
    scale = shape.scale
    if maps.scale is not None:
        q = (q.unflatten(0, (models, batch)) * maps.scale.to(q.dtype)[:, None, None, None, None]).flatten(0, 1)
        scale = 1.0
    width = v.shape[-1]
    if shape.pad and (shape.causal or q.shape[-2] > SHORT) and q.shape[-1] > width:
        v = functional.pad(v, (0, q.shape[-1] - width))
    if shape.pad and not shape.causal and q.shape[-2] <= SHORT:
        moved = torch.softmax((q @ k.mT).float() * scale, -1).to(v.dtype) @ v
    else:
        moved = functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal, scale=scale)
    moved = moved[..., :width]
    joined = moved.transpose(1, 2).flatten(-2).unflatten(0, (models, batch))
    return linear(joined, maps.output.transpose(1, 2).flatten(2).to(shape.compute))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply x (s, ..., d) by weight (s, out, d), in the precision of the weight."""
    flat = x.flatten(1, -2).to(weight.dtype)
    made = (
        torch.bmm(flat, weight.mT)
        if bias is None
        else torch.baddbmm(bias.to(weight.dtype).unsqueeze(1), flat, weight.mT)
    )
    return made.unflatten(1, x.shape[1:-1])


def norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply LayerNorm to x (s, b, n, d) with gains and biases (s, d)."""
    return functional.layer_norm(x, x.shape[-1:], eps=eps) * gain[:, None, None] + bias[:, None, None]


def _split(flat: Tensor, heads: int) -> Tensor:
    """Reshape (s, b, n, h k) to (s b, h, n, k)."""
    return flat.flatten(0, 1).unflatten(-1, (heads, -1)).transpose(1, 2)


def _add(x: Tensor, part: int, move: Callable[[Tensor], Tensor], rest: dict[str, Tensor], shape: SharedShape) -> Tensor:
    def normed(y: Tensor, number: int) -> Tensor:
        return norm(y, rest[f"norms.{number}.weight"], rest[f"norms.{number}.bias"], shape.eps)

    before = normed(x, part) if shape.placement in ("pre", "peri") else x
    moved = move(before)
    moved = normed(moved.to(x.dtype), 2 + part) if shape.placement in ("peri", "ngpt") else moved
    x = x + (shape.share * (moved - x) if shape.placement == "ngpt" else moved)
    return normed(x, part) if shape.placement in ("post", "ngpt") else x


def _feed(x: Tensor, rest: dict[str, Tensor], shape: SharedShape) -> Tensor:
    wide = linear(x, rest["widen.weight"].to(shape.compute), rest["widen.bias"])
    return linear(ACTIVATIONS[shape.activation](wide), rest["narrow.weight"].to(shape.compute), rest["narrow.bias"])


BLOCKS = "backbone.blocks."
SHORT = 128  # tokens of an image up to which all scores are stored on a GPU, which is faster than the fused kernel
ALIGNED = 64  # columns of a product in bfloat16
POWER = "parametrizations.weight.0._"  # vectors of spectral normalisation


class StackedModels:
    """Stacked ``parameters`` and ``buffers`` of models, by name; "backbone.blocks.x" is the parameter x of every block.
    Subclasses add the embedding and the loss."""

    def __init__(self, models: list[Any], device: torch.device, compute: torch.dtype, compiled: bool = False) -> None:
        self.models, self.device = models, device
        first = models[0].backbone.blocks[0]
        assert isinstance(first, TransformerBlock)
        self.parameters = {
            name: nn.Parameter(part.to(device)) for name, part in _stack(models, "named_parameters").items()
        }
        self.buffers = {name: part.to(device) for name, part in _stack(models, "named_buffers").items()}
        self.loops, self.inject = models[0].backbone.loops, models[0].backbone.inject
        self.penalty = models[0].penalty
        # solvers of linear systems cannot be part of a CUDA graph
        self.solves = getattr(first.attention, "orientation", "token") == "official"
        self.fixed_maps: dict[str, Tensor] | None = None
        self.template = _LayerWeights(copy.deepcopy(first.attention)).eval().to(device)
        self.shape = _shape(first, compute, device.type == "cuda")
        self.positions = first.attention.positions
        self.block: Callable[..., Tensor] = torch.compile(block, fullgraph=True, dynamic=False) if compiled else block
        self.compiled = compiled
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Return the groups of ``parameter_groups`` for the stacked parameters."""
        stacked = self.parameters.items()
        return group_parameters(
            ((name, part, part.ndim - (2 if name.startswith(BLOCKS) else 1)) for name, part in stacked), decay
        )

    def losses(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and penalty (s,) of every model on its own batch, (s, b, ...) each."""
        self._cosines: list[Tensor] = []
        loss = self.score(*batch)[0]
        penalty = torch.stack(self._cosines).mean(0) if self._cosines else torch.zeros_like(loss)
        return loss, self.penalty * penalty

    def score(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss and score (s,) of every model on its own batch."""
        raise NotImplementedError

    def apply_backbone(self, x: Tensor) -> Tensor:
        """Add learned positions to tokens (s, b, n, d) and apply all blocks."""
        if "backbone.places" in self.parameters:
            x = x + self.parameters["backbone.places"][:, None, : x.shape[-2]]
        return self.apply_blocks(x)

    def last_norm(self) -> tuple[Tensor | None, Tensor | None]:
        """Return gain and bias of the norm after the last block, None without one."""
        return self.parameters.get("backbone.norm.weight"), self.parameters.get("backbone.norm.bias")

    def apply_blocks(self, x: Tensor) -> Tensor:
        """Apply all blocks to tokens (s, b, n, d)."""
        maps = self.maps()
        rest: list[dict[str, Tensor]] = [{} for _ in maps]
        for name, parameter in self.parameters.items():
            if name.startswith(BLOCKS) and not name.startswith(BLOCKS + "attention."):
                inner = name.removeprefix(BLOCKS)
                for one, part in zip(rest, self._aligned(inner, parameter).unbind(0), strict=True):
                    one[inner] = part
        turns, first = self._turns(x.shape[-2]), x
        # only steps of training are compiled: evaluations are few, and each would compile a second graph
        step = self.block if torch.is_grad_enabled() else block
        for loop in range(self.loops):
            x = x + first if self.inject and loop else x
            for one, others in zip(maps, rest, strict=True):
                x = step(x, one, others, turns, self.shape)
                if self.penalty and torch.is_grad_enabled():
                    self._cosines.append(mean_cosine(x).mean(1))
        return x

    def _aligned(self, name: str, parameter: Tensor) -> Tensor:
        """Pad the hidden width with zeros to a multiple of ``ALIGNED`` on a GPU, where others have slow products."""
        if not self.shape.pad or not name.startswith(("widen.", "narrow.weight")):
            return parameter
        axis = -1 if name in ("widen.bias", "narrow.weight") else -2
        missing = -parameter.shape[axis] % ALIGNED
        return functional.pad(parameter, (0, missing) if axis == -1 else (0, 0, 0, missing)) if missing else parameter

    def maps(self) -> list[AttentionMaps]:
        """Return the attention weights of every layer, made now or given as ``fixed_maps``."""
        parts = {name: part.unbind(0) for name, part in (self.fixed_maps or self.make_maps()).items()}
        layers = len(next(iter(parts.values())))
        return [AttentionMaps(**{name: part[layer] for name, part in parts.items()}) for layer in range(layers)]

    def is_attention(self, name: str) -> bool:
        """Whether a stacked parameter is one of the attention layers."""
        return name.startswith(BLOCKS + "attention.")

    def make_maps(self) -> dict[str, Tensor]:
        """Return the attention weights of all layers by name, (layers, s, ...) each."""
        prefix = BLOCKS + "attention."
        state = {
            "layer." + name.removeprefix(prefix): part
            for name, part in (self.parameters | self.buffers).items()
            if name.startswith(prefix)
        }
        flat = {name: part.flatten(0, 1) for name, part in state.items()}
        made = torch.vmap(lambda one: functional_call(self.template, one, ()))(flat)
        layers = next(iter(state.values())).shape[0]
        return {name: part.unflatten(0, (layers, -1)) for name, part in made.items()}

    @torch.no_grad()
    def power_step(self) -> None:
        """Update spectral normalisation by one step of the power method, as a layer does at every training step."""
        for name, weight in self.parameters.items():
            if not name.endswith("parametrizations.weight.original"):
                continue
            stem = name.removesuffix("parametrizations.weight.original") + POWER
            u, v = self.buffers[stem + "u"], self.buffers[stem + "v"]
            u.copy_(nn.functional.normalize((weight @ v.unsqueeze(-1)).squeeze(-1), dim=-1))
            v.copy_(nn.functional.normalize((weight.mT @ u.unsqueeze(-1)).squeeze(-1), dim=-1))

    @torch.no_grad()
    def clip(self, gradients: list[Tensor], largest: float) -> list[Tensor]:
        """Scale the gradients of each model to a norm of at most ``largest``."""
        square: Tensor | float = 0.0
        for name, gradient in zip(self.parameters, gradients, strict=True):
            axis = 1 if name.startswith(BLOCKS) else 0
            square = square + gradient.float().square().sum([k for k in range(gradient.ndim) if k != axis])
        assert isinstance(square, Tensor)
        factor = (largest / (square.sqrt() + 1e-6)).clamp_max(1.0)
        shaped = []
        for name, gradient in zip(self.parameters, gradients, strict=True):
            axis = 1 if name.startswith(BLOCKS) else 0
            small = gradient * factor.reshape([-1 if k == axis else 1 for k in range(gradient.ndim)])
            shaped.append(small.contiguous())  # the fused optimiser requires the strides of the parameter
        return shaped

    @torch.no_grad()
    def unstack(self) -> list[Any]:
        """Copy the current weights back into the models and return them."""
        for number, model in enumerate(self.models):
            for kind, stacked in (("named_parameters", self.parameters), ("named_buffers", self.buffers)):
                for name, part in getattr(model, kind)():
                    layer, inner = _place(name)
                    found = stacked[inner]
                    part.copy_(found[number] if layer is None else found[layer, number])
        return self.models

    def _turns(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Return cosines and sines of rotary positions, cached by length."""
        if self.positions is None:
            return None
        if n not in self._tables:
            frequencies = self.positions.frequencies(self.template.layer.head_dim)
            angles = torch.arange(n, dtype=torch.float64).unsqueeze(-1) * frequencies
            self._tables[n] = tuple(part.to(self.device, self.shape.compute) for part in (angles.cos(), angles.sin()))  # type: ignore[assignment]
        return self._tables[n]


class _LayerWeights(nn.Module):
    """Module whose output is the weights of an attention layer by name, for ``functional_call``."""

    def __init__(self, layer: AttentionLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> dict[str, Tensor]:
        weights, refinement = self.layer.weights(), self.layer.refinement
        made = {name: getattr(weights, name) for name in ("query", "key", "value", "output")}
        scale = self.layer.scores_scale()
        if isinstance(scale, Tensor):
            made["scale"] = scale
        if isinstance(refinement, Slice):
            made["strength"] = refinement.diagonal(self.layer.metric_diagonal())
        elif isinstance(refinement, Shift):
            made["strength"] = refinement.strength.unsqueeze(-1)
        return made


def _shape(first: TransformerBlock, compute: torch.dtype, gpu: bool) -> SharedShape:
    layer = first.attention
    usual = layer.kernel.scaled_dot_product and layer.weights().query_bias is None
    usual = usual and all(isinstance(norm, nn.LayerNorm) for norm in first.norms)
    if not usual or layer.dropout or first.dropout.p or first.drop_path:
        raise UnsupportedError("a study trains softmax attention without biases, with LayerNorm and without dropout")
    scale, extra = layer.scores_scale(), layer.refinement
    kind = "none" if extra is None else "shift" if isinstance(extra, Shift) else "slice"
    return SharedShape(
        heads=layer.heads,
        placement=first.placement,
        share=first.share,
        activation=first.activation,
        scale=1.0 if isinstance(scale, Tensor) else scale,
        causal=layer.causal,
        extra=kind,
        eps=1e-5,
        compute=compute,
        pad=gpu,
    )


def _place(name: str) -> tuple[int | None, str]:
    """Return the layer of a parameter and its name without the layer."""
    if not name.startswith(BLOCKS):
        return None, name
    layer, _, inner = name.removeprefix(BLOCKS).partition(".")
    return int(layer), BLOCKS + inner


def _stack(models: list[Any], kind: str) -> dict[str, Tensor]:
    """Stack parameters or buffers by name: (models, ...), in blocks (layers, models, ...)."""
    found: dict[str, list[Tensor]] = {}
    layered: dict[str, bool] = {}
    states = [dict(getattr(model, kind)()) for model in models]
    for name in states[0]:
        layer, inner = _place(name)
        found.setdefault(inner, []).append(torch.stack([state[name].detach() for state in states]))
        layered[inner] = layer is not None
    return {name: torch.stack(parts) if layered[name] else parts[0] for name, parts in found.items()}


EPS = 1e-5
NormWeights = tuple[Tensor | None, Tensor | None]


class StackedTextModels(StackedModels):
    """Language models with tied embeddings; the score is the loss."""

    def __init__(self, models: list[Any], *options: Any) -> None:
        super().__init__(models, *options)
        if models[0].adaptive is not None:
            raise UnsupportedError("a study has no adaptive softmax: leave cutoffs out")
        self.head: Callable[..., Tensor] = _compile(text_loss, self.compiled)

    def score(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Score tokens and the tokens that follow them, (s, b, n) each."""
        given, wanted = batch
        table = self.parameters["embedding.weight"]
        first = torch.arange(len(table), device=self.device)[:, None, None] * table.shape[1]  # of each model's rows
        x = self.apply_backbone(functional.embedding(given + first, table.flatten(0, 1)))
        loss = self.head(x, table, wanted, self.last_norm(), self.shape.compute)
        return loss, loss.detach()


class StackedImageModels(StackedModels):
    """Vision models; the score is the accuracy."""

    def __init__(self, models: list[Any], *options: Any) -> None:
        super().__init__(models, *options)
        self.patch = models[0].patch
        self.head: Callable[..., tuple[Tensor, Tensor]] = _compile(image_scores, self.compiled)
        self.embed: Callable[..., Tensor] = _compile(embed_patches, self.compiled)

    def score(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Score images (s, b, height, width, channels) of bytes with labels (s, b)."""
        images, labels = batch
        mean, deviation = self.buffers["mean"][0], self.buffers["deviation"][0]
        own = self.parameters
        weight, bias = own["embedding.weight"], own["embedding.bias"]
        x = self.embed(images, mean, deviation, self.patch, weight, bias, self.shape.compute)
        if "start" in own:
            x = torch.cat((own["start"][:, None, None].expand(-1, x.shape[1], -1, -1), x), 2)
        classifier = own["classifier.weight"], own["classifier.bias"]
        return self.head(
            self.apply_backbone(x), labels, classifier, self.last_norm(), "start" in own, self.shape.compute
        )


def text_loss(x: Tensor, table: Tensor, wanted: Tensor, last: NormWeights, compute: torch.dtype) -> Tensor:
    """Return the mean cross entropy (s,) after the last norm, with tied embeddings as logits."""
    logits = linear(_apply_norm(x, last), table.to(compute)).float()
    each = functional.cross_entropy(logits.flatten(0, -2), wanted.flatten(), reduction="none")
    return each.unflatten(0, (x.shape[0], -1)).mean(1)


def embed_patches(
    images: Tensor, mean: Tensor, deviation: Tensor, patch: int, weight: Tensor, bias: Tensor, compute: torch.dtype
) -> Tensor:
    """Embed the patches of images as tokens (s, b, n, d), row by row."""
    x = (images.float() / 255.0 - mean) / deviation
    rows = x.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).transpose(3, 4)
    return linear(rows.flatten(4).flatten(2, 3), weight.to(compute), bias).to(weight.dtype)


def image_scores(
    x: Tensor, labels: Tensor, classifier: tuple[Tensor, Tensor], last: NormWeights, first: bool, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return mean cross entropy and accuracy (s,) after the last norm, from the class token or the mean of tokens."""
    x = _apply_norm(x, last)
    pooled = x[:, :, 0] if first else x.mean(2)
    logits = linear(pooled, classifier[0].to(compute), classifier[1]).float()
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    right = (logits.argmax(-1) == labels).float().mean(1)
    return each.unflatten(0, (x.shape[0], -1)).mean(1), right


def _apply_norm(x: Tensor, last: NormWeights) -> Tensor:
    return x if last[0] is None or last[1] is None else norm(x, last[0], last[1], EPS)


def _compile(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, dynamic=False) if compiled else function
