"""A model that is loaded once and run on many texts, watched and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attractor.checkpoints.ablations import check_ablations, frozen_norms, without_positions
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.measuring import Measurements, measured
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.checkpoints.running import ShortText, context_length, token_ids, tokenizer_of, whole_model
from attractor.checkpoints.watching import Passage, watched
from attractor.errors import InputError

KEPT = 2**30  # bytes of layers that a session may hold on to


@dataclass(frozen=True)
class Session:
    """``without`` parts of the model, along one of its stacks."""

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    without: tuple[str, ...]
    stack: str
    kept: dict[int, Layer] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, source: Any, tokenizer: Any, without: Sequence[str], stack: str | None) -> Session:
        check_ablations(tuple(without))
        found = source if isinstance(source, Checkpoint) else open_checkpoint(source)
        stacks = list(found.family.stacks(found.config))
        if stack is None:
            stack = stacks[0]
        if stack not in stacks:
            raise InputError(f"{found.name} has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
        return cls(found, whole_model(found), tokenizer, tuple(without), stack)

    def inputs(
        self, text: Any, max_tokens: int | None = None, cut: bool = False
    ) -> tuple[dict[str, Tensor], list[str]]:
        """What the model is called with, and the tokens in words."""
        if isinstance(text, dict):
            return text, []
        if isinstance(text, str) and not text.strip():
            raise ShortText("the text is empty; give at least two tokens", 0)
        longest = context_length(self.checkpoint.config) if cut else None
        max_tokens = min(filter(None, (max_tokens, longest)), default=None)
        ids, words = token_ids(self.checkpoint, text, self._tokenizer() if isinstance(text, str) else None, max_tokens)
        return {"input_ids": ids.unsqueeze(0)}, words

    def layer(self, index: int) -> Layer:
        """A layer of the stack that is followed; kept for the next text where all layers together are small."""
        layers = self.checkpoint.layers
        if index not in self.kept:
            places = [layers.place(place)[0] for place in range(len(layers))]
            found = layers[places.index(self.stack) + index]
            if 4 * found.dim**2 * 8 * len(layers) > KEPT:
                return found
            self.kept[index] = found
        return self.kept[index]

    def _tokenizer(self) -> Any:
        if self.tokenizer is None:
            object.__setattr__(self, "tokenizer", tokenizer_of(self.checkpoint))
        return self.tokenizer

    def run(
        self,
        inputs: dict[str, Tensor],
        attention: bool,
        keep: Callable[[Passage], None] | None = None,
        summary: bool = False,
    ) -> Measurements:
        """One run, measured block by block."""
        measure = measured(self.layer, attention, summary, "positions" not in self.without)

        def see(passage: Passage) -> None:
            measure.add(passage)
            if keep is not None:
                keep(passage)

        parts = tuple(name for name in self.without if name in ("attention", "feedforward"))
        with torch.no_grad(), ExitStack() as changes:
            if "norms" in self.without:  # first: they are frozen as the plain model has them
                changes.enter_context(frozen_norms(self.model, lambda: self._call(inputs)))
            if "positions" in self.without:
                changes.enter_context(without_positions(self.model))
            changes.enter_context(watched(self.model, self.checkpoint, self.stack, see, parts))
            self._call(inputs)
        return measure.result()

    def _call(self, inputs: dict[str, Tensor]) -> None:
        part = getattr(self.model, self.stack, self.model) if self.stack == "encoder" else self.model
        part(**inputs)
