"""The training loop: it reads from top to bottom.

    attractor train CONFIG --data FOLDER --out RUN        on one device; with several: torchrun --nproc-per-node 4 -m attractor train ...

Batches and rates depend on the step alone and checkpoints hold the rest (weights, optimiser, random states), so a run that was killed and
resumed has the curve of one that was not.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError, InputError, MemoryShortageError, MissingExtraError, missing
from attractor.experiments.training.config import Config
from attractor.experiments.training.dynamics import dynamics
from attractor.experiments.training.folder import RunFolder
from attractor.experiments.training.model import ByteModel, first_bad, parameter_groups
from attractor.experiments.training.text import Bytes


@dataclass(frozen=True)
class Report:
    """How a run ended: its last evaluation, and where the curve is."""

    folder: Path
    steps: int
    parameters: int
    loss: float
    bits_per_byte: float
    perplexity: float
    seconds: float

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**vars(self), "folder": str(self.folder)}


def train(
    config: Config, out: str | Path, *, resume: bool = False, progress: Callable[[dict[str, Any]], None] | None = None
) -> Report:
    """Train a model of bytes as ``config`` says, into the folder ``out``; ``resume`` goes on after its checkpoint."""
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
        from accelerate.utils import set_seed
    except ImportError:
        raise missing("accelerate", "train") from None
    _check_trackers(config)
    text, folder = Bytes(config.data, config.context), RunFolder(out)
    AcceleratorState._reset_state()  # it outlives a run, and would refuse another precision in the same process
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    accelerator = Accelerator(
        cpu=together and not torch.cuda.is_available(),  # or processes without a GPU would not know of each other
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulate,
        log_with=list(config.trackers) or None,
        project_dir=str(out),
    )
    if accelerator.is_main_process:
        if resume:
            folder.agree(config)
            folder.recover()
        else:
            folder.begin(config)
    accelerator.wait_for_everyone()

    set_seed(config.seed)
    model = ByteModel(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimiser = torch.optim.AdamW(parameter_groups(model, config.decay), lr=config.rate, betas=(0.9, 0.95))
    model, optimiser = accelerator.prepare(model, optimiser)
    first = folder.step() if resume else 0
    if first:
        accelerator.load_state(str(folder.checkpoint))
    if accelerator.is_main_process:
        folder.cut(first)
    if config.trackers:
        accelerator.init_trackers("attractor", config={name: str(value) for name, value in config.row().items()})
    run = torch.compile(model) if config.compile else model

    started = time.perf_counter()
    with folder.curve.open("a", encoding="utf-8") as curve:
        for step in range(first, config.steps):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate(step)
            loss = _step(accelerator, run, model, optimiser, text, config, step)
            row: dict[str, Any] = {"step": step + 1, "loss": loss, "rate": config.learning_rate(step)}
            if not math.isfinite(loss):
                _stop(accelerator, model, text, config, folder, step)
            last = step + 1 == config.steps
            if last or (step + 1) % config.evaluate == 0:
                row |= _evaluate(accelerator, model, text, config)
            if accelerator.is_main_process:
                curve.write(json.dumps(row) + "\n")
                curve.flush()
                if progress is not None:
                    progress(row)
            if config.trackers:
                accelerator.log({name: value for name, value in row.items() if isinstance(value, float)}, step=step + 1)
            if last or (step + 1) % config.checkpoint == 0:
                _save(accelerator, folder, step + 1)
    if config.trackers:
        accelerator.end_training()
    accelerator.wait_for_everyone()
    end = folder.rows()[-1]
    bits, perplexity = end["bits_per_byte"], end["perplexity"]
    return Report(folder.path, config.steps, parameters, end["loss"], bits, perplexity, time.perf_counter() - started)


def _check_trackers(config: Config) -> None:
    for name in config.trackers:
        if name not in ("tensorboard", "wandb"):
            raise InputError(f"tracker {name!r} is not known; give tensorboard or wandb")
        if find_spec(name) is None:
            raise MissingExtraError(f"trackers name {name}, which is not installed: pip install {name}")


def _step(accelerator: Any, run: Any, model: Any, optimiser: Any, text: Bytes, config: Config, step: int) -> float:
    """One step of the optimiser, over ``accumulate`` batches: the mean loss over batches and processes."""
    total = torch.zeros((), device=accelerator.device)
    try:
        for part in range(config.accumulate):
            with accelerator.accumulate(model):
                loss = run(_batch(accelerator, text, config, step * config.accumulate + part))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), config.clip)
                optimiser.step()
                optimiser.zero_grad()
            total += loss.detach() / config.accumulate
    except torch.cuda.OutOfMemoryError:
        raise MemoryShortageError(
            f"the GPU has no memory left at step {step + 1}: lower batch (now {config.batch}) and raise accumulate (now "
            f"{config.accumulate}) by the same factor for the same run, or lower context (now {config.context})"
        ) from None
    return float(accelerator.reduce(total, "mean"))


def _batch(accelerator: Any, text: Bytes, config: Config, number: int) -> Tensor:
    return text.batch(config.batch, config.seed, number, accelerator.process_index).to(accelerator.device)


@torch.no_grad()
def _evaluate(accelerator: Any, model: Any, text: Bytes, config: Config) -> dict[str, Any]:
    """Loss on validation text, and what tokens do along depth there."""
    inner = accelerator.unwrap_model(model)
    inner.eval()
    losses = []
    for number in range(config.evaluations):
        batch = text.validation_batch(config.batch, number, config.evaluations).to(accelerator.device)
        with accelerator.autocast():
            losses.append(float(inner(batch)))
    found = dynamics(inner, text.validation_batch(config.batch, 0, config.evaluations).to(accelerator.device))
    inner.train()
    loss = sum(losses) / len(losses)
    return {
        "validation_loss": loss,
        "bits_per_byte": loss / math.log(2),
        "perplexity": math.exp(min(loss, 700.0)),
        "dynamics": found,
    }


def _save(accelerator: Any, folder: RunFolder, step: int) -> None:
    """A checkpoint, whole or not at all; the first process moves it into place."""
    if accelerator.num_processes == 1:
        folder.save(step, lambda path: accelerator.save_state(str(path)))
        return
    accelerator.save_state(str(folder.path / "checkpoint.parts"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        folder.save(step, lambda path: (folder.path / "checkpoint.parts").rename(path))
    accelerator.wait_for_everyone()


def _stop(accelerator: Any, model: Any, text: Bytes, config: Config, folder: RunFolder, step: int) -> None:
    """Say where a loss that is not a number came from; the last checkpoint stays."""
    number = step * config.accumulate
    where = first_bad(accelerator.unwrap_model(model), _batch(accelerator, text, config, number))
    kept = folder.step()
    raise AttractorError(
        f"the loss of step {step + 1} is not a finite number; the first such number is in {where}. "
        + (f"The checkpoint after step {kept} is kept in {folder.checkpoint}" if kept else "There is no checkpoint yet")
        + ": lower rate, or raise warmup"
    )
