"""Where a model's tokens go along depth."""

from __future__ import annotations

import time
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
from attractor.checkpoints.running import context_length, token_ids, tokenizer_of, whole_model
from attractor.checkpoints.watching import Passage, watched
from attractor.errors import InputError
from attractor.flow import Outcome, Trajectory
from attractor.flow.outcome import Statistics
from attractor.spaces import Euclidean
from attractor.states import Tokens

KEPT = 2**30  # bytes of layers that a session may hold on to


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Trajectory):
    """Tokens of a real model along depth: the residual stream before every block and after the last, before the final norm.

    ``times`` counts blocks. ``words`` are the tokens, ``measurements`` what attention and feed-forward did in every block.
    """

    words: tuple[str, ...] = ()
    measurements: Measurements | None = None


@dataclass(frozen=True)
class Traces:
    """Many texts in numbers; activations are not kept. ``measurements`` has one entry for each text."""

    model: str
    texts: int
    lengths: tuple[int, ...]
    measurements: tuple[Measurements, ...]
    without: tuple[str, ...]
    seconds: float

    def curve(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean over texts and standard deviation of a measurement of the stream, (blocks + 1,)."""
        return _spread([part.curves[name] for part in self.measurements])

    def block(self, name: str) -> tuple[Tensor, Tensor]:
        """The same of what a part of every block moved, (blocks,)."""
        return _spread([part.blocks[name] for part in self.measurements])

    def head(self, name: str) -> Tensor:
        """Mean over texts of a measurement of every head, (blocks, h); NaN where it is undefined."""
        return torch.stack([part.heads[name] for part in self.measurements]).mean(0)


def _spread(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(values)
    return stacked.mean(0), stacked.std(0) if len(values) > 1 else torch.zeros_like(stacked[0])


def trace(
    source: Any,
    text: Any,
    *,
    tokenizer: Any = None,
    without: Sequence[str] = (),
    stack: str | None = None,
    attention: bool = True,
    max_tokens: int | None = None,
    cut: bool = False,
) -> Trace:
    """Run a model on one text (or token ids, or a dict of the model's own inputs, such as an image's pixel_values) and return its
    tokens along depth.

    ``without`` takes parts of the model away: "feedforward", "attention", "positions" (no angles, no position vectors) or "norms"
    (frozen at the lengths of the plain run, which shows beside another ablation: alone it changes nothing). ``attention=False``
    leaves out what needs the weights of attention; ``max_tokens`` cuts a text, and ``cut`` cuts it to the model's context.
    """
    model = Session.open(source, tokenizer, without, stack)
    states: list[Tensor] = []

    def keep(passage: Passage) -> None:
        states.extend([passage.before.double()] if not states else [])
        states.append(passage.after.double())

    start = time.perf_counter()
    inputs, words = model.inputs(text, max_tokens, cut)
    found = model.run(inputs, attention, keep)
    points = torch.stack(states)
    seconds, depth = time.perf_counter() - start, float(len(states) - 1)
    times = torch.arange(len(states), dtype=torch.float64)
    outcome = Outcome("reached", depth, f"the tokens passed all {len(states) - 1} blocks")
    stats = Statistics(evaluations=len(states) - 1, accepted=len(states) - 1, seconds=seconds, method="blocks")
    first, last = Tokens(points[0]), Tokens(points[-1])
    definition = {"model": model.checkpoint.name, "without": list(without)}
    return Trace(
        times, points, last, (outcome,), stats, None, Euclidean(), first, (), definition, None, tuple(words), found
    )


def trace_texts(
    source: Any,
    texts: Sequence[Any],
    *,
    tokenizer: Any = None,
    without: Sequence[str] = (),
    stack: str | None = None,
    attention: bool = True,
    max_tokens: int | None = None,
    cut: bool = False,
    summary: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """The same for many texts, one after the other, as numbers alone.

    ``summary`` measures what takes time linear in the number of tokens, which slows the model by a few percent: norms, distances, mean
    cosine, sharpness, and what each part of a block moved.
    """
    if not texts:
        raise InputError("there is no text to trace")
    model, start = Session.open(source, tokenizer, without, stack), time.perf_counter()
    found, lengths = [], []
    for count, text in enumerate(texts):
        inputs, words = model.inputs(text, max_tokens, cut)
        found.append(model.run(inputs, attention, summary=summary))
        lengths.append(len(words) or found[-1].tokens)
        if progress is not None:
            progress(count + 1)
    seconds = time.perf_counter() - start
    return Traces(model.checkpoint.name, len(texts), tuple(lengths), tuple(found), model.without, seconds)


@dataclass(frozen=True)
class Session:
    """A model that is loaded once and run on many texts."""

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
            raise InputError("the text is empty; give at least two tokens")
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
            if "positions" in self.without:
                changes.enter_context(without_positions(self.model))
            if "norms" in self.without:
                changes.enter_context(frozen_norms(self.model, lambda: self._call(inputs)))
            changes.enter_context(watched(self.model, self.checkpoint, self.stack, see, parts))
            self._call(inputs)
        return measure.result()

    def _call(self, inputs: dict[str, Tensor]) -> None:
        part = getattr(self.model, self.stack, self.model) if self.stack == "encoder" else self.model
        part(**inputs)
