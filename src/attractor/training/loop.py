"""Training loop: steps, evaluation, tracking, checkpoints."""

from __future__ import annotations

import copy
import math
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import AttractorError, InputError, MemoryShortageError, MissingExtraError, StoreError, missing
from attractor.files import dump_json
from attractor.nn import TransformerBlock
from attractor.observables import cosine, pairwise_distance, token_norm
from attractor.registry import check_name
from attractor.states import Tokens
from attractor.training.config import Config
from attractor.training.data import Batch, Data, Prefetcher, open_data
from attractor.training.models import LanguageModel, VisionModel, build_model, first_bad, parameter_groups
from attractor.training.run_folder import RunFolder, unmade
from attractor.weights import regime


def take_step(
    accelerator: Any,
    run: Any,
    model: Any,
    optimiser: Any,
    batches: Prefetcher,
    config: Config,
    folder: RunFolder,
    step: int,
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


SAMPLES = 4  # texts or pictures whose tokens are followed


@torch.no_grad()
def dynamics(model: LanguageModel | VisionModel, given: Tensor) -> dict[str, Any]:
    """Mean norm, pairwise distance and cosine of the tokens of four samples, before every block and after the last; every layer's label."""
    states = [Tokens(state.double().cpu()) for state in model.states(given[:SAMPLES])]
    curves = {
        name: [float(observe(state).mean()) for state in states]
        for name, observe in (("norm", token_norm), ("distance", pairwise_distance), ("cosine", cosine))
    }
    return {**curves, **_regimes(model)}


def _regimes(model: LanguageModel | VisionModel) -> dict[str, Any]:
    """The label of every layer's attention and of its heads. The norm before it is left out: centring leaves one direction unsigned."""
    layers: list[str] = []
    heads: list[list[str]] = []
    for block in model.backbone.blocks:
        assert isinstance(block, TransformerBlock)
        try:
            found = regime(copy.deepcopy(block.attention).cpu())
            layers.append(found.label)
            heads.append([head.label.name for head in found.heads])
        except AttractorError:  # weights that are not finite have no regime, and the loss will say so
            layers.append("undefined")
            heads.append([])
    return {"regimes": layers, "head_regimes": heads}


@torch.no_grad()
def evaluate(accelerator: Any, model: Any, data: Data, config: Config, last: bool) -> dict[str, Any]:
    """Scores on validation data, with ``test`` on all test data too at the end, and the dynamics of the first samples."""
    inner = accelerator.unwrap_model(model)
    inner.eval()
    found = _scores(accelerator, inner, data, config, "validation", config.evaluations)
    row: dict[str, Any] = {"validation_loss": found.pop("loss"), **found}
    if last and config.test:
        tested = _scores(accelerator, inner, data, config, "test", 0)
        row |= {f"test_{name}": value for name, value in tested.items()}
    if accelerator.is_main_process:
        given, _ = next(iter(data.evaluation("validation", config.batch, config.evaluations)))
        row["dynamics"] = dynamics(inner, given.to(accelerator.device))
    inner.train()
    return row


def _scores(accelerator: Any, inner: Any, data: Data, config: Config, part: str, count: int) -> dict[str, float]:
    """Processes share the batches of a part; sums are of all."""
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


CURVES = ("norm", "distance", "cosine")


def check_trackers(config: Config) -> None:
    """Refuse what is not known or not installed, before anything is made."""
    for name in config.trackers:
        check_name(name, ("tensorboard", "wandb"), "tracker")
        if find_spec(name) is None:
            raise MissingExtraError(f"trackers name {name}, which is not installed: pip install {name}")


def log(accelerator: Any, config: Config, row: dict[str, Any]) -> None:
    """The numbers of a row, and the dynamics of tokens after the last block."""
    if not config.trackers:
        return
    values = {name: value for name, value in row.items() if isinstance(value, float)}
    for name in CURVES if "dynamics" in row else ():
        values[f"dynamics/{name}"] = row["dynamics"][name][-1]
    accelerator.log(values, step=row["step"])


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
    with folder.curve.open("a", encoding="utf-8") as curve, Prefetcher(accelerator, data, config) as batches:
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
                curve.write(dump_json(row) + "\n")
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
