"""Training of several models at once, of several seeds and rates: data on the device, steps, results."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from attractor.errors import InputError, UnsupportedError
from attractor.training.config import Config
from attractor.training.data import open_data
from attractor.training.data.batches import permutation, sample_numbers, sample_places
from attractor.training.data.images import Images, draw_augmentation
from attractor.training.data.text import Text
from attractor.training.dynamics import Dynamics, trace_growth
from attractor.training.models import build_model
from attractor.training.studies.stacked_models import BLOCKS, StackedImageModels, StackedModels, StackedTextModels

SCORED = 16384  # tokens of a model that are scored at once
PROBES = 4  # samples whose tokens are followed through trained models
Batch = tuple[Tensor, Tensor]


class Source:
    """Training data on the device. ``stack`` is the class of models for it, ``final`` the number of samples of the last
    evaluation, 0 for all."""

    stack: type[StackedModels]
    final: int = 0

    def __init__(self, config: Config, data: Any, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device

    def model(self, config: Config) -> Any:
        """Return the model that ``attractor train`` builds for this seed."""
        torch.manual_seed(config.seed)
        return build_model(config, self.data)

    def tokens(self) -> int:
        """Return how many tokens a step of one model reads."""
        raise NotImplementedError

    def samples(self) -> int:
        """Return how many samples are scored at once."""
        return max(self.config.batch, SCORED * self.config.batch // self.tokens())

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        """Return the sample indices of step ``number``, (s, b) each, on the host."""
        raise NotImplementedError

    def batch(self, inputs: list[Tensor]) -> Batch:
        """Return the batch (s, b, ...) on the device."""
        raise NotImplementedError

    def validation(self, models: int, count: int) -> Iterator[Batch]:
        """Yield validation batches, the same for every model: ``count`` samples, or all for 0."""
        for given, wanted in self.data.evaluation("validation", self.samples(), count):
            yield tuple(part.to(self.device).expand(models, *part.shape) for part in (given, wanted))  # type: ignore[misc]

    def probe(self) -> Tensor:
        """Return a few validation samples, on the host."""
        return next(iter(self.data.evaluation("validation", PROBES, PROBES)))[0]

    def scores(self, loss: float, score: float) -> dict[str, float]:
        """Return the scores that belong to a mean loss and score."""
        return self.data.scores("validation", {"loss": loss, "right": score, "count": 1.0})


class TextSource(Source):
    """Windows of tokenized text."""

    stack = StackedTextModels
    final = 4096  # windows, a million tokens of the studies; the error of their mean is far below that of seeds

    def __init__(self, config: Config, data: Text, device: torch.device) -> None:
        super().__init__(config, data, device)
        numbers = np.array(data.text_parts["train"].tokens)  # from disk to memory
        self.train = torch.from_numpy(numbers.astype(np.int32) if numbers.dtype != np.uint8 else numbers).to(device)
        self.window = torch.arange(config.context + 1, device=device)

    def tokens(self) -> int:
        return self.config.batch * self.config.context

    def inputs(self, seeds: list[int], number: int) -> list[Tensor]:
        last, size = len(self.train) - self.config.context, self.config.batch
        places = [sample_places(last, seed, sample_numbers(size, number)) for seed in seeds]
        return [torch.from_numpy(np.stack(places))]

    def batch(self, inputs: list[Tensor]) -> Batch:
        text = self.train[inputs[0].unsqueeze(-1) + self.window].long()
        return text[..., :-1], text[..., 1:]


class ImageSource(Source):
    """Images, padded for random shifts."""

    stack = StackedImageModels

    def __init__(self, config: Config, data: Images, device: torch.device) -> None:
        super().__init__(config, data, device)
        height, width, _ = data.shape
        self.side = height, width
        self.reach = (height // 8, width // 8) if config.augment == "crop" else (0, 0)
        rows, columns = self.reach
        self.train = functional.pad(data.images["train"].to(device), (0, 0, columns, columns, rows, rows))
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
            drawn = draw_augmentation(self.config.augment, seed, sample_numbers(size, number), self.side)
            for part, values in zip((mirrored, down, across), drawn, strict=True):
                part.append(values)
        return [torch.from_numpy(np.stack(chosen)), *(torch.stack(part) for part in (mirrored, down, across))]

    def batch(self, inputs: list[Tensor]) -> Batch:
        chosen, mirrored, down, across = inputs
        rows = down.unsqueeze(-1) + self.rows
        columns = across.unsqueeze(-1) + self.columns
        columns = torch.where(mirrored.unsqueeze(-1), columns.flip(-1), columns)
        images = self.train[chosen[..., None, None], rows.unsqueeze(-1), columns.unsqueeze(-2)]
        return images, self.labels[chosen]


def open_source(config: Config, device: torch.device, cache: Path) -> Source:
    """Open the data of a configuration on a device; ``cache`` is a folder for tokens."""
    data = open_data(config, cache)
    if isinstance(data, Text):
        return TextSource(config, data, device)
    if isinstance(data, Images):
        return ImageSource(config, data, device)
    raise UnsupportedError(
        f"a study reads text, or images that fit into memory; {config.data} is a folder of image files"
    )


@cache
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return permutation(count, seed, epoch)


WARM = 3  # steps before a CUDA graph is captured, so that lazily created state exists
VARIANTS = 64  # compiled variants of a block per process: arms differ in shapes and parts


@dataclass(frozen=True)
class Execution:
    """How models are trained: device, dtype of products, compiled blocks, steps as a CUDA graph."""

    device: str = "cpu"
    compute: torch.dtype = torch.float32
    compiled: bool = False
    cuda_graph: bool = False

    @classmethod
    def best(cls, compiled: bool = True) -> Execution:
        """Return bfloat16 products and CUDA graphs on a GPU, float32 otherwise."""
        if not torch.cuda.is_available():
            return cls()
        return cls("cuda", torch.bfloat16, compiled=compiled, cuda_graph=True)


@dataclass(frozen=True)
class SeedRun:
    """One trained model.

    Attributes
    ----------
    seed : seed of weights and batches.
    scores : scores on validation data at the end; None where they are not finite.
    parameters : number of trained parameters.
    dynamics : tokens along depth after training, None if states are not finite.
    train_loss : mean training loss over the last twentieth of the steps.
    curve : (step, validation loss) at evaluations.
    rate : learning rate.
    scores_curve : (step, accuracy, or bits per byte of text) at evaluations.
    steps, tokens : how many were taken and read.
    tokens_per_second : of all seeds together.
    seconds : duration of all seeds together.
    """

    seed: int
    scores: Mapping[str, float | None]
    parameters: int
    dynamics: Dynamics | None
    train_loss: float | None = None
    curve: tuple[tuple[int, float | None], ...] = ()
    rate: float | None = None
    scores_curve: tuple[tuple[int, float | None], ...] = ()
    steps: int | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None


def train_seeds(
    config: Config,
    seeds: list[int],
    execution: Execution,
    cache: Path,
    progress: Callable[[int, float], None] | None = None,
) -> list[SeedRun]:
    """Train one model per seed, all at once. ``progress`` is called with the step and the mean loss at evaluations."""
    return train_models([dataclasses.replace(config, seed=seed) for seed in seeds], execution, cache, progress)


def train_models(
    configs: list[Config],
    execution: Execution,
    cache: Path,
    progress: Callable[[int, float], None] | None = None,
    traced: bool = True,
) -> list[SeedRun]:
    """Train models whose configurations differ in seed, rate and sign of the regime only (``alike``), all at once.

    Results have the order of ``configs``. ``traced`` follows tokens through the trained models.
    """
    started = time.perf_counter()
    if execution.compiled:
        from torch import _dynamo

        _dynamo.config.recompile_limit = VARIANTS
    device = torch.device(execution.device)
    order = sorted(range(len(configs)), key=lambda index: configs[index].rate)  # models of one rate are neighbours
    ordered = [configs[index] for index in order]
    config = ordered[0]
    if not all(alike(one, config) for one in ordered):
        raise InputError("models that are trained together differ in seed, rate and sign of the regime only")
    data = open_source(config, device, cache)
    models = [data.model(one) for one in ordered]
    stack = data.stack(models, device, execution.compute, execution.compiled)
    stepper = _Stepper(stack, data, ordered, execution)
    history = torch.zeros(config.steps, len(ordered), device=device)
    curve: list[tuple[int, Tensor, Tensor]] = []
    began, apart = None, 0.0
    for step in range(config.steps):
        if step == WARM + 1:
            _wait(device)
            began = time.perf_counter()
        history[step].copy_(stepper.step(step))
        if (step + 1) % config.evaluate == 0 and step + 1 < config.steps:
            _wait(device)
            paused = time.perf_counter()
            curve.append((step + 1, *stepper.evaluate(config.evaluations)))
            _wait(device)
            apart += time.perf_counter() - paused if began is not None else 0.0
            if progress is not None:
                progress(step + 1, float(history[step].mean()))
    _wait(device)
    ended = time.perf_counter()
    loss, score = stepper.evaluate(data.final)
    curve.append((config.steps, loss, score))
    count = config.steps - WARM - 1
    rate = None if began is None else count * data.tokens() * len(ordered) / (ended - began - apart)
    models = stack.unstack()
    found = [_trace(model, data) if traced else None for model in models]
    parameters, seconds = sum(part.numel() for part in models[0].parameters()), time.perf_counter() - started
    tail = history[-max(1, config.steps // 20) :].mean(0).tolist()
    curves = [(step, losses.tolist(), scores.tolist()) for step, losses, scores in curve]
    measure = "accuracy" if config.task == "images" else "bits_per_byte"
    runs = [
        SeedRun(
            seed=one.seed,
            scores=data.scores(float(loss[k]), float(score[k])),
            parameters=parameters,
            dynamics=found[k],
            train_loss=tail[k],
            curve=tuple((step, losses[k]) for step, losses, _ in curves),
            rate=one.rate,
            scores_curve=tuple(
                (step, data.scores(losses[k], scores[k]).get(measure)) for step, losses, scores in curves
            ),
            steps=config.steps,
            tokens=config.steps * data.tokens(),
            tokens_per_second=rate,
            seconds=seconds,
        )
        for k, one in enumerate(ordered)
    ]
    return [runs[order.index(index)] for index in range(len(configs))]


def alike(first: Config, second: Config) -> bool:
    """Whether two models have parameters of the same shapes and meaning, so that they can be stacked.

    Convergent, intermediate and divergent layers differ in their signs only, which are buffers.
    """
    same = {"seed": first.seed, "rate": first.rate}
    if "plain" not in (first.attention, second.attention):
        same["attention"] = first.attention
    return dataclasses.replace(second, **same) == first


def _trace(model: Any, data: Source) -> Dynamics | None:
    """Follow tokens in a trained model; None if its states are not finite."""
    try:
        return trace_growth(model, data.probe())
    except InputError:
        return None


AHEAD = 32  # steps whose samples are chosen and copied to the device at once


class _Stepper:
    """Optimiser steps of all models, replayed as a CUDA graph after the first ones if the execution uses one."""

    def __init__(self, stack: StackedModels, data: Source, configs: list[Config], execution: Execution) -> None:
        self.stack, self.data, self.configs, self.execution = stack, data, configs, execution
        self.config, self.seeds = configs[0], [config.seed for config in configs]
        gpu = execution.device == "cuda"
        self.rates: dict[float, Tensor] = {}
        self.views: list[tuple[nn.Parameter, int, Any]] = []  # parts of the stacked parameters with one rate
        groups = []
        for group in stack.groups(self.config.decay):
            for rate, (first, last) in _ranges(configs).items():
                parts = [view for part in group["params"] for view in self._view(part, first, last)]
                step = self.rates.setdefault(rate, torch.tensor(rate, device=execution.device))
                groups.append({**group, "params": parts, "lr": step})
        betas = (self.config.betas[0], self.config.betas[1])
        self.optimiser = torch.optim.AdamW(groups, betas=betas, fused=gpu, capturable=gpu)
        self.inputs: list[Tensor] = []
        self.ahead: tuple[int, list[Tensor]] = (-AHEAD, [])
        self.losses = torch.zeros(len(configs))
        self.gradients: dict[str, Tensor] = {}
        self.map_gradients: list[Tensor] = []
        self.fixed: dict[str, Tensor] = {}
        self.graphs: dict[str, Any] = {}
        self.stream = torch.cuda.Stream() if gpu else None

    def _view(self, part: nn.Parameter, first: int, last: int) -> list[nn.Parameter]:
        """Return the parts of a stacked parameter that belong to the models first..last; they share its memory."""
        stacked = self.stack.parameters
        number, name = next((k, name) for k, (name, other) in enumerate(stacked.items()) if other is part)
        places: list[Any] = [(slice(first, last),)]
        if (first, last) == (0, len(self.configs)):
            places = [()]
        elif name.startswith(BLOCKS):
            places = [(layer, slice(first, last)) for layer in range(part.shape[0])]
        made = [nn.Parameter(part.detach()[place]) if place else part for place in places]
        self.views.extend((view, number, place) for view, place in zip(made, places, strict=True))
        return made

    def step(self, number: int) -> Tensor:
        """Take step ``number`` and return the losses (s,)."""
        for config in {config.rate: config for config in self.configs}.values():
            self.rates[config.rate].fill_(config.learning_rate(number))
        given = self._given(number)
        if not self.inputs:
            self.inputs = [part.clone() for part in given]
        for place, value in zip(self.inputs, given, strict=True):
            place.copy_(value)
        if not self.stack.solves:
            self._run("whole", number, self._take_whole)
        else:
            made = self._make_maps()
            self.stack.fixed_maps = self.fixed
            self._run("gradients", number, self._find_gradients)
            self.stack.fixed_maps = None
            self._pass_gradients(made)
            self._run("update", number, self._update)
        return self.losses

    def _run(self, name: str, number: int, function: Callable[[], None]) -> None:
        """Run a part of a step: at first as it is, then as a CUDA graph."""
        if self.stream is None or not self.execution.cuda_graph:
            function()
        elif number < WARM:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                function()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if name not in self.graphs:
                self.graphs[name] = torch.cuda.CUDAGraph()
                torch.cuda.synchronize()
                with torch.cuda.graph(self.graphs[name]):
                    function()
            self.graphs[name].replay()

    def _given(self, number: int) -> list[Tensor]:
        """Return the samples of a step on the device, copied for many steps at once so that the host does not wait for each."""
        if not 0 <= number - self.ahead[0] < AHEAD:
            last, own = min(number + AHEAD, self.config.steps), sorted(set(self.seeds))
            steps = [self.data.inputs(own, each) for each in range(number, last)]
            rows = torch.tensor([own.index(seed) for seed in self.seeds])
            stacked = [torch.stack(parts)[:, rows] for parts in zip(*steps, strict=True)]
            self.ahead = number, [part.to(self.execution.device) for part in stacked]
        return [part[number - self.ahead[0]] for part in self.ahead[1]]

    def _take_whole(self) -> None:
        self._find_gradients()
        self._update()

    def _find_gradients(self) -> None:
        """Compute losses and gradients; with fixed maps, gradients of these instead of those of the attention parameters."""
        stack = self.stack
        stack.power_step()
        losses, penalties = stack.losses(*self.data.batch(self.inputs))
        names = [name for name in stack.parameters if stack.fixed_maps is None or not stack.is_attention(name)]
        fixed = list((stack.fixed_maps or {}).values())
        wanted = [*(stack.parameters[name] for name in names), *fixed]
        found = torch.autograd.grad((losses + penalties).sum(), wanted)
        self.losses = losses.detach()
        self.gradients = {**self.gradients, **dict(zip(names, found, strict=False))}
        self.map_gradients = list(found[len(names) :])

    def _make_maps(self) -> list[Tensor]:
        """Make the attention weights outside of the graph, and copy them to where it reads them."""
        made = self.stack.make_maps()
        if not self.fixed:
            self.fixed = {name: part.detach().clone().requires_grad_() for name, part in made.items()}
        with torch.no_grad():
            for name, part in made.items():
                self.fixed[name].copy_(part)
        return list(made.values())

    def _pass_gradients(self, made: list[Tensor]) -> None:
        """Continue the backward pass from the attention weights to their parameters, into memory that stays in place."""
        names = [name for name in self.stack.parameters if self.stack.is_attention(name)]
        wanted = [self.stack.parameters[name] for name in names]
        for name, gradient in zip(names, torch.autograd.grad(made, wanted, self.map_gradients), strict=True):
            if name in self.gradients:
                self.gradients[name].copy_(gradient)
            else:
                self.gradients[name] = gradient.clone()

    def _update(self) -> None:
        """Clip the gradients and take a step of the optimiser."""
        gradients = [self.gradients[name] for name in self.stack.parameters]
        clipped = self.stack.clip(gradients, self.config.clip or math.inf)
        for view, index, place in self.views:
            view.grad = clipped[index][place] if place else clipped[index]
        self.optimiser.step()

    @torch.no_grad()
    def evaluate(self, count: int) -> tuple[Tensor, Tensor]:
        """Return loss and score (s,) on ``count`` validation samples, or on all of them for 0."""
        models, seen = len(self.configs), 0
        loss, score = (torch.zeros(models, device=self.execution.device) for _ in range(2))
        for batch in self.data.validation(models, count):
            size = batch[-1][0].numel()
            found = self.stack.score(*batch)
            loss, score, seen = loss + size * found[0].detach(), score + size * found[1], seen + size
        return loss / seen, score / seen


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _ranges(configs: list[Config]) -> dict[float, tuple[int, int]]:
    """Return for every rate the range of its models, which are neighbours."""
    rates = [config.rate for config in configs]
    return {rate: (rates.index(rate), len(rates) - rates[::-1].index(rate)) for rate in dict.fromkeys(rates)}
