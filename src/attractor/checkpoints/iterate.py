r"""Tokens pushed through all blocks of a model again and again, as [abella2024asymptotic] does.

The tokens are embedded once. One pass is all blocks, and then the final norm if it stands between passes (the script of May 2025;
that of January leaves it out). Consensus is measured as there, :math:`1 - \text{mean}_j|\cos(x_1, x_j)|`, which is blind to
signs, with the smallest signed cosine beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attractor.checkpoints.checkpoint import Checkpoint
from attractor.checkpoints.iterating import Run
from attractor.checkpoints.iteration import Iteration, Protocol
from attractor.checkpoints.iteration_store import load_saved
from attractor.checkpoints.opening import checkpoint as open_checkpoint
from attractor.checkpoints.precision import double
from attractor.checkpoints.prompts import read_prompts
from attractor.errors import InputError


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
