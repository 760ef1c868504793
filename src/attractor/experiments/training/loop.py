"""The training loop: it reads from top to bottom.

    attractor train CONFIG --data FOLDER --out RUN        on one device; with several: torchrun --nproc-per-node 4 -m attractor train ...

Batches and rates depend on the step alone and checkpoints hold the rest (weights, optimiser, random states), so a run that was killed and
resumed has the curve of one that was not.
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attractor.errors import InputError, StoreError, missing
from attractor.experiments.training.batches import Ahead
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Data, open_data
from attractor.experiments.training.evaluation import evaluate
from attractor.experiments.training.folder import RunFolder, unmade
from attractor.experiments.training.models import build_model
from attractor.experiments.training.models.inspection import parameter_groups
from attractor.experiments.training.steps import enough_memory, take_step
from attractor.experiments.training.tracking import check_trackers, log

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Report:
    """How a run ended: the last training loss, the last scores, and where the curve is. ``throughput`` is in samples each second."""

    folder: Path
    steps: int
    parameters: int
    loss: float
    scores: dict[str, float]
    seconds: float
    throughput: float

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = {name: value for name, value in vars(self).items() if name != "scores"}
        return {**found, "folder": str(self.folder), **self.scores}


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    cache: str | Path | None = None,
    changed: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Train a model as ``config`` says, into the folder ``out``; ``resume`` goes on after its checkpoint.

    ``cache`` is where joined corpora and tokens are kept, a folder of the run unless given; ``changed`` are entries that were set beside
    the file of the configuration, for whoever resumes; ``progress`` is called with every row.
    """
    check_trackers(config)
    folder = RunFolder(out)
    if resume:
        folder.agree(config)
    else:
        folder.check_new()
    accelerator = _accelerator(config, folder)
    cache = folder.path / "data" if cache is None else Path(cache)
    with unmade(cache, folder.path):  # until the first step nothing of a new run stays behind
        with accelerator.main_process_first():
            data = open_data(config, cache)
            torch.manual_seed(config.seed)
            model = build_model(config, data)
            _check_test(data, config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        groups = parameter_groups(model, config.decay)
        optimiser = torch.optim.AdamW(groups, lr=config.rate, betas=config.betas)  # type: ignore[arg-type]
        with enough_memory(config, -1):
            model, optimiser = accelerator.prepare(model, optimiser)
        torch.manual_seed(config.seed + 1000003 * accelerator.process_index)  # dropout differs between processes
        if accelerator.is_main_process:
            if resume:
                folder.recover()
            else:
                folder.begin(config, changed)
        accelerator.wait_for_everyone()
        first = folder.step() if resume else 0
        if first:
            _load(accelerator, folder)
        if accelerator.is_main_process:
            folder.cut(first)
        if config.trackers:
            accelerator.init_trackers("attractor", config={name: str(value) for name, value in config.row().items()})
    compiled = torch.compile(model) if config.compile else model

    started = time.perf_counter()
    with folder.curve.open("a", encoding="utf-8") as curve, Ahead(accelerator, data, config) as batches:
        for step in range(first, config.steps):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate(step)
            last = step + 1 == config.steps
            with enough_memory(config, step):
                loss = take_step(accelerator, compiled, model, optimiser, batches, config, folder, step)
                row: dict[str, Any] = {"step": step + 1, "loss": loss, "rate": config.learning_rate(step)}
                if last or (step + 1) % config.evaluate == 0:
                    row |= evaluate(accelerator, model, data, config, last)
            if accelerator.is_main_process:
                curve.write(json.dumps(row) + "\n")
                curve.flush()
                if progress is not None:
                    progress(row)
            log(accelerator, config, row)
            if last or (step + 1) % config.checkpoint == 0:
                _save(accelerator, folder, step + 1)
    if config.trackers:
        accelerator.end_training()
    accelerator.wait_for_everyone()
    return _report(folder, config, data, parameters, first, accelerator.num_processes, time.perf_counter() - started)


def _check_test(data: Any, config: Config) -> None:
    """Test data that are asked for must be there: they are read only at the end."""
    if not config.test:
        return
    try:
        next(iter(data.evaluation("test", config.batch, 1)))
    except (KeyError, StopIteration):
        raise InputError(
            f"test = true, but {config.data} has no test part of at least one batch: give three shares in split, or leave test out"
        ) from None


def _accelerator(config: Config, folder: RunFolder) -> Any:
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ImportError:
        raise missing("accelerate", "train") from None
    AcceleratorState._reset_state()  # it outlives a run, and would refuse another precision in the same process
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return Accelerator(
        cpu=together and not torch.cuda.is_available(),  # or processes without a GPU would not know of each other
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulate,
        log_with=list(config.trackers) or None,
        project_dir=str(folder.path),
    )


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


def _load(accelerator: Any, folder: RunFolder) -> None:
    """What the checkpoint holds, into the model, the optimiser and the generators."""
    from safetensors import SafetensorError

    try:
        accelerator.load_state(str(folder.checkpoint))
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        # the first line of PyTorch only says that there are others
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.rstrip().endswith(":")]
        reason = next(iter(lines), type(error).__name__).rstrip(".")
        raise StoreError(
            f"the checkpoint in {folder.checkpoint} cannot be read ({reason}): it is damaged or of another configuration; "
            "begin again in another folder"
        ) from None


def _report(
    folder: RunFolder, config: Config, data: Data, parameters: int, first: int, world: int, seconds: float
) -> Report:
    end = folder.rows()[-1]
    scores = {name: value for name, value in end.items() if isinstance(value, float) and name not in ("loss", "rate")}
    read = (config.steps - first) * config.batch * config.accumulate * world
    return Report(folder.path, config.steps, parameters, end["loss"], scores, seconds, read / max(seconds, 1e-9))
