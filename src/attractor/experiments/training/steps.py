"""One step of the optimiser, and what stops a run: a number that is not finite, or a device without memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError, MemoryShortageError
from attractor.experiments.training.batches import Ahead
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Batch
from attractor.experiments.training.folder import RunFolder
from attractor.experiments.training.models.inspection import first_bad


def take_step(
    accelerator: Any, run: Any, model: Any, optimiser: Any, batches: Ahead, config: Config, folder: RunFolder, step: int
) -> float:
    """One step over ``accumulate`` batches: the mean loss over batches and processes.

    Nothing is applied that is not finite, so that the weights which made it are still there to look at.
    """
    total = 0.0
    for part in range(config.accumulate):
        batch = batches.get(step * config.accumulate + part)
        with accelerator.accumulate(model):
            loss = run(*batch)
            mean = float(accelerator.reduce(loss.detach(), "mean"))
            if not math.isfinite(mean):
                raise _stopped(accelerator, model, batch, folder, step, "loss")
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), config.clip)
                # in fp16 the scaler skips such a step by itself
                if config.precision != "fp16" and isinstance(norm, Tensor) and not bool(norm.isfinite()):
                    raise _stopped(accelerator, model, batch, folder, step, "gradient")
            optimiser.step()
            optimiser.zero_grad()
        total += mean / config.accumulate
    return total


@contextmanager
def enough_memory(config: Config, step: int) -> Iterator[None]:
    """Where the device has no memory left, say what to lower."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        text = config.task == "text"
        further = f"context (now {config.context})" if text else f"size, or raise patch (now {config.patch})"
        raise MemoryShortageError(
            f"the GPU has no memory left at step {step + 1}: lower batch (now {config.batch}) and raise accumulate (now "
            f"{config.accumulate}) by the same factor for the same run, or lower {further}"
        ) from None


def _stopped(accelerator: Any, model: Any, batch: Batch, folder: RunFolder, step: int, what: str) -> AttractorError:
    """Say where a number that is not finite came from; the last checkpoint stays."""
    with accelerator.autocast():
        where = first_bad(accelerator.unwrap_model(model), batch)
    kept = folder.step()
    return AttractorError(
        f"the {what} of step {step + 1} is not a finite number; the first such number is in {where}. "
        + (f"The checkpoint after step {kept} is kept in {folder.checkpoint}" if kept else "There is no checkpoint yet")
        + ": lower rate, or raise warmup"
    )
