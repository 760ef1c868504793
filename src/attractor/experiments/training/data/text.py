"""Text as numbers on disk, read where they lie: bytes themselves, or tokens that were made of them once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from attractor.errors import InputError
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Batch
from attractor.experiments.training.data.corpus import count_words, open_corpus
from attractor.experiments.training.data.tokens import tokenised


@dataclass(frozen=True)
class Part:
    """Numbers of one part (memory-mapped), and how much text they are."""

    numbers: np.ndarray
    bytes: int
    words: int


@dataclass(frozen=True)
class Text:
    """Windows of ``context`` tokens and the tokens that follow each."""

    vocabulary: int
    context: int
    pieces: dict[str, Part]

    def parts(self) -> tuple[str, ...]:
        return tuple(self.pieces)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """(given, wanted), (size, context) each, at random places."""
        text = self.pieces["train"].numbers
        places = np.random.default_rng((seed, number, rank)).integers(0, len(text) - self.context, size)
        return self._cut(text, places, self.context)

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """All of a part, each token wanted once; or ``count`` batches spread over it."""
        text = self.pieces[part].numbers
        last = len(text) - self.context - 1
        if count:
            places = np.linspace(0, last, size * count).astype(np.int64)
        else:
            places = np.arange(0, last + 1, self.context)
        for start in range(0, len(places), size):
            yield self._cut(text, places[start : start + size], self.context)
        rest = (len(text) - 1) % self.context
        if rest and not count:
            yield self._cut(text, np.array([len(text) - 1 - rest]), rest)

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        """Nats for each token, perplexities for each token and each word, bits for each byte; the latter by the lengths of the part."""
        loss, piece = totals["loss"] / totals["count"], self.pieces[part]
        each_word, each_byte = (len(piece.numbers) / max(1, count) for count in (piece.words, piece.bytes))
        return {
            "loss": loss,
            "perplexity": _exp(loss),
            "word_perplexity": _exp(loss * each_word),
            "bits_per_byte": loss * each_byte / math.log(2),
        }

    def _cut(self, text: np.ndarray, places: np.ndarray, length: int) -> Batch:
        whole = np.stack([text[place : place + length + 1] for place in places]).astype(np.int64)
        windows = torch.from_numpy(whole)
        return windows[:, :-1], windows[:, 1:]


def open_text(config: Config, cache: Path) -> Text:
    """The text of a configuration."""
    corpus = open_corpus(config.data, config.split, cache)
    if config.tokens == "bytes":
        vocabulary, numbers = 256, corpus
    else:
        vocabulary, numbers = tokenised(config, corpus, cache)
    need = config.context + 1
    for part in ("train", "validation"):
        if len(numbers[part]) < need:
            raise InputError(
                f"{config.data} holds {len(corpus[part])} bytes ({len(numbers[part])} tokens) for {part}; "
                f"with a context of {config.context} a run needs at least {need} tokens there"
            )
    pieces = {
        part: Part(numbers[part], len(corpus[part]), 0 if part == "train" else count_words(corpus[part]))
        for part in corpus
        if len(numbers[part]) >= need
    }
    return Text(vocabulary, config.context, pieces)


def _exp(loss: float) -> float:
    """Its exponential; a loss that no float could hold the exponential of is one of an untrained model."""
    return math.exp(min(loss, 700.0))
