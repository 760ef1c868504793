"""A vision Transformer whose attention is the experiment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError
from attractor.experiments.training.config import Config
from attractor.experiments.training.models.backbone import FIRST, Backbone


class VisionModel(nn.Module):
    """Patches, a class token or the mean of all, blocks, and a linear classifier [dosovitskiy2021image].

    Pictures are bytes (batch, height, width, channels); ``mean`` and ``deviation`` of the training pictures are the model's, so that
    it takes pictures as they are.
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
                f"pictures of {height} by {width} pixels do not split into patches of {config.patch}: "
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
        self.smoothing = config.smoothing
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """The cross entropy in nats."""
        return functional.cross_entropy(
            self.logits(pictures), labels, label_smoothing=self.smoothing if self.training else 0.0
        )

    def logits(self, pictures: Tensor) -> Tensor:
        """(batch, classes) for bytes (batch, height, width, channels)."""
        last = self.backbone(self.tokens(pictures))
        pooled = last.mean(1) if self.start is None else last[:, 0]
        return self.classifier(pooled).float()

    def tokens(self, pictures: Tensor) -> Tensor:
        """Patches row by row as tokens (batch, n, d), the class token first."""
        x = (pictures.float() / 255.0 - self.mean) / self.deviation
        rows = x.unflatten(2, (-1, self.patch)).unflatten(1, (-1, self.patch)).transpose(2, 3)
        x = self.embedding(rows.flatten(3).flatten(1, 2))
        return x if self.start is None else torch.cat((self.start.to(x.dtype).expand(len(x), 1, -1), x), dim=1)

    def states(self, pictures: Tensor) -> list[Tensor]:
        """Tokens before every block and after the last, (batch, n, d) each."""
        return self.backbone.states(self.tokens(pictures))

    def totals(self, pictures: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Sums over a batch: the loss, how many pictures are right, and how many there are."""
        logits = self.logits(pictures)
        return {
            "loss": functional.cross_entropy(logits, labels, reduction="sum").double(),
            "right": (logits.argmax(-1) == labels).sum().double(),
            "count": torch.tensor(float(len(labels)), device=labels.device),
        }
