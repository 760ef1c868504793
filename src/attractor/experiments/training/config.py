"""What a training run is."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from attractor.errors import InputError
from attractor.experiments.training.kinds import check_kinds

CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("text", "images"),
    "tokens": ("bytes", "bpe", "words"),
    "attention": ("plain", "convergent", "divergent", "intermediate"),
    "kernel": ("softmax", "l2", "sinkhorn", "sigmoid"),
    "positions": ("none", "absolute", "sinusoidal", "rotary"),
    "placement": ("none", "pre", "post", "peri", "sandwich"),
    "norm": ("layer", "rms"),
    "pooling": ("class", "mean"),
    "augment": ("none", "flip", "crop"),
    "refinement": ("none", "shift", "slice", "metric"),
    "signs": ("ordered", "channels", "scattered"),
    "orientation": ("token", "official"),
    "metric": ("full", "diagonal"),
    "precision": ("no", "bf16", "fp16"),
}
SHARES = ("dropout", "drop_path", "smoothing", "final_rate")
OF_PLAIN = {"temperature": 1.0, "gain": 1.0, "spectral": False, "bias": False}
OF_DEFINITE = {"signs": "ordered", "relaxed": False, "orientation": "token", "metric": "full"}


@dataclass(frozen=True)
class Config:
    """One run: a model of ``layers`` blocks of dimension ``dim`` with ``heads`` heads, its attention, its data and its schedule.

    Data. ``task`` "text" reads ``context`` tokens at a time: "bytes", "bpe" (a vocabulary of ``vocabulary`` pieces learned from the
    training text, or the file ``tokenizer``) or "words" (every word of the training text; ``cutoffs`` give them an adaptive softmax);
    text that is not in files for train, validation and test is cut by ``split``. "images" reads pictures brought to ``size``
    pixels (their own where it is 0) in patches of ``patch``; the class comes from a "class" token or the "mean" of tokens; training
    pictures are mirrored ("flip") and shifted too ("crop").

    Attention. ``attention`` is "plain" or a regime. Plain: ``kernel``, ``temperature``, ``gain`` (of values), ``spectral`` (the norm of
    the value stays at 1), ``bias``. Regimes: ``relaxed``, ``orientation``, ``metric``, and ``signs`` "channels" (the metric's signs at
    other channels, the same inertia) or "scattered" (the signs of metric and interactions among each other: the control of a
    parameterisation without its regime). Both: ``refinement`` with its ``sign`` and ``strength``; ``options`` for anything else that the
    layer takes; ``equal`` widens the feed-forward part until a block has as many parameters as one of plain attention.

    Schedule. ``batch`` is for each process and each of ``accumulate`` passes of a step. The rate rises for ``warmup`` steps and then
    falls to ``final_rate`` of itself along a cosine. Every ``evaluate`` steps ``evaluations`` batches are scored, or everything where
    that is 0. ``test`` scores the test part once, at the end.
    """

    data: str
    task: str = "text"
    tokens: str = "bytes"
    vocabulary: int = 8192
    tokenizer: str | None = None
    cutoffs: tuple[int, ...] = ()
    split: tuple[float, ...] = (0.95, 0.05)
    context: int = 256
    size: int = 0
    patch: int = 4
    pooling: str = "class"
    augment: str = "crop"
    layers: int = 4
    dim: int = 128
    heads: int = 4
    hidden: int | None = None
    positions: str = "rotary"
    turned: int | None = None
    placement: str = "pre"
    norm: str = "layer"
    dropout: float = 0.0
    drop_path: float = 0.0
    attention: str = "plain"
    kernel: str = "softmax"
    temperature: float | str = 1.0
    gain: float | str = 1.0
    spectral: bool = False
    bias: bool = False
    signs: str = "ordered"
    relaxed: bool = False
    orientation: str = "token"
    metric: str = "full"
    refinement: str = "none"
    sign: str | None = None
    strength: float | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    equal: bool = False
    steps: int = 1000
    batch: int = 16
    accumulate: int = 1
    rate: float = 1e-3
    final_rate: float = 0.1
    warmup: int = 50
    decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    smoothing: float = 0.0
    precision: str = "no"
    evaluate: int = 100
    evaluations: int = 8
    test: bool = False
    checkpoint: int = 100
    trackers: tuple[str, ...] = ()
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cutoffs", "split", "betas", "trackers"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise InputError(f"{name} must be a list, got {value!r}: write {name} = [...]")
            object.__setattr__(self, name, tuple(value))
        check_kinds(self)
        for name in ("rate", "clip"):
            if not 0 < float(getattr(self, name)) < float("inf"):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        for name in SHARES:
            if not 0 <= float(getattr(self, name)) <= 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r} is not known; give {', '.join(known)}")
        self._check_together()

    def _check_together(self) -> None:
        """Choices that exclude each other."""
        plain = self.attention == "plain"
        for name, default in (OF_DEFINITE if plain else OF_PLAIN).items():
            if getattr(self, name) != default:
                needed = "a regime (convergent, divergent or intermediate)" if plain else "'plain'"
                raise InputError(f"{name} goes with attention {needed}, not with {self.attention!r}")
        if self.task == "text" and self.kernel == "sinkhorn":
            raise InputError(
                "sinkhorn attention makes one coupling of all tokens, so a model of text would see what it is to predict: "
                "take softmax, l2 or sigmoid for text, or task = 'images'"
            )
        if self.signs != "ordered" and self.attention == "divergent":
            raise InputError(f"signs = {self.signs!r} has nothing to permute: in the divergent regime all are positive")
        for name in ("sign", "strength"):
            if self.refinement == "none" and getattr(self, name) is not None:
                raise InputError(f"{name} goes with a refinement (shift, slice or metric), and there is none")
        if self.refinement == "metric" and (plain or self.metric != "diagonal"):
            raise InputError("the metric refinement needs a regime with metric = 'diagonal'")
        if len(self.split) not in (2, 3) or min(self.split) <= 0 or not math.isclose(sum(self.split), 1):
            raise InputError(
                f"split is shares for train, validation and perhaps test that add up to 1, got {self.split}"
            )
        if self.cutoffs and (self.task != "text" or sorted(set(self.cutoffs)) != list(self.cutoffs)):
            raise InputError(
                f"cutoffs are growing numbers of the most frequent tokens of a model of text, got {self.cutoffs}"
            )

    def learning_rate(self, step: int) -> float:
        """The rate of a step, 0 being the first."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        along = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
