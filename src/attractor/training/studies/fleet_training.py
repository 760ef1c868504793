"""Training of a fleet: data on the device, steps, traces."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attractor.errors import InputError, UnsupportedError
from attractor.nn import TransformerBlock
from attractor.observables import cosine, pairwise_distance, token_norm
from attractor.states import Tokens
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.data.batches import permutation
from attractor.training.data.images import Images
from attractor.training.data.text import Text
from attractor.training.models import build_model
from attractor.training.studies.fleet import Fleet, ImageFleet, TextFleet

PROBES = 4  # samples whose tokens are followed through trained models
Batch = tuple[Tensor, Tensor]


class Source:
    """What a fleet reads. ``fleet`` is the kind of fleet for it, ``final`` the number of batches of the last evaluation, 0 for all."""

    fleet: type[Fleet]
    final: int = 0

    def __init__(self, config: Config, data: Any, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device

    def model(self, config: Config) -> Any:
        """The model that ``attractor train`` makes for this seed."""
        torch.manual_seed(config.seed)
        return build_model(config, self.data)

    def tokens(self) -> int:
        """Tokens of a step of one model."""
        raise NotImplementedError

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        """What step ``number`` reads, (s, b) each, on the host."""
        raise NotImplementedError

    def batch(self, inputs: list[Tensor]) -> Batch:
        """The batch (s, b, ...) on the device."""
        raise NotImplementedError

    def validation(self, models: int, count: int) -> Iterator[Batch]:
        """Whole batches of validation data, the same for every model: ``count`` spread over them, or all where that is 0."""
        held = self.data.evaluation("validation", self.config.batch, count)
        for given, wanted in held:
            if len(given) == self.config.batch:
                yield tuple(part.to(self.device).expand(models, *part.shape) for part in (given, wanted))  # type: ignore[misc]

    def probe(self) -> Tensor:
        """A few validation samples, on the host."""
        return next(iter(self.data.evaluation("validation", PROBES, 1)))[0]

    def scores(self, loss: float, score: float) -> dict[str, float]:
        """What is reported of a mean loss and score."""
        return self.data.scores("validation", {"loss": loss, "right": score, "count": 1.0})


class TextSource(Source):
    """Tokens of text."""

    fleet = TextFleet
    final = 64  # a million tokens of the studies; the error of their mean is far below that of seeds

    def __init__(self, config: Config, data: Text, device: torch.device) -> None:
        super().__init__(config, data, device)
        numbers = np.array(data.pieces["train"].numbers)  # from disk to memory
        self.train = torch.from_numpy(numbers.astype(np.int32) if numbers.dtype != np.uint8 else numbers).to(device)
        self.window = torch.arange(config.context + 1, device=device)

    def tokens(self) -> int:
        return self.config.batch * self.config.context

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        last, size = len(self.train) - self.config.context, self.config.batch
        places = [np.random.default_rng((seed, number, 0)).integers(0, last, size) for seed in seeds]
        return [torch.from_numpy(np.stack(places))]

    def batch(self, inputs: list[Tensor]) -> Batch:
        text = self.train[inputs[0].unsqueeze(-1) + self.window].long()
        return text[..., :-1], text[..., 1:]


class ImageSource(Source):
    """Pictures, padded for their shifts."""

    fleet = ImageFleet

    def __init__(self, config: Config, data: Images, device: torch.device) -> None:
        super().__init__(config, data, device)
        height, width, _ = data.shape
        self.side = height, width
        self.reach = (height // 8, width // 8) if config.augment == "crop" else (0, 0)
        above, beside = self.reach
        self.train = functional.pad(data.pictures["train"].to(device), (0, 0, beside, beside, above, above))
        self.labels = data.labels["train"].to(device)
        self.rows, self.columns = (torch.arange(side, device=device) for side in self.side)

    def tokens(self) -> int:
        patches = (self.side[0] // self.config.patch) * (self.side[1] // self.config.patch)
        return self.config.batch * (patches + (self.config.pooling == "class"))

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        count, size = len(self.labels), self.config.batch
        chosen, mirrored, down, across = [], [], [], []
        for seed in seeds:
            epochs, places = np.divmod(number * size + np.arange(size), count)
            order = {int(epoch): _order(count, seed, int(epoch)) for epoch in np.unique(epochs)}
            chosen.append(np.array([order[int(epoch)][place] for epoch, place in zip(epochs, places, strict=True)]))
            draw = np.random.default_rng((seed, number, 0, 1))
            mirrored.append(draw.random(size) < 0.5)
            down.append(draw.integers(0, 2 * self.reach[0] + 1, size))
            across.append(draw.integers(0, 2 * self.reach[1] + 1, size))
        if self.config.augment == "none":
            mirrored = [np.zeros(size, dtype=bool) for _ in seeds]
        return [torch.from_numpy(np.stack(part)) for part in (chosen, mirrored, down, across)]

    def batch(self, inputs: list[Tensor]) -> Batch:
        chosen, mirrored, down, across = inputs
        rows = down.unsqueeze(-1) + self.rows
        columns = across.unsqueeze(-1) + self.columns
        columns = torch.where(mirrored.unsqueeze(-1), columns.flip(-1), columns)
        pictures = self.train[chosen[..., None, None], rows.unsqueeze(-1), columns.unsqueeze(-2)]
        return pictures, self.labels[chosen]


def source(config: Config, device: torch.device, kept: Path) -> Source:
    """The data of a configuration, on a device; ``kept`` is a folder for what is made of them once."""
    data = open_data(config, kept)
    if isinstance(data, Text):
        return TextSource(config, data, device)
    if isinstance(data, Images):
        return ImageSource(config, data, device)
    raise UnsupportedError(
        f"a fleet reads text, or pictures that fit into memory; {config.data} is a folder of picture files"
    )


@cache
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return permutation(count, seed, epoch)


OBSERVED = {"norm": token_norm, "distance": pairwise_distance, "cosine": cosine}


@torch.no_grad()
def trace(model: Any, given: Tensor) -> dict[str, Any]:
    """Curves along depth, and the spectrum of every layer's value map."""
    model.eval()
    states = [Tokens(state.double()) for state in model.states(given)]
    curves: dict[str, Any] = {
        name: [round(float(observe(state).mean()), 6) for state in states] for name, observe in OBSERVED.items()
    }
    return {**curves, "growth": [growth(block) for block in model.backbone.blocks]}


def growth(block: TransformerBlock) -> float | None:
    """The largest real part among the eigenvalues of a layer's value map; None where weights are not finite."""
    total = block.attention.weights(torch.float64).value_map().sum(0)
    if not bool(total.isfinite().all()):
        return None
    return round(float(torch.linalg.eigvals(total).real.max()), 6)


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
