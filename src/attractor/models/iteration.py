"""``iterate``: tokens passed through all blocks of a model repeatedly."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.errors import AttractorError, InputError, StoreError
from attractor.files import write_atomic
from attractor.models.attention_layers import double
from attractor.models.checkpoints import Checkpoint
from attractor.models.decay import Decay, decay
from attractor.models.forward_map import decoded, embedded, step_blocks, unembedding
from attractor.models.hooks import Passage, norms_after
from attractor.models.inputs import Prompts, read_prompts
from attractor.models.loading import whole_model
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.random_init import drawn
from attractor.states import Tokens


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
    seed: int = 0
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


DIGESTS = ("weights", "inputs")
TOLD = ("model", "prompts", "lengths")  # a digest stands for each of these


@dataclass(frozen=True)
class Saved:
    """The state after ``done`` passes."""

    definition: dict[str, Any]
    done: int
    states: list[Tensor]
    curves: dict[str, np.ndarray]
    normed: list[list[float]]
    by_layer: list[list[float]]
    texts: dict[int, tuple[str, ...]]
    reader: str | None = None
    asked: dict[str, Any] | None = None  # in the words of whoever began the run


def save(path: Path, saved: Saved) -> None:
    """Write the state, whole or not at all."""
    head = {"definition": saved.definition, "done": saved.done, "texts": list(saved.texts.items())}
    head |= {"reader": saved.reader, "asked": saved.asked}
    arrays = {f"state_{index}": x.double().numpy() for index, x in enumerate(saved.states)}
    arrays |= {f"curve_{name}": rows for name, rows in saved.curves.items()}
    arrays |= {"head": np.array(json.dumps(head)), "normed": np.array(saved.normed), "layers": np.array(saved.by_layer)}
    with write_atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_saved(path: Path | None, definition: dict[str, Any]) -> Saved:
    """The state in a file, if it is one of this very run."""
    if path is None or not path.is_file():
        raise InputError(
            f"there is no stored run {path or ''} to go on with; leave resume=... out to begin one".replace("  ", " ")
        )
    with _read(path):
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        head = json.loads(str(arrays.pop("head")))
        states = [torch.from_numpy(arrays[f"state_{index}"]) for index in range(len(head["definition"]["prompts"]))]
        curves = {name.removeprefix("curve_"): rows for name, rows in arrays.items() if name.startswith("curve_")}
        found = Saved(
            head["definition"], int(head["done"]), states, curves, arrays["normed"].tolist(), arrays["layers"].tolist(),
            {int(k): tuple(texts) for k, texts in head["texts"]}, head.get("reader"), head.get("asked"),
        )  # fmt: skip
    _refuse_another(path, found.definition, definition)
    return found


def request(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a stored run was asked for, in the words of whoever began it (nothing if an earlier version did), and its definition."""
    with _read(path), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        head = json.loads(str(stored["head"]))
        return dict(head.get("asked") or {}), dict(head["definition"])


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """One sentence about a file that holds no iteration."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        reason = "it is damaged, or something else" if "pickle" in str(error) else str(error)
        raise StoreError(f"{path} is no stored iteration that can be read: {reason}") from None


def digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """What tells tensors apart: a digest of their names, shapes, dtypes and all bytes."""
    found = hashlib.sha256()
    for name, part in named:
        found.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _refuse_another(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """One sentence where a file holds another run; names of models and prompts are only told, digests decide."""
    differing = [name for name in asked if name not in TOLD and stored.get(name) != asked[name]]
    if not differing:
        return
    words = [f"its {name} is {stored.get(name)!r}, not {asked[name]!r}" for name in differing if name not in DIGESTS]
    if "weights" in differing and (not words or stored.get("model") != asked["model"]):  # a seed draws weights too
        words.append(f"its model is {stored.get('model')!r} with other weights than those of {asked['model']!r} here")
    if "inputs" in differing and not words:
        one, other = (" and ".join(map(str, each.get("lengths", ["other"]))) for each in (stored, asked))
        words.append(f"its prompts have {one} tokens, not {other}" if one != other else "its prompts are others")
    raise InputError(f"{path} holds another run: {'; '.join(words)}; ask for that run, or give another file")


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
            step_blocks(self.model, self.checkpoint, self.stack, self.protocol.feedforward, self._block)
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
    asked: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **changes: Any,
) -> Iteration:
    """Push the tokens of prompts (texts, token ids, or random ids) through all blocks of a model, pass after pass.

    ``changes`` are fields of the ``Protocol``: ``iterate("smollm2", ["Some words."], passes=50, final_norm=False)``. ``decode`` names
    passes whose tokens are read as words. With ``store`` the state is written to this file every twenty seconds and at the end, and
    ``resume`` goes on from there, also to more passes; it refuses the state of another run. ``asked`` is kept there for whoever goes on.
    """
    protocol = replace(protocol or Protocol(), **changes)
    opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    chosen = _stack(opened, stack)
    wanted = sorted({k for k in decode if 0 <= k <= protocol.passes})
    if any(not 0 <= k <= protocol.passes for k in decode):
        raise InputError(f"passes to decode lie between 0 and {protocol.passes}, got {', '.join(map(str, decode))}")
    start, exact = time.perf_counter(), protocol.dtype == torch.float64
    read = read_prompts(
        opened, prompts, random_prompts, prompt_tokens, protocol.seed, tokenizer, max_tokens, bool(wanted)
    )
    run = Run(opened, chosen, protocol, read, wanted, asked)  # files are read outside of the double world
    with torch.no_grad(), double() if exact else nullcontext():
        run.begin()
        definition = {} if store is None else run.definition()
        if resume:
            run.restore(load_saved(store, definition))
        run.all_passes(store, definition, progress)
    return run.result(time.perf_counter() - start)


def _stack(opened: Checkpoint, stack: str | None) -> str:
    stacks = list(opened.family.stacks(opened.config))
    if stack is not None and stack not in stacks:
        raise InputError(f"{opened.name} has no stack {stack!r}; it has {', '.join(map(repr, stacks))}")
    return stacks[0] if stack is None else stack
