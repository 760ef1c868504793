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

import numpy as np
import torch
from torch import Tensor

from attractor import observables
from attractor.errors import AttractorError, InputError, StoreError
from attractor.files import pack_arrays, unpack_arrays, write_atomic
from attractor.models.attention_layers import use_float64
from attractor.models.checkpoints import Checkpoint
from attractor.models.decay import Decay, fit_decay
from attractor.models.forward_map import ForwardMap, decode, embed, open_forward_map, read_unembedding
from attractor.models.hooks import BlockStates, output_maps
from attractor.models.inputs import Prompts, read_prompts
from attractor.models.loading import choose_run, keep_layers, load_model
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.random_init import initialize
from attractor.plotting import Curve, Panel, draw_panels
from attractor.serialization import to_frame
from attractor.states import Tokens


@dataclass(frozen=True)
class Protocol:
    """Settings of an iteration.

    Attributes
    ----------
    passes : number of passes through all blocks.
    feedforward : with or without the feed-forward parts.
    final_norm : apply the final norm after every pass, not only to the measured copy.
    random : draw random weights before the run.
    redraw : draw random weights before every pass, with the seed ``seed + 1 + pass``.
    init : "family" draws weights as the model's own code does, "plain" from N(0, 0.02) everywhere.
    seed : seed of random weights and random prompts.
    dtype : precision of the model.
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
    """Tokens of several prompts, passed through all blocks of a model repeatedly.

    Attributes
    ----------
    model, layers : name of the model and number of its blocks.
    protocol : the settings.
    prompts, lengths : names of the prompts, and their numbers of tokens.
    curves : observables of the tokens that enter each pass, (prompts, passes + 1) each: ``consensus_metric`` m = 1 - mean |cos(x_1, x_j)|,
        ``cosine_min``, ``cosine``, ``token_norm`` and ``effective_rank``.
    normed : the consensus metric after the final norm, (prompts, passes + 1); NaN before the first pass.
    by_layer : the consensus metric after every block, (prompts, passes x layers + 1).
    words : decoded text of every prompt, by pass.
    notes : remarks on the model and the prompts.
    seconds : wall-clock time.
    final : the last tokens of every prompt, (n, d) each.
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
    def norm_between(self) -> str:
        """Where the final norm acts, in words; a post-norm model such as BERT has none."""
        if np.array_equal(self.by_layer[:, -1], self.normed[:, -1]):
            return "the model has no final norm"
        return "final norm between passes" if self.protocol.final_norm else "no final norm between passes"

    @property
    def metric(self) -> np.ndarray:
        """The consensus metric, mean over prompts, (passes + 1,)."""
        return self.curves["consensus_metric"].mean(0)

    @property
    def floor(self) -> float:
        """The metric is a squared distance; below this value rounding of the tokens dominates it."""
        return float((100 * torch.finfo(self.protocol.dtype).eps) ** 2)

    @property
    def decay(self) -> Decay:
        """The fitted decay of the mean over prompts."""
        return fit_decay(self.metric, self.floor)

    @property
    def decays(self) -> tuple[Decay, ...]:
        """The fitted decay of every prompt."""
        return tuple(fit_decay(row, self.floor) for row in self.curves["consensus_metric"])

    def __repr__(self) -> str:
        decay = self.decay
        size = f"{len(self.prompts)} prompts, {self.normed.shape[1] - 1} passes"
        return f"Iteration({self.model!r}, {self.layers} blocks, {size}, decay {decay.name}: {decay.message})"

    def frame(self) -> Any:
        """A pandas DataFrame with one row for each prompt and pass."""
        columns = {**self.curves, "normed": self.normed}
        return to_frame(
            {"prompt": prompt, "pass": k, **{name: float(values[row, k]) for name, values in columns.items()}}
            for row, prompt in enumerate(self.prompts)
            for k in range(self.normed.shape[1])
        )

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the decay with its fits; return the figure, or the path it was written to (.png, .pdf or .svg)."""
        k, metric, decay = np.arange(len(self.metric)), self.metric, self.decay
        shown = (k >= 1) & (metric > 0)
        first, last = decay.window
        span = np.geomspace(first, max(last, first + 1), 200)
        fits = [
            Curve(span.tolist(), fit.at(span).tolist(), f"{fit.law}, residual {fit.residual:.2g}", dashed=True)
            for fit in decay.fits.values()
        ]
        curve = Curve(k[shown].tolist(), metric[shown].tolist(), "measured")
        named = {"cosine_min": "smallest", "cosine": "mean"}
        cosines = [Curve(k.tolist(), self.curves[name].mean(0).tolist(), label) for name, label in named.items()]
        panels = [
            Panel((curve, *fits[:1]), "pass", "1 - mean |cos(x₁, xⱼ)|", "straight if exponential", log_y=True),
            Panel((curve, *fits[1:]), "pass", "", "straight if a power", log_x=True, log_y=True),
            Panel(tuple(cosines), "pass", "", "signed cosines of pairs"),
        ]
        title = f"{'/'.join(Path(self.model).parts[-2:])}: tokens through {self.layers} blocks, repeatedly"
        return draw_panels(panels, title, self._caption(), path)

    def _caption(self) -> str:
        protocol, decay = self.protocol, self.decay
        parts = [
            "with feed-forward" if protocol.feedforward else "without feed-forward",
            self.norm_between,
        ]
        if protocol.redraw:
            parts.append("weights drawn anew before every pass")
        elif protocol.random:
            parts.append("random weights")
        many = f"Mean over {len(self.prompts)} prompts. " if len(self.prompts) > 1 else ""
        settings = f"{protocol.passes} passes, {', '.join(parts)}, seed {protocol.seed}"
        return f"{settings}. {many}Law: {decay.name}, {decay.message}."


DIGESTS = ("weights", "inputs")
NAMES = ("model", "prompts", "lengths")  # not compared: a digest stands for each of these


@dataclass(frozen=True)
class StoredRun:
    """The state of a run after ``done`` passes; ``definition`` identifies the run and ``request`` holds the caller's options."""

    definition: dict[str, Any]
    done: int
    states: list[Tensor]
    curves: dict[str, np.ndarray]
    normed: list[list[float]]
    by_layer: list[list[float]]
    texts: dict[int, tuple[str, ...]]
    reader: str | None = None
    request: dict[str, Any] | None = None


def save_run(path: Path, saved: StoredRun) -> None:
    """Write the state atomically."""
    head = {"definition": saved.definition, "done": saved.done, "texts": list(saved.texts.items())}
    head |= {"reader": saved.reader, "request": saved.request}
    arrays = {f"state_{index}": x.double().numpy() for index, x in enumerate(saved.states)}
    arrays |= {f"curve_{name}": rows for name, rows in saved.curves.items()}
    arrays |= {"head": np.array(json.dumps(head)), "normed": np.array(saved.normed), "layers": np.array(saved.by_layer)}
    with write_atomic(path) as temporary:
        temporary.write_bytes(pack_arrays(arrays))


def load_run(path: Path | None, definition: dict[str, Any]) -> StoredRun:
    """The state in a file; raises if it belongs to a run with another definition."""
    if path is None or not path.is_file():
        raise InputError(
            f"there is no stored run {path or ''} to go on with; leave resume=... out to begin one".replace("  ", " ")
        )
    with _explain_errors(path):
        arrays = unpack_arrays(path.read_bytes(), sealed=False)  # 0.2 wrote no checksum
        head = json.loads(str(arrays.pop("head")))
        states = [torch.from_numpy(arrays[f"state_{index}"]) for index in range(len(head["definition"]["prompts"]))]
        curves = {name.removeprefix("curve_"): rows for name, rows in arrays.items() if name.startswith("curve_")}
        found = StoredRun(
            head["definition"], int(head["done"]), states, curves, arrays["normed"].tolist(), arrays["layers"].tolist(),
            {int(k): tuple(texts) for k, texts in head["texts"]}, head.get("reader"), head.get("request"),
        )  # fmt: skip
    _check_definition(path, found.definition, definition)
    return found


def read_request(path: Path) -> dict[str, Any]:
    """The ``request`` of a stored run."""
    with _explain_errors(path):
        arrays = unpack_arrays(path.read_bytes(), sealed=False)
        return dict(json.loads(str(arrays["head"])).get("request") or {})


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Raise a StoreError for a file that holds no iteration."""
    try:
        yield
    except AttractorError:
        raise
    except Exception as error:  # of NumPy, zipfile and JSON
        reason = "it is damaged, or something else" if "pickle" in str(error) else str(error)
        raise StoreError(f"{path} is no stored iteration that can be read: {reason}") from None


def digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """A SHA-256 digest of the names, shapes, dtypes and bytes of tensors."""
    found = hashlib.sha256()
    for name, part in named:
        found.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _check_definition(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """Raise if a file holds another run. Digests decide; names of models and prompts only appear in the message."""
    differing = [name for name in asked if name not in NAMES and stored.get(name) != asked[name]]
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
class State:
    """Tokens of all prompts after ``done`` passes; one object, so that an interruption cannot separate its parts."""

    done: int
    states: tuple[Tensor, ...]


class Run:
    """The model, the prompts and the measurements; after an interruption lists may be one pass ahead of ``state``."""

    def __init__(
        self,
        opened: Checkpoint,
        stack: str,
        protocol: Protocol,
        prompts: Prompts,
        decode: Sequence[int],
        request: dict[str, Any] | None = None,
    ) -> None:
        self.opened, self.stack, self.protocol, self.prompts, self.decode = opened, stack, protocol, prompts, decode
        self.request = request
        fresh = protocol.random or protocol.redraw
        if fresh:
            self.model = initialize(opened.config, protocol.seed, protocol.init, protocol.dtype).to(opened.device)
            self.checkpoint = open_checkpoint(self.model)
        else:
            self.model, self.checkpoint = load_model(opened, protocol.dtype, opened.device), opened
            choose_run(opened, None, protocol.dtype if opened.model is not None else None)
        self.unembedding = read_unembedding(opened, self.model, fresh) if decode else None
        self.reader = None if self.unembedding is None else self.unembedding[1]
        self.layers = opened.stacks[stack]
        output_maps(self.checkpoint, stack)  # read before the precision changes
        self.inputs = [_floats(one, protocol.dtype, opened.device) for one in prompts.inputs]
        self.curves: dict[str, list[list[float]]] = {name: [[] for _ in self.inputs] for name in CURVES}
        self.normed: list[list[float]] = [[float("nan")] for _ in self.inputs]
        self.texts: dict[int, tuple[str, ...]] = {}

    def begin(self) -> None:
        """Embed the prompts."""
        states = tuple(embed(self.model, self.checkpoint, self.stack, one) for one in self.inputs)
        self.by_layer = [[_metric(x)] for x in states]
        self._measure(states)
        self._decode(0, states)
        self.state = State(0, states)

    def definition(self) -> dict[str, Any]:
        """What a stored run must agree on to be continued; the number of passes and of decoded ones may differ."""
        given = [(name, part) for one in self.prompts.inputs for name, part in one.items()]
        return {
            "model": self.opened.name,
            "weights": digest(self.model.state_dict().items()),
            "stack": self.stack,
            "prompts": list(self.prompts.names),
            "lengths": [len(x) for x in self.state.states],
            "inputs": digest(given),
            "dtype": str(self.protocol.dtype),
            **{name: value for name, value in vars(self.protocol).items() if name not in ("passes", "dtype")},
        }

    def run_passes(
        self, store: Path | None, definition: dict[str, Any], progress: Callable[[int, int], None] | None
    ) -> None:
        """Run the remaining passes; the state is stored every SAVE_EVERY seconds, and at the end or on an error."""
        saved = time.perf_counter()
        with ExitStack() as hooks:
            if not self.protocol.redraw:
                forward = self._open_map(hooks)
            try:
                while self.state.done < self.protocol.passes:
                    if self.protocol.redraw:
                        with ExitStack() as once:
                            self._redraw()
                            self._pass(self._open_map(once))
                    else:
                        self._pass(forward)  # pyright: ignore[reportPossiblyUnboundVariable]
                    if progress is not None:
                        progress(self.state.done, self.protocol.passes)
                    if store is not None and time.perf_counter() - saved > SAVE_EVERY:
                        save_run(store, self._snapshot(definition))
                        saved = time.perf_counter()
            finally:
                if store is not None:
                    save_run(store, self._snapshot(definition))

    def _open_map(self, hooks: ExitStack) -> ForwardMap:
        return hooks.enter_context(
            open_forward_map(self.model, self.checkpoint, self.stack, self.protocol.feedforward, self._add_block)
        )

    def _redraw(self) -> None:
        seed = self.protocol.seed + 1 + self.state.done
        self.model = initialize(
            self.opened.config, seed, self.protocol.init, self.protocol.dtype, small_vocabulary=True
        ).to(self.opened.device)
        self.checkpoint = open_checkpoint(self.model)
        # only the number of tokens matters now: their vectors are inserted before the first block
        self.inputs = [
            {name: torch.zeros_like(part) if name == "input_ids" else part for name, part in one.items()}
            for one in self.inputs
        ]

    def _add_block(self, states: BlockStates) -> None:
        self._seen.append(_metric(states.after))

    def _pass(self, forward: ForwardMap) -> None:
        states, ends = [], []
        done = self.state.done + 1
        for index, (x, inputs) in enumerate(zip(self.state.states, self.inputs, strict=True)):
            self._seen: list[float] = []
            last, normed = forward(x, inputs)
            if not bool(torch.isfinite(normed).all()):
                raise AttractorError(f"the tokens are no longer finite in pass {done}; a wider dtype=... may hold them")
            states.append(normed if self.protocol.final_norm else last)
            self.by_layer[index] += self._seen
            self.normed[index].append(_metric(normed))
            ends.append(normed)
        self._measure(states)
        self._decode(done, ends)
        self.state = State(done, tuple(states))

    def _measure(self, states: Sequence[Tensor]) -> None:
        for index, x in enumerate(states):
            tokens = Tokens(x.double())
            for name in CURVES:
                self.curves[name][index].append(float(observables.find_observable(name)(tokens)))

    def _decode(self, k: int, tokens: Sequence[Tensor]) -> None:
        if self.unembedding is not None and k in self.decode:
            self.texts[k] = tuple(decode(x, self.unembedding[0], self.prompts.tokenizer) for x in tokens)

    def _snapshot(self, definition: dict[str, Any]) -> StoredRun:
        """The state and all measurements of the passes that are done."""
        done = self.state.done
        curves = {name: np.array([row[: done + 1] for row in rows]) for name, rows in self.curves.items()}
        normed = [row[: done + 1] for row in self.normed]
        by_layer = [row[: done * self.layers + 1] for row in self.by_layer]
        texts = {k: read for k, read in self.texts.items() if k <= done}
        return StoredRun(
            definition,
            done,
            [x.cpu() for x in self.state.states],
            curves,
            normed,
            by_layer,
            texts,
            self.reader,
            self.request,
        )

    def restore(self, saved: StoredRun) -> None:
        """Continue from a stored state."""
        done = saved.done
        if done > self.protocol.passes:
            raise InputError(f"the stored run has {done} passes already; ask for more than that")
        states = tuple(x.to(self.opened.device, self.protocol.dtype) for x in saved.states)
        self.texts |= saved.texts
        if self.protocol.final_norm and done not in self.texts:
            self._decode(done, states)
        lost = [k for k in self.decode if k <= done and k not in self.texts]
        if lost:
            raise InputError(
                f"the stored run is past {'pass' if len(lost) == 1 else 'passes'} {', '.join(map(str, lost))} and did not read "
                f"the words there; leave {'it' if len(lost) == 1 else 'them'} out of decode=..., or begin again in another file"
            )
        self.state, self.reader = State(done, states), self.reader or saved.reader
        self.request = self.request or saved.request
        self.curves = {name: rows.tolist() for name, rows in saved.curves.items()}
        self.normed, self.by_layer = saved.normed, saved.by_layer

    def result(self, seconds: float) -> Iteration:
        notes = [*self.opened.notes, *self.prompts.notes]
        if self.reader is not None:
            notes.append(f"words are read by {self.reader}")
        by_layer, normed = np.array(self.by_layer), np.array(self.normed)
        if not self.protocol.final_norm and np.array_equal(by_layer[:, -1], normed[:, -1]):
            notes.append("the model has no final norm, so leaving it out changes nothing")
        curves = {name: np.array(rows) for name, rows in self.curves.items()}
        states = tuple(x.cpu() for x in self.state.states)
        return Iteration(
            self.opened.name, self.layers, self.protocol, self.prompts.names, tuple(len(x) for x in states), curves,
            normed, by_layer, self.texts, tuple(notes), seconds, states,
        )  # fmt: skip


def _metric(x: Tensor) -> float:
    return float(observables.consensus_metric(Tokens(x.double())))


def _floats(inputs: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {name: part.to(device, dtype if part.is_floating_point() else part.dtype) for name, part in inputs.items()}


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
    device: Any = None,
    layers: int | None = None,
    store: Path | None = None,
    resume: bool = False,
    request: dict[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **changes: Any,
) -> Iteration:
    """Pass the tokens of prompts through all blocks of a model repeatedly.

    The tokens are embedded once; one pass is all blocks, with or without the final norm. Consensus is measured after every pass by
    :math:`m = 1 - \\frac1n \\sum_j |\\cos(x_1, x_j)|`.

    Parameters
    ----------
    source : a ``Checkpoint``, or any argument of ``checkpoint``.
    prompts : texts, token ids, or dicts of the model's arguments.
    protocol : settings; ``changes`` are fields of it, as in ``iterate("smollm2", ["Some words."], passes=50, final_norm=False)``.
    random_prompts, prompt_tokens : number and length of prompts of random token ids.
    decode : passes whose tokens are decoded to text.
    tokenizer : used instead of the tokenizer of the model.
    max_tokens : use only the first tokens of each prompt.
    stack : "encoder" or "decoder" of a model with both; the first by default.
    device : where the model runs, such as "cuda"; the CPU by default, or where a model in memory is.
    layers : only the first blocks of a model in files, so many.
    store : a .npz file to which the state is written every twenty seconds and at the end.
    resume : continue the run in ``store``, also to more passes; raises if it holds another run.
    request : options of the caller, kept in the store.
    progress : called with the number of passes that are done and the total.

    Returns
    -------
    Iteration : curves over passes, their fitted ``decay``, and the final tokens.
    """
    protocol = replace(protocol or Protocol(), **changes)
    opened = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    chosen = opened.choose_stack(stack)
    wanted = sorted({k for k in decode if 0 <= k <= protocol.passes})
    if any(not 0 <= k <= protocol.passes for k in decode):
        raise InputError(f"passes to decode lie between 0 and {protocol.passes}, got {', '.join(map(str, decode))}")
    start, exact = time.perf_counter(), protocol.dtype == torch.float64
    read = read_prompts(
        opened, prompts, random_prompts, prompt_tokens, protocol.seed, tokenizer, max_tokens, bool(wanted)
    )
    place, _ = choose_run(opened, device, None)
    opened = replace(keep_layers(opened, layers), device=place)
    run = Run(opened, chosen, protocol, read, wanted, request)  # reads files, so before the switch to float64
    with torch.no_grad(), use_float64() if exact else nullcontext():
        run.begin()
        definition = {} if store is None else run.definition()
        if resume:
            run.restore(load_run(store, definition))
        run.run_passes(store, definition, progress)
    return run.result(time.perf_counter() - start)
