"""Training loop: steps, evaluation, tracking, checkpoints."""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError, InputError, MemoryShortageError, MissingExtraError, StoreError, missing
from attractor.files import dump_json
from attractor.registry import check_name
from attractor.training.config import Config
from attractor.training.data import Batch, Data, Prefetcher, open_data
from attractor.training.dynamics import OBSERVED, Dynamics, trace_run
from attractor.training.models import build_model, find_not_finite, parameter_groups
from attractor.training.run_folder import RunFolder, TrainingStep, remove_on_error


def take_step(
    accelerator: Any,
    run: Any,
    model: Any,
    optimiser: Any,
    batches: Prefetcher,
    config: Config,
    folder: RunFolder,
    step: int,
    due: bool = False,
) -> tuple[float, float, tuple[float, ...]]:
    """Take one step over ``accumulate`` batches; return the mean loss over batches and processes, the norm of the gradient before clipping
    and, where an evaluation is ``due``, those of every block.

    A loss or gradient that is not finite is not applied, so the weights that produced it can be inspected.
    """
    total, length, blocks = 0.0, 0.0, ()
    for part in range(config.accumulate):
        batch = batches.get(step * config.accumulate + part)
        with accelerator.accumulate(model):
            loss = run(*batch)
            mean = float(accelerator.reduce(loss.detach(), "mean"))
            if not math.isfinite(mean):
                raise _not_finite(accelerator, model, batch, folder, step, "loss")
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), config.clip or math.inf)
                # the fp16 scaler skips such a step
                if config.precision != "fp16" and isinstance(norm, Tensor) and not bool(norm.isfinite()):
                    raise _not_finite(accelerator, model, batch, folder, step, "gradient")
                length = float(norm)
                clipped = max(1.0, length / config.clip) if config.clip and math.isfinite(length) else 1.0
                blocks = (
                    tuple(clipped * one for one in _block_gradients(accelerator.unwrap_model(model))) if due else ()
                )
            optimiser.step()
            optimiser.zero_grad()
        total += mean / config.accumulate
    return total, length, blocks


def _block_gradients(model: Any) -> list[float]:
    """The norm of the gradient of every block."""
    norms = []
    for block in model.backbone.blocks:
        parts = [part.grad.detach().double().square().sum() for part in block.parameters() if part.grad is not None]
        norms.append(float(torch.stack(parts).sum().sqrt()) if parts else 0.0)
    return norms


@contextmanager
def explain_memory(config: Config, step: int) -> Iterator[None]:
    """Explain which entries to lower when the GPU runs out of memory."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        text = config.task == "text"
        further = f"context (now {config.context})" if text else f"size, or raise patch (now {config.patch})"
        raise MemoryShortageError(
            f"the GPU has no memory left at step {step + 1}: lower batch (now {config.batch}) and raise accumulate (now "
            f"{config.accumulate}) by the same factor for the same run, or lower {further}"
        ) from None


def _not_finite(accelerator: Any, model: Any, batch: Batch, folder: RunFolder, step: int, what: str) -> AttractorError:
    """Return an error that names the source of a number that is not finite; the last checkpoint stays."""
    with accelerator.autocast():
        where = find_not_finite(accelerator.unwrap_model(model), batch)
    kept = folder.last_step()
    return AttractorError(
        f"the {what} of step {step + 1} is not a finite number; the first such number is in {where}. "
        + (f"The checkpoint after step {kept} is kept in {folder.checkpoint}" if kept else "There is no checkpoint yet")
        + ": lower rate, or raise warmup"
    )


SAMPLES = 4  # texts or images whose tokens are followed


@torch.no_grad()
def evaluate(
    accelerator: Any, model: Any, data: Data, config: Config, last: bool
) -> tuple[dict[str, float], Dynamics | None]:
    """Score the validation data and, at the end of a run with ``test``, the test data; follow tokens in the main process."""
    inner = accelerator.unwrap_model(model)
    inner.eval()
    found = _scores(accelerator, inner, data, config, "validation", config.evaluations)
    scores = {"validation_loss": found.pop("loss"), **found}
    if last and config.test:
        tested = _scores(accelerator, inner, data, config, "test", 0)
        scores |= {f"test_{name}": value for name, value in tested.items()}
    dynamics = None
    if accelerator.is_main_process:
        given, _ = next(iter(data.evaluation("validation", SAMPLES, SAMPLES)))
        dynamics = trace_run(inner, given.to(accelerator.device), config.labels)
    inner.train()
    return scores, dynamics


def _scores(accelerator: Any, inner: Any, data: Data, config: Config, part: str, count: int) -> dict[str, float]:
    """Score a part of the data; processes share its batches and sum their totals."""
    totals: dict[str, torch.Tensor] = {}
    for number, (given, wanted) in enumerate(data.evaluation(part, config.batch, count)):
        if number % accelerator.num_processes != accelerator.process_index:
            continue
        with accelerator.autocast():
            sums = inner.totals(given.to(accelerator.device), wanted.to(accelerator.device))
        for name, value in sums.items():
            totals[name] = totals.get(name, 0) + value.double()
    names = ("count", "loss", "right") if config.task == "images" else ("count", "loss")
    zero = torch.zeros((), dtype=torch.float64, device=accelerator.device)
    stacked = accelerator.reduce(torch.stack([totals.get(name, zero) for name in names]), "sum")
    return data.scores(part, dict(zip(names, stacked.tolist(), strict=True)))


def check_trackers(config: Config) -> None:
    """Raise for trackers that are not known or not installed."""
    for name in config.trackers:
        check_name(name, ("tensorboard", "wandb"), "tracker")
        if find_spec(name) is None:
            raise MissingExtraError(f"trackers name {name}, which is not installed: pip install {name}")


def log(accelerator: Any, config: Config, step: TrainingStep) -> None:
    """Send the numbers of a step to the trackers: of the dynamics, those after the last block and those of every depth."""
    if not config.trackers:
        return
    own = {"loss": step.loss, "rate": step.rate, "gradient": step.gradient} if step.step else {}
    values = {**{name: value for name, value in own.items() if value is not None}, **step.scores}
    if step.dynamics is not None:
        values |= {f"dynamics/{name}": getattr(step.dynamics, name)[-1] for name in OBSERVED}
        for name, row in step.dynamics.numbers().items():
            values |= {f"{name}/{depth}": value for depth, value in enumerate(row) if value is not None}
    accelerator.log(values, step=step.step)


@dataclass(frozen=True)
class TrainingResult:
    """The end of a run.

    Attributes
    ----------
    folder : folder of the run.
    steps, parameters : number of steps and of trained parameters.
    loss : training loss of the last step, in nats.
    scores : scores of the last evaluation.
    seconds : duration.
    throughput : samples per second.
    """

    folder: Path
    steps: int
    parameters: int
    loss: float
    scores: dict[str, float]
    seconds: float
    throughput: float

    def row(self) -> dict[str, Any]:
        """Return the fields in one mapping, for JSON."""
        found = {name: value for name, value in vars(self).items() if name != "scores"}
        return {**found, "folder": str(self.folder), **self.scores}


def train(
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    cache: str | Path | None = None,
    changed: Iterable[str] = (),
    progress: Callable[[TrainingStep], None] | None = None,
) -> TrainingResult:
    """Train a model; a run that was killed and resumed has the same curve.

    Parameters
    ----------
    config : model, data and schedule.
    out : folder of the run.
    resume : continue after the checkpoint in ``out``; a finished run may get a larger number of steps, and then follows the schedule of
        that number.
    cache : folder for joined corpora and tokens, by default a folder of the run.
    changed : names of entries set on top of the configuration file, recorded for resuming.
    progress : called with every ``TrainingStep``.
    """
    check_trackers(config)
    folder = RunFolder(out)
    if resume:
        folder.check_config(config)
    else:
        folder.check_new()
    accelerator = _accelerator(config, folder)
    cache = folder.path / "data" if cache is None else Path(cache)
    with remove_on_error(cache, folder.path):  # a run that fails before its first step leaves no files
        with accelerator.main_process_first():
            data = open_data(config, cache)
            torch.manual_seed(config.seed)
            model = build_model(config, data)
            _check_test(data, config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        groups = parameter_groups(model, config.decay)
        optimiser = torch.optim.AdamW(groups, lr=config.rate, betas=config.betas)  # type: ignore[arg-type]
        with explain_memory(config, -1):
            model, optimiser = accelerator.prepare(model, optimiser)
        torch.manual_seed(config.seed + 1000003 * accelerator.process_index)  # dropout differs between processes
        if accelerator.is_main_process:
            if resume:
                folder.recover()
                folder.check()
                folder.extend(config.steps)
            else:
                folder.create(config, changed, data)
        accelerator.wait_for_everyone()
        first = folder.last_step() if resume else 0
        if first:
            _load(accelerator, folder)
        if accelerator.is_main_process:
            folder.truncate(first)
        if config.trackers:
            accelerator.init_trackers("attractor", config={name: str(value) for name, value in config.row().items()})
    if config.keep and not first and accelerator.is_main_process:
        folder.keep(0, accelerator.unwrap_model(model).state_dict())
    compiled = torch.compile(model) if config.compile else model

    if not first:
        devices = [accelerator.device] if accelerator.device.type == "cuda" else []
        with explain_memory(config, 0), torch.random.fork_rng(devices=devices):
            scores, dynamics = evaluate(accelerator, model, data, config, False)
        start = TrainingStep(0, scores["validation_loss"], 0.0, scores, dynamics)
        if accelerator.is_main_process:
            folder.save_start(start)
        log(accelerator, config, start)
    started = time.perf_counter()
    with folder.curve.open("a", encoding="utf-8") as curve, Prefetcher(accelerator, data, config) as batches:
        for step in range(first, config.steps):
            for group in optimiser.param_groups:
                group["lr"] = config.learning_rate(step)
            last = step + 1 == config.steps
            with explain_memory(config, step):
                due = last or (step + 1) % config.evaluate == 0
                loss, norm, blocks = take_step(
                    accelerator, compiled, model, optimiser, batches, config, folder, step, due
                )
                found = evaluate(accelerator, model, data, config, last) if due else ({}, None)
            scores, dynamics = found
            if dynamics is not None:
                dynamics = replace(dynamics, gradient=tuple(one if math.isfinite(one) else None for one in blocks))
            gradient = norm if math.isfinite(norm) else None
            done = TrainingStep(step + 1, loss, config.learning_rate(step), scores, dynamics, gradient)
            if accelerator.is_main_process:
                curve.write(dump_json(done.row()) + "\n")
                curve.flush()
                if progress is not None:
                    progress(done)
            log(accelerator, config, done)
            if config.keep and (step + 1) % config.keep == 0 and accelerator.is_main_process:
                folder.keep(step + 1, accelerator.unwrap_model(model).state_dict())
            if last or (step + 1) % config.checkpoint == 0:
                _save(accelerator, folder, step + 1)
    for tracker in accelerator.trackers:  # not end_training, which destroys the process group that further seeds need
        tracker.finish()
    accelerator.wait_for_everyone()
    return _report(folder, config, data, parameters, first, accelerator.num_processes, time.perf_counter() - started)


def _check_test(data: Any, config: Config) -> None:
    """Raise now if the test data that the end of the run reads do not exist."""
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
    AcceleratorState._reset_state()  # it outlives a run and would reject another precision in the same process
    distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return Accelerator(
        cpu=distributed and not torch.cuda.is_available(),  # otherwise CPU processes do not form a group
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulate,
        log_with=list(config.trackers) or None,
        project_dir=str(folder.path),
    )


def _save(accelerator: Any, folder: RunFolder, step: int) -> None:
    """Write a checkpoint atomically; the main process moves it into place."""
    if accelerator.num_processes == 1:
        folder.save(step, lambda path: accelerator.save_state(str(path)))
        return
    accelerator.save_state(str(folder.path / "checkpoint.parts"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        folder.save(step, lambda path: (folder.path / "checkpoint.parts").rename(path))
    accelerator.wait_for_everyone()


def _load(accelerator: Any, folder: RunFolder) -> None:
    """Load the checkpoint into the model, the optimiser and the random generators."""
    from safetensors import SafetensorError

    try:
        accelerator.load_state(str(folder.checkpoint))
    except (SafetensorError, OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
        # lines of PyTorch that end in a colon only introduce the reason
        lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.rstrip().endswith(":")]
        reason = next(iter(lines), type(error).__name__).rstrip(".")
        raise StoreError(
            f"the checkpoint in {folder.checkpoint} cannot be read ({reason}): it is damaged or of another configuration; "
            "begin again in another folder"
        ) from None


def _report(
    folder: RunFolder, config: Config, data: Data, parameters: int, first: int, world: int, seconds: float
) -> TrainingResult:
    end = folder.steps()[-1]
    read = (config.steps - first) * config.batch * config.accumulate * world
    return TrainingResult(
        folder.path, config.steps, parameters, end.loss, end.scores, seconds, read / max(seconds, 1e-9)
    )
