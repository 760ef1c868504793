"""What tokens do along the depth of a model in training, and the regimes of its layers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError
from attractor.experiments.training.models import LanguageModel, VisionModel
from attractor.nn import TransformerBlock
from attractor.observables import cosine, pairwise_distance, token_norm
from attractor.states import Tokens
from attractor.theory import regime

SAMPLES = 4  # texts or pictures whose tokens are followed


@torch.no_grad()
def dynamics(model: LanguageModel | VisionModel, given: Tensor) -> dict[str, Any]:
    """Mean norm, pairwise distance and cosine of the tokens of four samples, before every block and after the last; every layer's label."""
    states = [Tokens(state.double().cpu()) for state in model.states(given[:SAMPLES])]
    curves = {
        name: [float(observe(state).mean()) for state in states]
        for name, observe in (("norm", token_norm), ("distance", pairwise_distance), ("cosine", cosine))
    }
    return {**curves, **_regimes(model)}


def _regimes(model: LanguageModel | VisionModel) -> dict[str, Any]:
    """The label of every layer's attention and of its heads. The norm before it is left out: centring leaves one direction unsigned."""
    layers: list[str] = []
    heads: list[list[str]] = []
    for block in model.backbone.blocks:
        assert isinstance(block, TransformerBlock)
        try:
            found = regime(copy.deepcopy(block.attention).cpu())
            layers.append(found.label)
            heads.append([head.label.name for head in found.heads])
        except AttractorError:  # weights that are not finite have no regime, and the loss will say so
            layers.append("undefined")
            heads.append([])
    return {"regimes": layers, "head_regimes": heads}
