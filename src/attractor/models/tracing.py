"""``trace``: tokens of a model along depth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.html_repr import html_card
from attractor.models.attention_layers import Layer
from attractor.models.checkpoints import Checkpoint
from attractor.models.hooks import Passage, check_ablations, frozen_norms, watched, without_positions
from attractor.models.loading import ShortText, context_length, token_ids, tokenizer_of, whole_model
from attractor.models.measurements import Measurements, measured
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.solvers import Outcome, Statistics, Trajectory, drawing
from attractor.spaces import Euclidean
from attractor.states import Tokens

FIRST = 12  # words that a card shows


def trace_card(trace: Trace) -> str:
    """Blocks, tokens and words, and what changed from the first block to the last."""
    rows: dict[str, Any] = {"blocks": len(trace.times) - 1, "tokens": f"{trace.n:,} of dimension {trace.dim}"}
    if trace.words:
        rows["words"] = " ".join(trace.words[:FIRST]) + (" ..." if len(trace.words) > FIRST else "")
    for name in ("token_norm", "cosine"):
        values = trace.observe(name)
        rows[name.replace("_", " ")] = (
            f"{float(values[0]):.4g} before the first block, {float(values[-1]):.4g} after the last"
        )
    return html_card("Trace", rows | {"took": f"{trace.stats.seconds:.3g} s"}, drawing(trace))


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


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Trajectory):
    """Tokens of a real model along depth: the residual stream before every block and after the last, before the final norm.

    ``times`` counts blocks. ``words`` are the tokens, ``measurements`` what attention and feed-forward did in every block.
    """

    words: tuple[str, ...] = ()
    measurements: Measurements | None = None

    def _repr_html_(self) -> str:
        """A card for notebooks: the words, and how norm and cosine changed over all blocks."""

        return trace_card(self)


@dataclass(frozen=True)
class Skipped:
    """A text that was left out because it has fewer than two tokens: its place among those given, its name, and its tokens."""

    index: int
    name: str
    tokens: int


@dataclass(frozen=True)
class Traces:
    """Many texts in numbers; activations are not kept. ``measurements`` has one entry for each text that was not skipped."""

    model: str
    texts: int
    lengths: tuple[int, ...]
    measurements: tuple[Measurements, ...]
    without: tuple[str, ...]
    seconds: float
    skipped: tuple[Skipped, ...] = ()

    def curve(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean over texts and standard deviation of a measurement of the stream, (blocks + 1,), where it is defined."""
        return _spread([part.curves[name] for part in self.measurements])

    def block(self, name: str) -> tuple[Tensor, Tensor]:
        """The same of what a part of every block moved, (blocks,)."""
        return _spread([part.blocks[name] for part in self.measurements])

    def head(self, name: str) -> Tensor:
        """Mean over texts of a measurement of every head, (blocks, h); NaN where it is undefined."""
        return torch.stack([part.heads[name] for part in self.measurements]).nanmean(0)


def _spread(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Over the texts that define it: a text of two tokens has no pair without its first."""
    stacked = torch.stack(values)
    mean, count = stacked.nanmean(0), (~stacked.isnan()).sum(0)
    squares = (stacked - mean).square().nansum(0)
    return mean, torch.where(count > 1, (squares / (count - 1).clamp_min(1)).sqrt(), torch.zeros_like(mean))


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
    names: Sequence[str] | None = None,
    skip: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """The same for many texts, one after the other, as numbers alone.

    ``summary`` measures what takes time linear in the number of tokens, which slows the model by a few percent: norms, distances, mean
    cosine, sharpness, and what each part of a block moved. ``names`` say in an error which text it was; ``skip`` leaves out texts
    of fewer than two tokens, which ``Traces.skipped`` lists, instead of refusing them.
    """
    if not texts:
        raise InputError("there is no text to trace")
    model, start = Session.open(source, tokenizer, without, stack), time.perf_counter()
    found, lengths, skipped = [], [], []
    for index, text in enumerate(texts):
        name = names[index] if names is not None else f"text {index + 1} of {len(texts)}"
        try:
            inputs, words = model.inputs(text, max_tokens, cut)
        except ShortText as error:
            if not skip:
                raise _named(error, name, len(texts)) from None
            skipped.append(Skipped(index, name, error.tokens))
            continue
        except InputError as error:
            raise _named(error, name, len(texts)) from None
        found.append(model.run(inputs, attention, summary=summary))
        lengths.append(len(words) or found[-1].tokens)
        if progress is not None:
            progress(index + 1)
    if not found:
        raise InputError(
            f"none of {len(texts)} texts has two tokens, which a trace needs; {skipped[0].name} is one of them"
        )
    seconds = time.perf_counter() - start
    return Traces(
        model.checkpoint.name, len(found), tuple(lengths), tuple(found), model.without, seconds, tuple(skipped)
    )


def _named(error: InputError, name: str, texts: int) -> InputError:
    return error if texts == 1 else InputError(f"{name}: {error}")
