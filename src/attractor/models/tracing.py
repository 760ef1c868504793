"""``trace``: tokens of a model along depth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError, UnsupportedError
from attractor.html_repr import html_card
from attractor.models.attention_layers import Layer
from attractor.models.checkpoints import Checkpoint
from attractor.models.findings import Finding, find_findings
from attractor.models.hidden_states import HiddenStates, open_hidden_states, write_hidden_states
from attractor.models.hooks import (
    BlockStates,
    check_ablations,
    freeze_norms,
    record_blocks,
    remove_positions,
)
from attractor.models.loading import (
    ShortTextError,
    choose_run,
    context_length,
    keep_layers,
    load_model,
    load_tokenizer,
    read_text_config,
    tokenize,
)
from attractor.models.measurements import HEADS, MeasurementCollector, Measurements, Rows
from attractor.models.opening import checkpoint as open_checkpoint
from attractor.models.random_init import initialize
from attractor.models.structure import (
    BlockChain,
    StructuralFamily,
    call_model,
    choose_chain,
    choose_part,
    count_padded,
    find_chains,
    record_chain,
)
from attractor.models.tensors import CPU
from attractor.serialization import to_frame
from attractor.solvers import Outcome, Statistics, Trajectory
from attractor.spaces import Euclidean
from attractor.states import Tokens

SHOWN_WORDS = 12  # in the notebook card
SMALL_MODEL = 3e8  # parameters up to which a model with random weights is built by default
NULL_TEXTS = 4  # texts that models with random weights read
CACHE_BYTES = 2**30  # of layers that a session may keep


class _LastBlock(Exception):
    """Ends a forward pass after the last block of interest."""


@dataclass(frozen=True)
class Session:
    """A model loaded for tracing: one stack of its layers, ``without`` some of its parts.

    A model without a family has no stacks by name; its blocks are found by structure, once for each of its parts. ``layers`` is the
    number of blocks after which a model in memory is stopped; of files, no more are loaded.
    """

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    without: tuple[str, ...]
    stack: str | None
    device: torch.device = CPU
    layers: int | None = None
    cache: dict[int, Layer] = field(default_factory=dict, repr=False)
    chains: dict[str, tuple[BlockChain, tuple[str, ...]]] = field(default_factory=dict, repr=False)

    @property
    def structural(self) -> bool:
        """Whether the model has no family."""
        return isinstance(self.checkpoint.family, StructuralFamily)

    def explain(self, found: Measurements, attention: bool) -> tuple[str, ...]:
        """How blocks were found, for a model without a family that has run, and which of them have no attention weights."""
        if not self.structural:
            return tuple(note for note in self.checkpoint.notes if note.startswith("only the first"))
        notes = [note for _, notes in self.chains.values() for note in notes]
        count = len(found.blocks["displacement"])
        lost = count - int((~found.heads["self_weight"].isnan()).any(-1).sum()) if found.heads else count
        if attention and lost:
            blocks = "no block" if lost == count else f"{lost} of {count} blocks do not"
            notes.append(
                f"{blocks} return{'s' * (lost == count)} attention weights whose rows sum to 1; their heads are not measured"
            )
        return tuple(notes)

    @classmethod
    def open(
        cls,
        source: Any,
        tokenizer: Any,
        without: Sequence[str],
        stack: str | None,
        device: Any = None,
        dtype: Any = None,
        layers: int | None = None,
    ) -> Session:
        """Load the model of a checkpoint, or of any argument of ``checkpoint``; see ``trace``."""
        check_ablations(tuple(without))
        found = source if isinstance(source, Checkpoint) else open_checkpoint(source, structural=True)
        place, precision = choose_run(found, device, dtype)
        found = replace(found if found.model is not None else keep_layers(found, layers), device=place)
        if layers is not None and (not isinstance(layers, int) or layers < 1):
            raise InputError(f"layers must be a number of blocks, at least 1, got {layers!r}")
        if not isinstance(found.family, StructuralFamily):
            stack = found.choose_stack(stack)
        elif parts := [name for name in without if name in ("attention", "feedforward")]:
            raise UnsupportedError(
                f"{found.name} has no family that tells the parts of its blocks, so {parts[0]} cannot be removed; "
                "norms can be frozen and positions removed"
            )
        model = load_model(found, precision, place)
        return cls(found, model, tokenizer, tuple(without), stack, place, layers if found.model is not None else None)

    def inputs(
        self, text: Any, max_tokens: int | None = None, cut: bool = False
    ) -> tuple[dict[str, Tensor], list[str]]:
        """The arguments of the model for a text, token ids or a dict of arguments, and the tokens as strings."""
        if isinstance(text, dict):
            return text, []
        if isinstance(text, str) and not text.strip():
            raise ShortTextError("the text is empty; give at least two tokens", 0)
        longest = context_length(read_text_config(self.checkpoint.config)) if cut else None
        max_tokens = min(filter(None, (max_tokens, longest)), default=None)
        if isinstance(text, str) and self.tokenizer is None:
            object.__setattr__(self, "tokenizer", load_tokenizer(self.checkpoint))
        ids, words = tokenize(self.checkpoint, text, self.tokenizer, max_tokens)
        return {"input_ids": ids.unsqueeze(0)}, words

    def layer(self, index: int) -> Layer:
        """A layer of the stack; kept for the next text if all layers together are small."""
        layers = self.checkpoint.layers
        if index not in self.cache:
            stacks = [layers.place(place)[0] for place in range(len(layers))]
            found = layers[stacks.index(self.stack or "") + index]
            if 4 * found.dim**2 * 8 * len(layers) > CACHE_BYTES:
                return found
            self.cache[index] = found
        return self.cache[index]

    def run(
        self,
        inputs: dict[str, Tensor],
        attention: bool,
        receive: Callable[[BlockStates], None] | None = None,
        summary: bool = False,
    ) -> Measurements:
        """Run the model once and measure every block; ``receive`` is called with the states of each."""
        layers = None if self.structural else self.layer
        inputs = {name: self.convert(part) for name, part in inputs.items()}
        collector = MeasurementCollector(layers, attention, summary, "positions" not in self.without)

        def process(states: BlockStates) -> None:
            collector.add(states)
            if receive is not None:
                receive(states)
            if self.layers is not None and states.index + 1 == self.layers:
                raise _LastBlock

        with torch.no_grad(), ExitStack() as changes:
            run, record = self._prepare(inputs, process, attention and not summary)
            if "norms" in self.without:  # before other changes: lengths are those of the unchanged model
                changes.enter_context(freeze_norms(self.model, run))
            if "positions" in self.without:
                changes.enter_context(remove_positions(self.model))
            changes.enter_context(record)
            with suppress(_LastBlock):
                run()
        return collector.result()

    def convert(self, part: Any) -> Any:
        """An argument of the model on its device, and in its precision."""
        if not isinstance(part, Tensor):
            return part
        dtype = getattr(self.model, "dtype", None) if part.is_floating_point() else None
        return part.to(self.device, dtype if isinstance(dtype, torch.dtype) else part.dtype)

    def measure_random(
        self, given: Sequence[dict[str, Tensor]], nulls: int | None, attention: bool, summary: bool = False
    ) -> tuple[tuple[Measurements, ...], ...]:
        """For each of some models of the same configuration with random weights, the measurements of inputs; see ``trace``."""
        known = any(hasattr(self.checkpoint.config, name) for name in ("to_dict", "rebuild"))
        if nulls is None:
            nulls = int(known and sum(part.numel() for part in self.model.parameters()) <= SMALL_MODEL)
        if nulls and not known:
            raise UnsupportedError(
                f"{self.checkpoint.name} has no configuration of transformers, so random weights cannot be drawn"
            )
        found = []
        for seed in range(nulls):
            model = initialize(self.checkpoint.config, seed, dtype=torch.float32).to(self.device)
            other = Session.open(model, None, self.without, self.stack, layers=self.layers)
            found.append(tuple(other.run(inputs, attention, summary=summary) for inputs in given))
        return tuple(found)

    def _prepare(
        self, inputs: dict[str, Tensor], receive: Callable[[BlockStates], None], attention: bool
    ) -> tuple[Callable[[], Any], AbstractContextManager[None]]:
        """A function that runs the model, and the context in which ``receive`` gets the states of every block."""
        if not self.structural:
            stack, parts = (
                self.stack or "",
                tuple(name for name in self.without if name in ("attention", "feedforward")),
            )
            record = record_blocks(self.model, self.checkpoint, stack, receive, parts)
            return lambda: self.checkpoint.family.run(self.model, stack, inputs), record
        part, name = choose_part(self.model, inputs, self.stack)

        def run() -> Any:
            return call_model(part, inputs)

        if name not in self.chains:
            try:
                chains = find_chains(part, run)
            except Exception as error:  # whatever the model's own code raises for inputs that it does not take
                reason = " ".join(str(error).split())
                kinds = ", ".join(inputs)
                raise UnsupportedError(
                    f"{self.checkpoint.name} cannot be run on {kinds} alone ({type(error).__name__}: {reason}); give a dict of all "
                    "arguments of the model, or hidden states with states=..."
                ) from error
            chosen = choose_chain(chains, None if self.stack == name else self.stack, self.checkpoint.name)
            prefix = f"{name}." if name else ""
            self.chains[name] = (chosen, chosen.notes(prefix, [one for one in chains if one is not chosen]))
        chosen = self.chains[name][0]
        return run, record_chain(part, chosen, receive, attention, count_padded(part, inputs, chosen))


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Trajectory):
    """Tokens of a model along depth: the residual stream before every block and after the last, before the final norm.

    Attributes
    ----------
    times : number of passed blocks, (blocks + 1,).
    points : tokens, (blocks + 1, n, d).
    words : the tokens as strings.
    measurements : measurements of the stream, of blocks and of heads.
    notes : how the blocks of a model without a family were found.
    random : for each model with random weights, its measurements of the same text.
    """

    words: tuple[str, ...] = ()
    measurements: Measurements | None = None
    notes: tuple[str, ...] = ()
    random: tuple[tuple[Measurements, ...], ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Pathologies with their place, threshold and rate at random initialisation."""
        assert self.measurements is not None
        return find_findings([self.measurements], self.random, self.words)

    def frame(self, rows: Rows = "blocks") -> Any:
        """A pandas DataFrame with one row for each block, or for each head of each block."""
        assert self.measurements is not None
        return self.measurements.frame(rows)

    def as_traces(self, name: str) -> Traces:
        """The measurements alone, as those of one text of a model called ``name``."""
        assert self.measurements is not None
        rest = ((), self.stats.seconds, (), self.notes, self.random, self.words)
        return Traces(name, 1, (self.n,), (self.measurements,), *rest)

    def save(self, path: str | Path) -> None:
        """Write the residual stream and the words to an .npz file, for ``trace(states=path)``."""
        write_hidden_states(path, self.points, self.words)

    def _repr_html_(self) -> str:
        """A notebook card with the words, and the change of norm and cosine over all blocks."""
        rows: dict[str, Any] = {"blocks": len(self.times) - 1, "tokens": f"{self.n:,} of dimension {self.dim}"}
        if self.words:
            more = " ..." if len(self.words) > SHOWN_WORDS else ""
            rows["words"] = " ".join(self.words[:SHOWN_WORDS]) + more
        for name in ("token_norm", "cosine"):
            first, last = (float(self.observe(name)[place]) for place in (0, -1))
            rows[name.replace("_", " ")] = f"{first:.4g} before the first block, {last:.4g} after the last"
        return html_card("Trace", rows | {"took": f"{self.stats.seconds:.3g} s"}, self.draw_curve())


@dataclass(frozen=True)
class Skipped:
    """A text that was left out because it has fewer than two tokens: its index and name among the given texts, and its tokens."""

    index: int
    name: str
    tokens: int


@dataclass(frozen=True)
class Traces:
    """Measurements of many texts, without activations.

    Attributes
    ----------
    model : name of the model.
    texts : number of texts that were traced.
    lengths : number of tokens of each.
    measurements : one entry for each traced text.
    without : ablations.
    seconds : wall-clock time.
    skipped : texts with fewer than two tokens.
    notes : how the blocks of a model without a family were found.
    random : for each model with random weights, its measurements of the first texts.
    words : tokens of the first text.
    """

    model: str
    texts: int
    lengths: tuple[int, ...]
    measurements: tuple[Measurements, ...]
    without: tuple[str, ...]
    seconds: float
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    random: tuple[tuple[Measurements, ...], ...] = ()
    words: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Pathologies with their place, threshold and rate at random initialisation; values are means over texts."""
        return find_findings(self.measurements, self.random, self.words)

    def curve(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over texts of a measurement of the stream, (blocks + 1,) each."""
        return _mean_and_spread([part.curves[name] for part in self.measurements])

    def block(self, name: str) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over texts of the "displacement" by every block, or by its "attention" or "feedforward",
        (blocks,) each."""
        return _mean_and_spread([part.blocks[name] for part in self.measurements])

    def head(self, name: str) -> Tensor:
        """Mean over texts of a measurement of every head, (blocks, h); NaN where it is undefined."""
        return torch.stack([part.heads[name] for part in self.measurements]).nanmean(0)

    def frame(self, rows: Rows = "blocks") -> Any:
        """A pandas DataFrame of means over texts: a row for each block (with columns ``_spread``), or for each head of each block."""
        first = self.measurements[0]
        if rows == "heads":
            heads = {name: self.head(name) for name in HEADS if first.heads}
            return Measurements({}, {}, heads).frame("heads")
        means, spreads = zip(*(self.curve(name) for name in first.curves), strict=True)
        moved, moved_spreads = zip(*(self.block(name) for name in first.blocks), strict=True)
        pairs = ((means, moved), (spreads, moved_spreads))
        mean, spread = (
            Measurements(dict(zip(first.curves, stream, strict=True)), dict(zip(first.blocks, block, strict=True)), {})
            for stream, block in pairs
        )
        return to_frame(
            {**one.row(), **{f"{name}_spread": value for name, value in other.row().items() if name != "block"}}
            for one, other in zip(mean.block_rows(), spread.block_rows(), strict=True)
        )


def _mean_and_spread(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Over the texts that define a value: a text of two tokens has no pair without its first."""
    stacked = torch.stack(values)
    mean, count = stacked.nanmean(0), (~stacked.isnan()).sum(0)
    squares = (stacked - mean).square().nansum(0)
    return mean, torch.where(count > 1, (squares / (count - 1).clamp_min(1)).sqrt(), torch.zeros_like(mean))


def trace(
    source: Any = None,
    text: Any = None,
    *,
    states: Any = None,
    attentions: Any = None,
    words: Sequence[str] | None = None,
    tokenizer: Any = None,
    without: Sequence[str] = (),
    stack: str | None = None,
    attention: bool = True,
    max_tokens: int | None = None,
    cut: bool = False,
    nulls: int | None = 0,
    device: Any = None,
    dtype: Any = None,
    layers: int | None = None,
) -> Trace:
    """Run a model on one text and return its tokens along depth; or take hidden states that were computed elsewhere.

    Parameters
    ----------
    source : a ``Checkpoint``, or any argument of ``checkpoint``. Models of ``transformers`` without a family and other modules are
        traced too, if they have a list of blocks that map hidden states (1, n, d) to the same shape.
    text : a text, token ids (n,), or a dict of the model's own arguments, such as ``pixel_values`` of an image.
    states : instead of a model and a text, hidden states (blocks + 1, n, d) before the first block and after every block: an array,
        a sequence of arrays, or an .npy, .npz, .safetensors or Zarr file with the arrays "states" and optionally "attentions".
    attentions : attention weights (blocks, h, n, n) that belong to ``states``.
    words : the tokens of ``states`` as strings.
    tokenizer : used instead of the tokenizer of the model.
    without : parts to ablate: "feedforward", "attention", "positions" (rotary angles, position embeddings and relative biases are
        zero) or "norms" (frozen at the lengths of the unchanged run, which matters only together with another ablation).
    stack : "encoder" or "decoder" of a model with both, the first by default; for a model without a family, the path of its blocks
        or a part of that path, the longest chain of blocks by default.
    attention : measure heads, which needs the attention weights.
    max_tokens : use only the first tokens of the text.
    cut : use only as many tokens as the model's context has.
    nulls : number of models with random weights that read the same text, for the rates of ``findings``; None for one if the model has
        at most 3e8 parameters.
    device, dtype : where and in which precision the model runs, such as "cuda" and "bfloat16"; by default the CPU and the precision of
        its files, and those of a model in memory.
    layers : only the first blocks, so many; of files no more are loaded.

    Returns
    -------
    Trace : a ``Trajectory`` whose times are blocks and whose points are the residual stream, (blocks + 1, n, d).
    """
    if not isinstance(attention, bool):
        raise InputError(
            "attention=True or False says whether heads are measured; attention weights are attentions=..."
        )
    if states is not None:
        if source is not None or text is not None:
            raise InputError("states=... takes the place of a model and a text; give one or the other")
        return _trace_states(open_hidden_states(states, attentions, words), attention)
    if source is None or text is None:
        raise InputError("trace needs a model and a text, or hidden states: trace(model, text) or trace(states=...)")
    if attentions is not None or words is not None:
        raise InputError("attentions and words belong to states=..., which is not given")
    session = Session.open(source, tokenizer, without, stack, device, dtype, layers)
    found: list[Tensor] = []

    def keep(block: BlockStates) -> None:
        found.extend([block.before.double().cpu()] if not found else [])
        found.append(block.after.double().cpu())

    start = time.perf_counter()
    inputs, read = session.inputs(text, max_tokens, cut)
    measured = session.run(inputs, attention, keep)
    seconds = time.perf_counter() - start
    random = session.measure_random([inputs], nulls, attention)
    return _make_trace(torch.stack(found), read, measured, session.explain(measured, attention), seconds, random)


def _trace_states(given: HiddenStates, attention: bool) -> Trace:
    """The trace of hidden states that were computed elsewhere."""
    start = time.perf_counter()
    collector = MeasurementCollector(None, attention)
    for block in given.blocks():
        collector.add(block)
    return _make_trace(given.states, given.words, collector.result(), (), time.perf_counter() - start)


def _make_trace(
    points: Tensor,
    words: Sequence[str],
    measurements: Measurements,
    notes: tuple[str, ...],
    seconds: float,
    random: tuple[tuple[Measurements, ...], ...] = (),
) -> Trace:
    blocks = len(points) - 1
    times = torch.arange(len(points), dtype=torch.float64)
    outcome = Outcome("reached", float(blocks), f"the tokens passed all {blocks} blocks")
    stats = Statistics(evaluations=blocks, accepted=blocks, seconds=seconds, method="blocks")
    return Trace(
        times=times,
        points=points,
        final=Tokens(points[-1]),
        outcomes=(outcome,),
        stats=stats,
        law=None,
        space=Euclidean(),
        initial=Tokens(points[0]),
        words=tuple(words),
        measurements=measurements,
        notes=notes,
        random=random,
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
    nulls: int | None = 0,
    device: Any = None,
    dtype: Any = None,
    layers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Traces:
    """Run a model on many texts, one after the other, and keep their measurements.

    Parameters
    ----------
    source, tokenizer, without, stack, attention, max_tokens, cut, device, dtype, layers : as for ``trace``.
    texts : texts, token ids or dicts of arguments.
    summary : only norms, distances, mean cosine, sharpness and displacements, whose cost is linear in the number of tokens; slows
        the model by a few percent.
    names : names of the texts in error messages.
    skip : leave out texts of fewer than two tokens, see ``Traces.skipped``, instead of raising.
    nulls : number of models with random weights that read the first four texts, as for ``trace``.
    progress : called with the number of texts that are done.
    """
    if not texts:
        raise InputError("there is no text to trace")
    session, start = Session.open(source, tokenizer, without, stack, device, dtype, layers), time.perf_counter()
    found, lengths, skipped, given = [], [], [], []
    first: tuple[str, ...] = ()
    for index, text in enumerate(texts):
        name = names[index] if names is not None else f"text {index + 1} of {len(texts)}"
        try:
            inputs, words = session.inputs(text, max_tokens, cut)
        except InputError as error:
            if not (skip and isinstance(error, ShortTextError)):
                raise (error if len(texts) == 1 else InputError(f"{name}: {error}")) from None
            skipped.append(Skipped(index, name, error.tokens))
            continue
        given += [inputs] if len(given) < NULL_TEXTS else []
        first = first if found else tuple(words)
        found.append(session.run(inputs, attention, summary=summary))
        lengths.append(len(words) or found[-1].tokens)
        if progress is not None:
            progress(index + 1)
    if not found:
        raise InputError(
            f"none of {len(texts)} texts has two tokens, which a trace needs; {skipped[0].name} is one of them"
        )
    random = session.measure_random(given, nulls, attention, summary)
    seconds = time.perf_counter() - start
    return Traces(
        session.checkpoint.name,
        len(found),
        tuple(lengths),
        tuple(found),
        session.without,
        seconds,
        tuple(skipped),
        session.explain(found[-1], attention and not summary),
        random,
        first,
    )
