r"""Tokens pushed through all blocks of a model again and again, as [abella2024asymptotic] does.

The tokens are embedded once. One pass is all blocks, and then the final norm if it stands between passes (the script of May 2025;
that of January leaves it out). Consensus is measured as there, :math:`1 - \text{mean}_j|\cos(x_1, x_j)|`, which is blind to
signs, with the smallest signed cosine beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.configured import drawn
from attractor.checkpoints.decays import Decay, decay
from attractor.checkpoints.iteration_store import Saved, load_saved, save
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.checkpoints.passes import embedded, stepping
from attractor.checkpoints.precision import double
from attractor.checkpoints.prompts import Prompts, read_prompts
from attractor.checkpoints.readout import decoded, unembedding
from attractor.checkpoints.running import whole_model
from attractor.checkpoints.watching import Passage, norms_after
from attractor.errors import AttractorError, InputError
from attractor.states import Tokens

CURVES = ("consensus_metric", "cosine_min", "cosine", "token_norm", "effective_rank")
SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Protocol:
    """What is done in every pass, in the words of the scripts.

    ``random`` draws the model's weights anew before the run, ``redraw`` before every pass (seed + 1 + pass); ``init`` says from
    what distribution. ``seed`` also draws random prompts.
    """

    passes: int = 100
    feedforward: bool = True
    final_norm: bool = True
    random: bool = False
    redraw: bool = False
    init: str = "family"
    seed: int = 42
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise InputError(f"passes must be at least 1, got {self.passes}")
        if not self.dtype.is_floating_point:
            raise InputError(f"dtype must be a floating type, got {self.dtype}")


@dataclass(frozen=True)
class Iteration:
    """Curves of all prompts, (prompts, passes + 1) each, of the tokens that the next pass takes.

    ``normed`` is the official metric after the final norm (from the first pass on; the same where that norm stands between passes),
    ``by_layer`` the metric after every block, (prompts, passes x layers + 1). ``words`` has the decoded text of every prompt at
    chosen passes. ``final`` are the last tokens.
    """

    model: str
    layers: int
    protocol: Protocol
    prompts: tuple[str, ...]
    lengths: tuple[int, ...]
    curves: dict[str, np.ndarray]
    normed: np.ndarray
    by_layer: np.ndarray
    words: dict[int, tuple[str, ...]]
    notes: tuple[str, ...]
    seconds: float
    final: tuple[Tensor, ...] = field(repr=False, default=())

    @property
    def metric(self) -> np.ndarray:
        """The official metric, its mean over prompts, (passes + 1,)."""
        return self.curves["consensus_metric"].mean(0)

    @property
    def floor(self) -> float:
        """Where rounding of the tokens hides the metric, which is a squared distance."""
        return float((100 * torch.finfo(self.protocol.dtype).eps) ** 2)

    @property
    def law(self) -> Decay:
        """The law of the mean over prompts."""
        return decay(self.metric, self.floor)

    @property
    def laws(self) -> tuple[Decay, ...]:
        """The law of every prompt."""
        return tuple(decay(row, self.floor) for row in self.curves["consensus_metric"])


def iterate(
    source: Any,
    prompts: Sequence[Any] = (),
    *,
    protocol: Protocol | None = None,
    random_prompts: int = 0,
    prompt_tokens: int = 24,
    decode: Sequence[int] = (),
    tokenizer: Any = None,
    max_tokens: int | None = None,
    stack: str | None = None,
    store: Path | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
    **changes: Any,
) -> Iteration:
    """Push the tokens of prompts (texts, token ids, or random ids) through all blocks of a model, pass after pass.

    ``changes`` are fields of the ``Protocol``: ``iterate("smollm2", ["Some words."], passes=50, final_norm=False)``. ``decode`` names
    passes whose tokens are read as words. With ``store`` the state is written to this file every twenty seconds and at the end, and
    ``resume`` goes on from there, also to more passes.
    """
    protocol = replace(protocol or Protocol(), **changes)
    opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    chosen = _stack(opened, stack)
    wanted = sorted({k for k in decode if 0 <= k <= protocol.passes})
    if any(not 0 <= k <= protocol.passes for k in decode):
        raise InputError(f"passes to decode lie between 0 and {protocol.passes}, got {', '.join(map(str, decode))}")
    start, exact = time.perf_counter(), protocol.dtype == torch.float64
    asked = read_prompts(
        opened, prompts, random_prompts, prompt_tokens, protocol.seed, tokenizer, max_tokens, bool(wanted)
    )
    run = _Run(opened, chosen, protocol, asked, wanted)  # files are read outside of the double world
    with torch.no_grad(), double() if exact else nullcontext():
        run.begin()
        if resume:
            run.restore(load_saved(store, run.definition()))
        run.all_passes(store, progress)
    return run.result(time.perf_counter() - start)


class _Run:
    """The state between passes."""

    def __init__(
        self, opened: Checkpoint, stack: str, protocol: Protocol, prompts: Prompts, decode: Sequence[int]
    ) -> None:
        self.opened, self.stack, self.protocol, self.prompts, self.decode = opened, stack, protocol, prompts, decode
        fresh = protocol.random or protocol.redraw
        if fresh:
            self.model = drawn(opened.config, protocol.seed, protocol.init, protocol.dtype)
            self.checkpoint = open_checkpoint(self.model)
        else:
            self.model, self.checkpoint = whole_model(opened, protocol.dtype), opened
            if opened.model is not None and next(self.model.parameters()).dtype != protocol.dtype:
                raise InputError(
                    f"the model in memory is in {next(self.model.parameters()).dtype}; give dtype=... the same, or convert it"
                )
        self.words = unembedding(opened, self.model, fresh) if decode else None
        self.layers = opened.family.stacks(opened.config)[stack]
        norms_after(self.checkpoint, stack)
        self.inputs = [_floats(one, protocol.dtype) for one in prompts.inputs]
        self.done = 0
        self.curves: dict[str, list[list[float]]] = {name: [[] for _ in self.inputs] for name in CURVES}
        self.normed: list[list[float]] = [[float("nan")] for _ in self.inputs]
        self.texts: dict[int, tuple[str, ...]] = {}

    def begin(self) -> None:
        """Embed the prompts."""
        self.states = [embedded(self.model, self.checkpoint, self.stack, one) for one in self.inputs]
        self.by_layer = [[_metric(x)] for x in self.states]
        self._measure()
        if 0 in self.decode:
            self._read(0, self.states)

    def definition(self) -> dict[str, Any]:
        """What a stored run must agree with to be continued; more passes and other decoded ones are no contradiction."""
        same = {name: value for name, value in vars(self.protocol).items() if name not in ("passes", "dtype")}
        names = list(self.prompts.names)
        return {
            "model": self.opened.name,
            "stack": self.stack,
            "prompts": names,
            "dtype": str(self.protocol.dtype),
            **same,
        }

    def all_passes(self, store: Path | None, progress: Callable[[int, int], None] | None) -> None:
        saved = time.perf_counter()
        with ExitStack() as hooks:
            if not self.protocol.redraw:
                step = self._stepping(hooks)
            try:
                while self.done < self.protocol.passes:
                    if self.protocol.redraw:
                        with ExitStack() as once:
                            self._redraw()
                            self._pass(self._stepping(once))
                    else:
                        self._pass(step)  # pyright: ignore[reportPossiblyUnboundVariable]
                    if progress is not None:
                        progress(self.done, self.protocol.passes)
                    if store is not None and time.perf_counter() - saved > SAVE_EVERY:
                        self._save(store)
                        saved = time.perf_counter()
            finally:
                if store is not None:
                    self._save(store)

    def _stepping(self, hooks: ExitStack) -> Callable[..., tuple[Tensor, Tensor]]:
        return hooks.enter_context(
            stepping(self.model, self.checkpoint, self.stack, self.protocol.feedforward, self._block)
        )

    def _redraw(self) -> None:
        seed = self.protocol.seed + 1 + self.done
        self.model = drawn(self.opened.config, seed, self.protocol.init, self.protocol.dtype, few=True)
        self.checkpoint = open_checkpoint(self.model)
        # only how many words there are matters now: the tokens themselves are put in before the first block
        self.inputs = [
            {name: torch.zeros_like(part) if name == "input_ids" else part for name, part in one.items()}
            for one in self.inputs
        ]

    def _block(self, passage: Passage) -> None:
        self._seen.append(_metric(passage.after))

    def _pass(self, step: Callable[..., tuple[Tensor, Tensor]]) -> None:
        ends = []
        for index, (x, inputs) in enumerate(zip(self.states, self.inputs, strict=True)):
            self._seen: list[float] = []
            last, normed = step(x, inputs)
            if not bool(torch.isfinite(normed).all()):
                raise AttractorError(
                    f"the tokens are no longer finite in pass {self.done + 1}; a wider dtype=... may hold them"
                )
            self.states[index] = normed if self.protocol.final_norm else last
            self.by_layer[index] += self._seen
            self.normed[index].append(_metric(normed))
            ends.append(normed)
        self.done += 1
        self._measure()
        if self.done in self.decode:
            self._read(self.done, ends)

    def _measure(self) -> None:
        for index, x in enumerate(self.states):
            tokens = Tokens(x.double())
            for name in CURVES:
                self.curves[name][index].append(float(observables.named(name)(tokens)))

    def _read(self, k: int, tokens: Sequence[Tensor]) -> None:
        assert self.words is not None
        self.texts[k] = tuple(decoded(x, self.words[0], self.prompts.tokenizer) for x in tokens)

    def _save(self, store: Path) -> None:
        curves = {name: np.array(rows) for name, rows in self.curves.items()}
        save(store, Saved(self.definition(), self.done, self.states, curves, self.normed, self.by_layer, self.texts))

    def restore(self, saved: Saved) -> None:
        """Go on from a stored state."""
        if saved.done > self.protocol.passes:
            raise InputError(f"the stored run has {saved.done} passes already; ask for more than that")
        self.done, self.states = saved.done, [x.to(self.protocol.dtype) for x in saved.states]
        self.curves = {name: rows.tolist() for name, rows in saved.curves.items()}
        self.normed, self.by_layer, self.texts = saved.normed, saved.by_layer, dict(saved.texts)

    def result(self, seconds: float) -> Iteration:
        notes = list(self.opened.notes)
        if self.words is not None:
            notes.append(f"words are read by {self.words[1]}")
        by_layer, normed = np.array(self.by_layer), np.array(self.normed)
        if not self.protocol.final_norm and np.array_equal(by_layer[:, -1], normed[:, -1]):
            notes.append("the model has no final norm, so leaving it out changes nothing")
        curves = {name: np.array(rows) for name, rows in self.curves.items()}
        lengths = tuple(len(x) for x in self.states)
        name = self.opened.name
        return Iteration(
            name, self.layers, self.protocol, self.prompts.names, lengths, curves, normed, by_layer, self.texts,
            tuple(notes), seconds, tuple(self.states),
        )  # fmt: skip


def _metric(x: Tensor) -> float:
    return float(observables.consensus_metric(Tokens(x.double())))


def _floats(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: part.to(dtype) if part.is_floating_point() else part for name, part in inputs.items()}


def _stack(opened: Checkpoint, stack: str | None) -> str:
    stacks = list(opened.family.stacks(opened.config))
    if stack is not None and stack not in stacks:
        raise InputError(f"{opened.name} has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
    return stacks[0] if stack is None else stack
