"""A language model whose attention is the experiment."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError
from attractor.experiments.training.config import Config
from attractor.experiments.training.models.backbone import FIRST, Backbone


class LanguageModel(nn.Module):
    """Embedding, blocks, and logits by the embedding again; with ``cutoffs`` an adaptive softmax in the place of the latter.

    The adaptive softmax has a matrix of its own: large vocabularies of words are not tied.
    """

    def __init__(self, config: Config, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.dim)
        nn.init.normal_(self.embedding.weight, std=FIRST)
        self.backbone = Backbone(config, config.context)
        self.smoothing, self.adaptive = config.smoothing, None
        if config.cutoffs:
            if config.cutoffs[-1] >= vocabulary or config.smoothing:
                raise InputError(
                    f"cutoffs must lie below the vocabulary of {vocabulary} tokens and go without smoothing, "
                    f"got {list(config.cutoffs)} and smoothing {config.smoothing}"
                )
            self.adaptive = nn.AdaptiveLogSoftmaxWithLoss(config.dim, vocabulary, list(config.cutoffs), div_value=1.0)

    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        """The loss in nats for each token: ``wanted`` (batch, n) after ``given`` (batch, n)."""
        last = self.backbone(self.embedding(given))
        if self.adaptive is not None:
            return self.adaptive(last.flatten(0, 1).float(), wanted.flatten()).loss
        logits = functional.linear(last, self.embedding.weight)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), wanted.flatten(), label_smoothing=self.smoothing if self.training else 0.0
        )

    def states(self, given: Tensor) -> list[Tensor]:
        """Tokens before every block and after the last, (batch, n, d) each."""
        return self.backbone.states(self.embedding(given))

    def totals(self, given: Tensor, wanted: Tensor) -> dict[str, Tensor]:
        """Sums over a batch: the loss and how many tokens it is of."""
        count = torch.tensor(float(wanted.numel()), device=wanted.device)
        return {"loss": self(given, wanted).double() * count, "count": count}
