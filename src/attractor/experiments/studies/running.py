"""Training a fleet: the steps of ``attractor train`` for several seeds at once, on a GPU as one replayed graph.

Every seed has the batches, rates, weight decay and clipping that ``attractor train`` would give it; only rounding differs. Graphs need
fixed addresses, so a step reads its text from the device by places that are copied in before it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attractor.errors import InputError
from attractor.experiments.studies.fleet import Fleet
from attractor.experiments.studies.sources import Source, source
from attractor.experiments.studies.tracing import trace
from attractor.experiments.training.config import Config

WARM = 3  # steps before a graph is recorded, so that everything that is made on first use exists
VARIANTS = 64  # of a block that one process may compile: arms differ in shapes and parts
Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Way:
    """How a fleet is run: where, in which precision, with compiled blocks or not, with recorded steps or not."""

    device: str = "cpu"
    compute: torch.dtype = torch.float32
    compiled: bool = False
    recorded: bool = False

    @classmethod
    def best(cls, compiled: bool = True) -> Way:
        """bfloat16 products and recorded steps on a GPU, float32 otherwise."""
        if not torch.cuda.is_available():
            return cls()
        return cls("cuda", torch.bfloat16, compiled=compiled, recorded=True)


def train_fleet(
    config: Config, seeds: list[int], way: Way, kept: Path, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """One row for each seed: losses along the run and at its end, what tokens do in the trained model, and how long it took."""
    started = time.perf_counter()
    if way.compiled:
        from torch import _dynamo

        _dynamo.config.recompile_limit = VARIANTS
    device = torch.device(way.device)
    configs = [dataclasses.replace(config, seed=seed) for seed in seeds]
    data = source(config, device, kept)
    models = [data.model(one) for one in configs]
    fleet = data.fleet(models, device, way.compute, way.compiled)
    stepper = _Stepper(fleet, data, configs, way)
    history = torch.zeros(config.steps, len(seeds), device=device)
    curve: list[tuple[int, Tensor]] = []
    began = None
    for step in range(config.steps):
        if step == WARM + 1:
            _wait(device)
            began = time.perf_counter()
        history[step].copy_(stepper.step(step))
        if (step + 1) % config.evaluate == 0 and step + 1 < config.steps:
            curve.append((step + 1, stepper.evaluate(config.evaluations)[0]))
            if progress is not None:
                progress(step + 1, float(history[step].mean()))
    _wait(device)
    ended = time.perf_counter()
    loss, score = stepper.evaluate(data.final)
    curve.append((config.steps, loss))
    count = config.steps - WARM - 1
    rate = None if began is None else count * data.tokens() * len(seeds) / (ended - began)
    models = fleet.unstack()
    found = [_traced(model, data) for model in models]
    shared = {
        "parameters": sum(part.numel() for part in models[0].parameters()),
        "steps": config.steps,
        "tokens": config.steps * data.tokens(),
        "tokens_per_second": rate,
        "seconds": time.perf_counter() - started,
    }
    tail = history[-max(1, config.steps // 20) :].mean(0).tolist()
    rows = []
    for k, seed in enumerate(seeds):
        own = [[step, float(values[k])] for step, values in curve]
        known = data.scores(float(loss[k]), float(score[k]))
        rows.append({"seed": seed, **known, "train_loss": tail[k], "curve": own, "dynamics": found[k], **shared})
    return rows


def _traced(model: Any, data: Source) -> dict[str, Any] | None:
    """What tokens do in a trained model; None in one whose states are no numbers any more."""
    try:
        return trace(model, data.probe())
    except InputError:
        return None


class _Stepper:
    """Steps of the optimiser for all models, recorded after the first ones where that is asked for."""

    def __init__(self, fleet: Fleet, data: Source, configs: list[Config], way: Way) -> None:
        self.fleet, self.data, self.configs, self.way = fleet, data, configs, way
        self.config, self.seeds = configs[0], [config.seed for config in configs]
        gpu = way.device == "cuda"
        self.rate = torch.tensor(self.config.rate, device=way.device)
        groups = fleet.groups(self.config.decay)
        self.optimiser = torch.optim.AdamW(groups, lr=self.rate, betas=self.config.betas, fused=gpu, capturable=gpu)
        self.inputs: list[Tensor] = []
        self.out: Tensor | None = None
        self.graph: Any = None
        self.stream = torch.cuda.Stream() if gpu else None

    def step(self, number: int) -> Tensor:
        """The losses (s,) of step ``number``."""
        self.rate.fill_(self.config.learning_rate(number))
        given = [part.to(self.way.device) for part in self.data.inputs(self.seeds, number)]
        if self.stream is None or not self.way.recorded:
            self.inputs = given
            return self._once()
        if not self.inputs:
            self.inputs = given
        for place, value in zip(self.inputs, given, strict=True):
            place.copy_(value)
        if number < WARM:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                found = self._once()
            torch.cuda.current_stream().wait_stream(self.stream)
            return found
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph):
                self.out = self._once()
        self.graph.replay()
        assert self.out is not None
        return self.out

    def _once(self) -> Tensor:
        fleet = self.fleet
        fleet.power_step()
        losses = fleet.losses(*self.data.batch(self.inputs))
        parameters = list(fleet.parameters.values())
        gradients = torch.autograd.grad(losses.sum(), parameters)
        for parameter, gradient in zip(parameters, fleet.clip(list(gradients), self.config.clip), strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        return losses.detach()

    @torch.no_grad()
    def evaluate(self, count: int) -> tuple[Tensor, Tensor]:
        """Loss and score (s,) on validation data: ``count`` batches spread over it, or all that the source has where that is 0."""
        models, seen = len(self.configs), 0
        loss, score = (torch.zeros(models, device=self.way.device) for _ in range(2))
        for batch in self.data.validation(models, count):
            size = batch[-1].shape[1]
            found = self.fleet.scored(*batch)
            loss, score, seen = loss + size * found[0].detach(), score + size * found[1], seen + size
        if not seen:
            raise InputError(f"the validation data have no whole batch of {self.config.batch}: lower batch")
        return loss / seen, score / seen


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
