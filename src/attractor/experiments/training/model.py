"""A small language model of bytes whose attention is the experiment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.experiments.training.config import Config
from attractor.nn import AttentionLayer, DefiniteAttention, PlainAttention, TransformerBlock, spectral
from attractor.nn.refinements import refinement_named

BYTES = 256
UNDECAYED = ("pivots", "lower", "skew", "theta")  # signs and strengths that weight decay must not pull at


class ByteModel(nn.Module):
    """Embedding, blocks, a last norm, and logits by the embedding; absolute positions are added at the input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, config.dim)
        self.places = nn.Embedding(config.context, config.dim) if config.positions == "absolute" else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList([_block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.dim) if config.placement in ("pre", "peri", "sandwich") else nn.Identity()
        nn.init.normal_(self.embedding.weight, std=0.02)
        if self.places is not None:
            nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """The loss in nats for each byte of text (batch, context + 1)."""
        logits = functional.linear(self.norm(self.states(text[:, :-1])[-1]), self.embedding.weight)
        return functional.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())

    def states(self, given: Tensor) -> list[Tensor]:
        """Tokens before every block and after the last, (batch, n, d) each."""
        x = self.embedding(given)
        if self.places is not None:
            x = x + self.places.weight[: given.shape[1]]
        found = [self.dropout(x)]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found


def _block(config: Config) -> TransformerBlock:
    refinement = None
    if config.refinement != "none":
        sign: Any = config.sign
        refinement = refinement_named(config.refinement, config.dim, config.heads, sign, config.strength)
    shared: dict[str, Any] = {"causal": True, "refinement": refinement, "dropout": config.dropout, **config.options}
    shared["positions"] = "rotary" if config.positions == "rotary" else None
    attention: AttentionLayer
    if config.attention == "plain":
        attention = PlainAttention(config.dim, config.heads, **shared)
        attention = spectral(attention) if config.spectral else attention
    else:
        regime: Any = config.attention
        attention = DefiniteAttention(config.dim, config.heads, regime, **shared)
    placement: Any = config.placement
    return TransformerBlock(attention, config.hidden, placement=placement, dropout=config.dropout)


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay; vectors, signs and strengths without."""
    groups: dict[bool, list[Tensor]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[parameter.ndim > 1 and name.rpartition(".")[2] not in UNDECAYED].append(parameter)
    return [{"params": groups[True], "weight_decay": decay}, {"params": groups[False], "weight_decay": 0.0}]


def first_bad(model: nn.Module, text: Tensor) -> str:
    """Where a number that is not finite first arises: a parameter, or the output of a module."""
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
        model(text)
    for handle in handles:
        handle.remove()
    return found[0] if found else "the backward pass"
