"""An iteration at work: the state between passes, kept so that a run that stops anywhere is whole up to its last pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.configured import drawn
from attractor.checkpoints.iteration import Iteration, Protocol
from attractor.checkpoints.iteration_store import Saved, digest, save
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.checkpoints.passes import embedded, stepping
from attractor.checkpoints.prompts import Prompts
from attractor.checkpoints.readout import decoded, unembedding
from attractor.checkpoints.running import whole_model
from attractor.checkpoints.watching import Passage, norms_after
from attractor.errors import AttractorError, InputError
from attractor.states import Tokens

CURVES = ("consensus_metric", "cosine_min", "cosine", "token_norm", "effective_rank")
SAVE_EVERY = 20.0  # seconds


@dataclass(frozen=True)
class Reached:
    """The tokens of all prompts after ``done`` passes; one object, so that an interruption cannot fall between its parts."""

    done: int
    states: tuple[Tensor, ...]


class Run:
    """The model, the prompts, and what has been measured; lists may run ahead of ``reached`` by a pass that was interrupted."""

    def __init__(
        self,
        opened: Checkpoint,
        stack: str,
        protocol: Protocol,
        prompts: Prompts,
        decode: Sequence[int],
        asked: dict[str, Any] | None = None,
    ) -> None:
        self.opened, self.stack, self.protocol, self.prompts, self.decode = opened, stack, protocol, prompts, decode
        self.asked = asked
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
        self.reader = None if self.words is None else self.words[1]
        self.layers = opened.family.stacks(opened.config)[stack]
        norms_after(self.checkpoint, stack)
        self.inputs = [_floats(one, protocol.dtype) for one in prompts.inputs]
        self.curves: dict[str, list[list[float]]] = {name: [[] for _ in self.inputs] for name in CURVES}
        self.normed: list[list[float]] = [[float("nan")] for _ in self.inputs]
        self.texts: dict[int, tuple[str, ...]] = {}

    def begin(self) -> None:
        """Embed the prompts."""
        states = tuple(embedded(self.model, self.checkpoint, self.stack, one) for one in self.inputs)
        self.by_layer = [[_metric(x)] for x in states]
        self._measure(states)
        self._read(0, states)
        self.reached = Reached(0, states)

    def definition(self) -> dict[str, Any]:
        """What a stored run must agree with to be continued; more passes and other decoded ones are no contradiction."""
        given = [(name, part) for one in self.prompts.inputs for name, part in one.items()]
        return {
            "model": self.opened.name,
            "weights": digest(self.model.state_dict().items()),
            "stack": self.stack,
            "prompts": list(self.prompts.names),
            "lengths": [len(x) for x in self.reached.states],
            "inputs": digest(given),
            "dtype": str(self.protocol.dtype),
            **{name: value for name, value in vars(self.protocol).items() if name not in ("passes", "dtype")},
        }

    def all_passes(
        self, store: Path | None, definition: dict[str, Any], progress: Callable[[int, int], None] | None
    ) -> None:
        """Every pass that is left; the state is written now and then, and at the end whatever ends it."""
        saved = time.perf_counter()
        with ExitStack() as hooks:
            if not self.protocol.redraw:
                step = self._stepping(hooks)
            try:
                while self.reached.done < self.protocol.passes:
                    if self.protocol.redraw:
                        with ExitStack() as once:
                            self._redraw()
                            self._pass(self._stepping(once))
                    else:
                        self._pass(step)  # pyright: ignore[reportPossiblyUnboundVariable]
                    if progress is not None:
                        progress(self.reached.done, self.protocol.passes)
                    if store is not None and time.perf_counter() - saved > SAVE_EVERY:
                        save(store, self._saved(definition))
                        saved = time.perf_counter()
            finally:
                if store is not None:
                    save(store, self._saved(definition))

    def _stepping(self, hooks: ExitStack) -> Callable[..., tuple[Tensor, Tensor]]:
        return hooks.enter_context(
            stepping(self.model, self.checkpoint, self.stack, self.protocol.feedforward, self._block)
        )

    def _redraw(self) -> None:
        seed = self.protocol.seed + 1 + self.reached.done
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
        states, ends = [], []
        done = self.reached.done + 1
        for index, (x, inputs) in enumerate(zip(self.reached.states, self.inputs, strict=True)):
            self._seen: list[float] = []
            last, normed = step(x, inputs)
            if not bool(torch.isfinite(normed).all()):
                raise AttractorError(f"the tokens are no longer finite in pass {done}; a wider dtype=... may hold them")
            states.append(normed if self.protocol.final_norm else last)
            self.by_layer[index] += self._seen
            self.normed[index].append(_metric(normed))
            ends.append(normed)
        self._measure(states)
        self._read(done, ends)
        self.reached = Reached(done, tuple(states))

    def _measure(self, states: Sequence[Tensor]) -> None:
        for index, x in enumerate(states):
            tokens = Tokens(x.double())
            for name in CURVES:
                self.curves[name][index].append(float(observables.named(name)(tokens)))

    def _read(self, k: int, tokens: Sequence[Tensor]) -> None:
        if self.words is not None and k in self.decode:
            self.texts[k] = tuple(decoded(x, self.words[0], self.prompts.tokenizer) for x in tokens)

    def _saved(self, definition: dict[str, Any]) -> Saved:
        """All that belongs to the passes that are done."""
        done = self.reached.done
        curves = {name: np.array([row[: done + 1] for row in rows]) for name, rows in self.curves.items()}
        normed = [row[: done + 1] for row in self.normed]
        by_layer = [row[: done * self.layers + 1] for row in self.by_layer]
        texts = {k: read for k, read in self.texts.items() if k <= done}
        return Saved(
            definition, done, list(self.reached.states), curves, normed, by_layer, texts, self.reader, self.asked
        )

    def restore(self, saved: Saved) -> None:
        """Go on from a stored state."""
        done = saved.done
        if done > self.protocol.passes:
            raise InputError(f"the stored run has {done} passes already; ask for more than that")
        states = tuple(x.to(self.protocol.dtype) for x in saved.states)
        self.texts |= saved.texts
        if self.protocol.final_norm and done not in self.texts:
            self._read(done, states)
        lost = [k for k in self.decode if k <= done and k not in self.texts]
        if lost:
            raise InputError(
                f"the stored run is past {'pass' if len(lost) == 1 else 'passes'} {', '.join(map(str, lost))} and did not read "
                f"the words there; leave {'it' if len(lost) == 1 else 'them'} out of decode=..., or begin again in another file"
            )
        self.reached, self.reader = Reached(done, states), self.reader or saved.reader
        self.asked = self.asked or saved.asked
        self.curves = {name: rows.tolist() for name, rows in saved.curves.items()}
        self.normed, self.by_layer = saved.normed, saved.by_layer

    def result(self, seconds: float) -> Iteration:
        """What was found."""
        notes = [*self.opened.notes, *self.prompts.notes]
        if self.reader is not None:
            notes.append(f"words are read by {self.reader}")
        by_layer, normed = np.array(self.by_layer), np.array(self.normed)
        if not self.protocol.final_norm and np.array_equal(by_layer[:, -1], normed[:, -1]):
            notes.append("the model has no final norm, so leaving it out changes nothing")
        curves = {name: np.array(rows) for name, rows in self.curves.items()}
        states = self.reached.states
        return Iteration(
            self.opened.name, self.layers, self.protocol, self.prompts.names, tuple(len(x) for x in states), curves,
            normed, by_layer, self.texts, tuple(notes), seconds, states,
        )  # fmt: skip


def _metric(x: Tensor) -> float:
    return float(observables.consensus_metric(Tokens(x.double())))


def _floats(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: part.to(dtype) if part.is_floating_point() else part for name, part in inputs.items()}
