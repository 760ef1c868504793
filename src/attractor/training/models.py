"""Language and vision models with a chosen attention layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError
from attractor.laws import Rotary
from attractor.nn import (
    UNDECAYED,
    AttentionLayer,
    DefiniteAttention,
    PlainAttention,
    TransformerBlock,
    make_refinement,
    spectral,
)
from attractor.training.config import Config


def build_block(config: Config, index: int) -> TransformerBlock:
    """Return block ``index`` of a model; the probability of dropped paths grows linearly along depth."""
    placement: Any = config.placement
    norm: Any = config.norm
    return TransformerBlock(
        attention_layer(config, index),
        hidden_width(config),
        placement=placement,
        norm=norm,
        dropout=config.dropout,
        drop_path=config.drop_path * index / max(1, config.layers - 1),
    )


def attention_layer(config: Config, index: int) -> AttentionLayer:
    """Return the attention of block ``index``: plain or of a regime, causal for text."""
    refinement = None
    if config.refinement != "none":
        sign: Any = config.sign
        refinement = make_refinement(config.refinement, config.dim, config.heads, sign, config.strength)
    shared: dict[str, Any] = {
        "kernel": config.kernel,
        "causal": config.task == "text",
        "positions": Rotary(dim=config.turned) if config.positions == "rotary" else None,
        "refinement": refinement,
        "dropout": config.dropout,
    }
    if config.attention == "plain":
        own = {"temperature": config.temperature, "gain": config.gain, "bias": config.bias}
        plain = PlainAttention(config.dim, config.heads, **{**shared, **own, **_options(config, PlainAttention)})
        return spectral(plain) if config.spectral else plain
    regime: Any = config.attention
    own = {"relaxed": config.relaxed, "orientation": config.orientation, "metric": config.metric}
    own |= permuted_signs(config, index)
    return DefiniteAttention(
        config.dim, config.heads, regime, **{**shared, **own, **_options(config, DefiniteAttention)}
    )


def _options(config: Config, kind: type[AttentionLayer]) -> dict[str, Any]:
    """Return the further options of a layer; raise for those it does not take or that are entries of the configuration."""
    taken = {name for each in (kind, AttentionLayer) for name in signature(each).parameters}
    taken -= {field.name for field in fields(Config)} | {"options", "regime", "causal"}
    unknown = sorted(config.options.keys() - taken)
    if unknown:
        raise InputError(
            f"options has {', '.join(unknown)}, which {config.attention} attention does not take there; "
            f"it takes {', '.join(sorted(taken))}"
        )
    return config.options


def permuted_signs(config: Config, index: int) -> dict[str, Any]:
    """Return permuted signs of a layer, different for every layer and seed; nothing if they are ordered."""
    if config.signs == "ordered":
        return {}
    dim, head_dim = config.dim, config.options.get("head_dim", config.dim // config.heads)
    negative = dim if config.attention == "convergent" else int(config.options.get("negative", 0.5) * dim)
    inner = config.heads * head_dim if config.signs == "scattered" else 0
    signs = np.ones(dim + inner, dtype=np.int64)
    signs[:negative] = -1
    signs = np.random.default_rng((config.seed, index)).permutation(signs)
    if not inner:
        return {"signs": signs.tolist()}
    return {"signs": signs[:dim].tolist(), "interaction": signs[dim:].reshape(config.heads, head_dim).tolist()}


def hidden_width(config: Config) -> int:
    """Return the width of the feed-forward part; with ``equal`` it makes up for fewer parameters of the attention."""
    hidden = 4 * config.dim if config.hidden is None else config.hidden
    if not config.equal or not hidden:
        return hidden
    own = sum(parameter.numel() for parameter in attention_layer(config, 0).parameters())
    plain = 4 * config.dim * config.dim
    return hidden + round((plain - own) / (2 * config.dim + 1))


def mean_cosine(x: Tensor) -> Tensor:
    """Return the mean cosine of pairs of tokens (..., n, d), of different tokens."""
    n, unit = x.shape[-2], functional.normalize(x.float(), dim=-1)
    return (unit.sum(-2).square().sum(-1) - n) / max(1, n * (n - 1))


FIRST = 0.02  # initial standard deviation of embeddings and positions


class Backbone(nn.Module):
    """Positions added to tokens, blocks applied ``loops`` times, and a last norm for placements without a norm on the residual stream."""

    def __init__(self, config: Config, longest: int) -> None:
        super().__init__()
        self.places: nn.Parameter | None = None
        self.register_buffer("waves", None)
        if config.positions == "absolute":
            self.places = nn.Parameter(FIRST * torch.randn(longest, config.dim))
        elif config.positions == "sinusoidal":
            self.register_buffer("waves", sinusoids(longest, config.dim), persistent=False)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList([build_block(config, index) for index in range(config.layers)])
        self.loops, self.inject = config.loops, config.inject
        kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
        self.norm = kind(config.dim) if config.placement in ("pre", "peri", "sandwich") else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the last state (batch, n, d), normalised."""
        return self.norm(self.states(x)[-1])

    def penalised(self, x: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Return the last state, normalised, and ``weight`` times the mean cosine of tokens after every block, in training only."""
        if not (weight and self.training):
            return self(x), torch.zeros((), device=x.device)
        states = self.states(x)
        cosines = torch.stack([mean_cosine(state).mean() for state in states[1:]])
        return self.norm(states[-1]), weight * cosines.mean()

    def states(self, x: Tensor) -> list[Tensor]:
        """Return tokens before the first block and after every block of every loop, (batch, n, d) each."""
        places = self.waves if self.places is None else self.places
        if isinstance(places, Tensor):
            x = x + places[: x.shape[1]].to(x.dtype)
        found = [self.dropout(x)]
        for loop in range(self.loops):
            for number, each in enumerate(self.blocks):
                again = self.inject and loop and not number
                found.append(each(found[-1] + found[0] if again else found[-1]))
        return found


def sinusoids(longest: int, dim: int) -> Tensor:
    """Return sin and cos of position / 10000^(2p / dim), concatenated, (longest, dim) [vaswani2017attention]."""
    pairs = -(-dim // 2)
    frequencies = torch.exp(-math.log(1e4) * torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = torch.arange(longest, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :dim].float()


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Return parameter groups: matrices with weight decay; vectors, signs and strengths without."""
    return group_parameters(((name, part, part.ndim) for name, part in model.named_parameters()), decay)


def group_parameters(parameters: Iterable[tuple[str, Tensor, int]], decay: float) -> list[dict[str, Any]]:
    """Return groups of (name, parameter, number of its own axes)."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter, axes in parameters:
        groups[axes > 1 and name.rpartition(".")[2] not in UNDECAYED].append(parameter)
    return [{"params": groups[True], "weight_decay": decay}, {"params": groups[False], "weight_decay": 0.0}]


def find_not_finite(model: nn.Module, batch: tuple[Tensor, ...]) -> str:
    """Name the first parameter, module output or gradient that is not finite."""
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            return f"the parameter {name}"
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            if isinstance(output, Tensor) and not found and not bool(output.isfinite().all()):
                found.append(f"the output of {name or 'the model'}")

        return hook

    handles = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    with torch.no_grad():
        model(*batch)
    for handle in handles:
        handle.remove()
    if found:
        return found[0]
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return f"the gradient of {name}"
    return "the backward pass"


class LanguageModel(nn.Module):
    """Embedding, blocks, and logits by the same embedding; with ``cutoffs`` an adaptive softmax with its own matrix."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=FIRST)
        self.backbone = Backbone(config, config.context)
        self.smoothing, self.adaptive, self.penalty = config.smoothing, None, config.penalty
        if config.cutoffs:
            if config.cutoffs[-1] >= vocabulary or config.smoothing:
                raise InputError(
                    f"cutoffs must lie below the vocabulary of {vocabulary} tokens and go without smoothing, "
                    f"got {list(config.cutoffs)} and smoothing {config.smoothing}"
                )
            self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(config.dim, vocabulary, list(config.cutoffs), div_value=1.0)

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean loss in nats of the targets ``wanted`` (batch, n) after ``given`` (batch, n)."""
        last, penalty = self.backbone.penalised(self.embedding(given), self.penalty)
        if self.adaptive is not None:
            return self.adaptive(last.flatten(0, 1).float(), wanted.flatten()).loss + penalty
        logits = functional.linear(last, self.embedding.weight)
        return penalty + functional.cross_entropy(
            logits.flatten(0, 1).float(), wanted.flatten(), label_smoothing=self.smoothing if self.training else 0.0
        )

    def hidden(self, given: Tensor) -> Tensor:
        """Return the last state (batch, n, d), normalised."""
        return self.backbone(self.embedding(given))

    def logits(self, given: Tensor) -> Tensor:
        """Return logits (batch, n, vocabulary); with an adaptive softmax their logarithms normalised."""
        last = self.hidden(given)
        if self.adaptive is None:
            return functional.linear(last, self.embedding.weight)
        return self.adaptive.log_prob(last.flatten(0, 1).float()).unflatten(0, last.shape[:2])

    def states(self, given: Tensor) -> list[Tensor]:
        """Return tokens before every block and after the last, (batch, n, d) each."""
        return self.backbone.states(self.embedding(given))

    def totals(self, given: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Return sums over a batch: the loss and the number of tokens."""
        count = torch.tensor(float(wanted.numel()), device=wanted.device)
        return {"loss": self(given, wanted).double() * count, "count": count}


class VisionModel(nn.Module):
    """Patches, a class token or the mean of all, blocks, and a linear classifier [dosovitskiy2021image].

    Images are bytes (batch, height, width, channels); the model normalises them by ``mean`` and ``deviation`` of the training images.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        config: Config,
        shape: tuple[int, int, int],
        classes: int,
        mean: Sequence[float],
        deviation: Sequence[float],
    ) -> None:
        super().__init__()
        height, width, channels = shape
        if height % config.patch or width % config.patch:
            raise InputError(
                f"images of {height} by {width} pixels do not split into patches of {config.patch}: "
                "patch must divide both, or give size"
            )
        self.patch = config.patch
        self.embedding = nn.Linear(config.patch * config.patch * channels, config.dim)
        self.start = nn.Parameter(FIRST * torch.randn(config.dim)) if config.pooling == "class" else None
        count = (height // config.patch) * (width // config.patch)
        self.backbone = Backbone(config, count + (self.start is not None))
        self.classifier = nn.Linear(config.dim, classes)
        nn.init.normal_(self.classifier.weight, std=FIRST)
        nn.init.zeros_(self.classifier.bias)
        self.smoothing, self.penalty = config.smoothing, config.penalty
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy in nats."""
        last, penalty = self.backbone.penalised(self.tokens(images), self.penalty)
        return penalty + functional.cross_entropy(
            self._classify(last), labels, label_smoothing=self.smoothing if self.training else 0.0
        )

    def logits(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        return self._classify(self.backbone(self.tokens(images)))

    def _classify(self, last: Tensor) -> Tensor:
        pooled = last.mean(1) if self.start is None else last[:, 0]
        return self.classifier(pooled).float()

    def tokens(self, images: Tensor) -> Tensor:
        """Return patches row by row as tokens (batch, n, d), the class token first."""
        x = (images.float() / 255.0 - self.mean) / self.deviation
        rows = x.unflatten(2, (-1, self.patch)).unflatten(1, (-1, self.patch)).transpose(2, 3)
        x = self.embedding(rows.flatten(3).flatten(1, 2))
        return x if self.start is None else torch.cat((self.start.to(x.dtype).expand(len(x), 1, -1), x), dim=1)

    def hidden(self, images: Tensor) -> Tensor:
        """Return the last state (batch, n, d), normalised."""
        return self.backbone(self.tokens(images))

    def states(self, images: Tensor) -> list[Tensor]:
        """Return tokens before every block and after the last, (batch, n, d) each."""
        return self.backbone.states(self.tokens(images))

    def totals(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return sums over a batch: the loss, correct answers and images."""
        logits = self.logits(images)
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="sum").double(),
            "right": (logits.argmax(-1) == labels).sum().double(),
            "count": torch.tensor(float(len(labels)), device=labels.device),
        }


def build_model(config: Config, data: Any) -> LanguageModel | VisionModel:
    """Return the model of a configuration for its data."""
    if config.task == "text":
        return LanguageModel(config, data.vocabulary)
    return VisionModel(config, data.shape, data.classes, data.mean, data.deviation)
