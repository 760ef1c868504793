"""What stands before and after the blocks of a fleet: embeddings and losses of text and of pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attractor.errors import UnsupportedError
from attractor.experiments.studies.blocks import linear, norm
from attractor.experiments.studies.fleet import Fleet

EPS = 1e-5
Both = tuple[Tensor | None, Tensor | None]


class TextFleet(Fleet):
    """Models of text whose logits come by the embedding; the score is the loss."""

    def __init__(self, models: list[Any], *options: Any) -> None:
        super().__init__(models, *options)
        if models[0].adaptive is not None:
            raise UnsupportedError("a fleet has no adaptive softmax: leave cutoffs out")
        self.ending: Callable[..., Tensor] = _made(text_ending, self.compiled)

    def scored(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """``batch`` is what is given and what is wanted, (s, b, n) each."""
        given, wanted = batch
        table = self.parameters["embedding.weight"]
        first = torch.arange(len(table), device=self.device)[:, None, None] * table.shape[1]  # of each model's rows
        x = self.last(functional.embedding(given + first, table.flatten(0, 1)))
        loss = self.ending(x, table, wanted, self.last_norm(), self.shape.compute)
        return loss, loss.detach()


class ImageFleet(Fleet):
    """Models of pictures; the score is the share of right answers."""

    def __init__(self, models: list[Any], *options: Any) -> None:
        super().__init__(models, *options)
        self.patch = models[0].patch
        self.ending: Callable[..., tuple[Tensor, Tensor]] = _made(image_ending, self.compiled)
        self.beginning: Callable[..., Tensor] = _made(patches, self.compiled)

    def scored(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """``batch`` is pictures (s, b, height, width, channels) of bytes and labels (s, b)."""
        pictures, labels = batch
        mean, deviation = self.buffers["mean"][0], self.buffers["deviation"][0]
        own = self.parameters
        weight, bias = own["embedding.weight"], own["embedding.bias"]
        x = self.beginning(pictures, mean, deviation, self.patch, weight, bias, self.shape.compute)
        if "start" in own:
            x = torch.cat((own["start"][:, None, None].expand(-1, x.shape[1], -1, -1), x), 2)
        classifier = own["classifier.weight"], own["classifier.bias"]
        return self.ending(self.last(x), labels, classifier, self.last_norm(), "start" in own, self.shape.compute)


def text_ending(x: Tensor, table: Tensor, wanted: Tensor, last: Both, compute: torch.dtype) -> Tensor:
    """Last norm, logits by the embedding, and the mean cross entropy of every model."""
    logits = linear(_normed(x, last), table.to(compute)).float()
    each = functional.cross_entropy(logits.flatten(0, -2), wanted.flatten(), reduction="none")
    return each.unflatten(0, (x.shape[0], -1)).mean(1)


def patches(
    pictures: Tensor, mean: Tensor, deviation: Tensor, patch: int, weight: Tensor, bias: Tensor, compute: torch.dtype
) -> Tensor:
    """Tokens (s, b, n, d) of pictures, row by row."""
    x = (pictures.float() / 255.0 - mean) / deviation
    rows = x.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).transpose(3, 4)
    return linear(rows.flatten(4).flatten(2, 3), weight.to(compute), bias).to(weight.dtype)


def image_ending(
    x: Tensor, labels: Tensor, classifier: tuple[Tensor, Tensor], last: Both, first: bool, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Last norm, the class token or the mean of all, logits, and of every model the mean cross entropy and the share of right answers."""
    x = _normed(x, last)
    pooled = x[:, :, 0] if first else x.mean(2)
    logits = linear(pooled, classifier[0].to(compute), classifier[1]).float()
    each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    right = (logits.argmax(-1) == labels).float().mean(1)
    return each.unflatten(0, (x.shape[0], -1)).mean(1), right


def _normed(x: Tensor, last: Both) -> Tensor:
    return x if last[0] is None or last[1] is None else norm(x, last[0], last[1], EPS)


def _made(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, dynamic=False) if compiled else function
