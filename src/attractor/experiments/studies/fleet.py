"""Several models of one shape as one: the same numbers as each alone, by batched products.

The models are those of ``attractor train``, one for each seed. Their parameters are stacked, (layers, s, ...) for those of blocks and
(s, ...) for the rest; attention weights of all layers and models come from the layer's own ``weights`` by ``torch.vmap``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from attractor.errors import UnsupportedError
from attractor.experiments.studies.blocks import Maps, Shape, block
from attractor.experiments.training.models.inspection import UNDECAYED
from attractor.nn import AttentionLayer, TransformerBlock
from attractor.nn.refinements import Shift, Slice

BLOCKS = "backbone.blocks."
POWER = "parametrizations.weight.0._"  # vectors of spectral normalisation


class Fleet:
    """Stacked ``parameters`` and ``buffers`` of models by name; "backbone.blocks.x" is the parameter x of every
    block. What stands before and after the blocks is a subclass's."""

    def __init__(self, models: list[Any], device: torch.device, compute: torch.dtype, compiled: bool = False) -> None:
        self.models, self.device = models, device
        first = models[0].backbone.blocks[0]
        assert isinstance(first, TransformerBlock)
        self.parameters = {
            name: nn.Parameter(part.to(device)) for name, part in _stacked(models, "named_parameters").items()
        }
        self.buffers = {name: part.to(device) for name, part in _stacked(models, "named_buffers").items()}
        self.template = _Made(copy.deepcopy(first.attention)).eval().to(device)
        self.shape = _shape(first, compute, device.type == "cuda")
        self.positions = first.attention.positions
        self.block: Callable[..., Tensor] = torch.compile(block, fullgraph=True, dynamic=False) if compiled else block
        self.compiled = compiled
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """What ``parameter_groups`` says of one model: matrices with weight decay; vectors, signs and strengths without."""
        groups: dict[bool, list[Tensor]] = {True: [], False: []}
        for name, parameter in self.parameters.items():
            own = parameter.ndim - (2 if name.startswith(BLOCKS) else 1)
            groups[own > 1 and name.rpartition(".")[2] not in UNDECAYED].append(parameter)
        return [{"params": groups[True], "weight_decay": decay}, {"params": groups[False], "weight_decay": 0.0}]

    def losses(self, *batch: Tensor) -> Tensor:
        """The loss (s,) of every model on its own batch, (s, b, ...) each."""
        return self.scored(*batch)[0]

    def scored(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the score (s,) of every model on its own batch."""
        raise NotImplementedError

    def last(self, x: Tensor) -> Tensor:
        """Tokens (s, b, n, d) with places, through all blocks."""
        if "backbone.places" in self.parameters:
            x = x + self.parameters["backbone.places"][:, None, : x.shape[-2]]
        return self.through(x)

    def last_norm(self) -> tuple[Tensor | None, Tensor | None]:
        """Gain and bias of the norm after the last block, where there is one."""
        return self.parameters.get("backbone.norm.weight"), self.parameters.get("backbone.norm.bias")

    def through(self, x: Tensor) -> Tensor:
        """Tokens (s, b, n, d) through all blocks."""
        maps = self.maps()
        rest: list[dict[str, Tensor]] = [{} for _ in maps]
        for name, parameter in self.parameters.items():
            if name.startswith(BLOCKS) and not name.startswith(BLOCKS + "attention."):
                for one, part in zip(rest, parameter.unbind(0), strict=True):
                    one[name.removeprefix(BLOCKS)] = part
        turns = self._turns(x.shape[-2])
        for one, others in zip(maps, rest, strict=True):
            x = self.block(x, one, others, turns, self.shape)
        return x

    def maps(self) -> list[Maps]:
        """Attention weights of every layer."""
        prefix = BLOCKS + "attention."
        state = {
            "layer." + name.removeprefix(prefix): part
            for name, part in (self.parameters | self.buffers).items()
            if name.startswith(prefix)
        }
        flat = {name: part.flatten(0, 1) for name, part in state.items()}
        made = torch.vmap(lambda one: functional_call(self.template, one, ()))(flat)
        layers = next(iter(state.values())).shape[0]
        parts = {name: part.unflatten(0, (layers, -1)).unbind(0) for name, part in made.items()}
        return [Maps(**{name: part[layer] for name, part in parts.items()}) for layer in range(layers)]

    @torch.no_grad()
    def power_step(self) -> None:
        """One step of the power method wherever a weight is spectrally normalised, as its layer does at every training step."""
        for name, weight in self.parameters.items():
            if not name.endswith("parametrizations.weight.original"):
                continue
            stem = name.removesuffix("parametrizations.weight.original") + POWER
            u, v = self.buffers[stem + "u"], self.buffers[stem + "v"]
            u.copy_(nn.functional.normalize((weight @ v.unsqueeze(-1)).squeeze(-1), dim=-1))
            v.copy_(nn.functional.normalize((weight.mT @ u.unsqueeze(-1)).squeeze(-1), dim=-1))

    @torch.no_grad()
    def clip(self, gradients: list[Tensor], largest: float) -> list[Tensor]:
        """Gradients, each model's with a norm of at most ``largest``."""
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
            shaped.append(small.contiguous())  # the fused optimiser asks for the strides of the parameter
        return shaped

    @torch.no_grad()
    def unstack(self) -> list[Any]:
        """The models with the weights that they have now."""
        for number, model in enumerate(self.models):
            for kind, stacked in (("named_parameters", self.parameters), ("named_buffers", self.buffers)):
                for name, part in getattr(model, kind)():
                    layer, inner = _place(name)
                    found = stacked[inner]
                    part.copy_(found[number] if layer is None else found[layer, number])
        return self.models

    def _turns(self, n: int) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of rotary positions, made once for each length."""
        if self.positions is None:
            return None
        if n not in self._tables:
            frequencies = self.positions.frequencies(self.template.layer.head_dim)
            angles = torch.arange(n, dtype=torch.float64).unsqueeze(-1) * frequencies
            self._tables[n] = tuple(part.to(self.device, self.shape.compute) for part in (angles.cos(), angles.sin()))  # type: ignore[assignment]
        return self._tables[n]


class _Made(nn.Module):
    """What the block needs of an attention layer, by name."""

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


def _shape(first: TransformerBlock, compute: torch.dtype, gpu: bool) -> Shape:
    layer = first.attention
    usual = layer.kernel.name == "softmax" and layer.weights().query_bias is None
    usual = usual and all(isinstance(norm, nn.LayerNorm) for norm in first.norms)
    if not usual or layer.dropout or first.dropout.p or first.drop_path:
        raise UnsupportedError("a fleet has softmax attention without biases, LayerNorm, and nothing dropped")
    scale, extra = layer.scores_scale(), layer.refinement
    kind = "none" if extra is None else "shift" if isinstance(extra, Shift) else "slice"
    return Shape(
        heads=layer.heads,
        placement=first.placement,
        activation=first.activation,
        scale=1.0 if isinstance(scale, Tensor) else scale,
        causal=layer.causal,
        extra=kind,
        eps=1e-5,
        compute=compute,
        pad=gpu,
    )


def _place(name: str) -> tuple[int | None, str]:
    """The layer of a parameter and its name for all layers."""
    if not name.startswith(BLOCKS):
        return None, name
    layer, _, inner = name.removeprefix(BLOCKS).partition(".")
    return int(layer), BLOCKS + inner


def _stacked(models: list[Any], kind: str) -> dict[str, Tensor]:
    """Parameters or buffers by name, with models and, in blocks, layers in front."""
    found: dict[str, list[Tensor]] = {}
    layered: dict[str, bool] = {}
    states = [dict(getattr(model, kind)()) for model in models]
    for name in states[0]:
        layer, inner = _place(name)
        found.setdefault(inner, []).append(torch.stack([state[name].detach() for state in states]))
        layered[inner] = layer is not None
    return {name: torch.stack(parts) if layered[name] else parts[0] for name, parts in found.items()}
