"""Configuration of a training run: fields, validation, TOML files."""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.laws import kernel_named
from attractor.nn import split_placement
from attractor.registry import check_name

AT_LEAST = {
    **dict.fromkeys(
        (
            "layers",
            "loops",
            "dim",
            "heads",
            "context",
            "patch",
            "steps",
            "batch",
            "accumulate",
            "evaluate",
            "checkpoint",
            "vocabulary",
        ),
        1,
    ),
    **dict.fromkeys(("evaluations", "size", "warmup", "seed", "keep"), 0),
}
OPTIONAL = {"hidden": 1, "turned": 1}  # None, or at least this
SWITCHES = ("inject", "spectral", "bias", "relaxed", "equal", "test", "labels", "compile")
NUMBERS = ("penalty", "rate", "clip", "decay", "dropout", "drop_path", "smoothing", "final_rate")


def check_types(config: Any) -> None:
    """Raise for entries of the wrong type."""
    _check_counts(config)
    for name in SWITCHES:
        if not isinstance(getattr(config, name), bool):
            raise InputError(f"{name} must be true or false, got {getattr(config, name)!r}")
    for name in NUMBERS:
        if not _is_number(getattr(config, name)):
            raise InputError(f"{name} must be a number, got {getattr(config, name)!r}")
    if not 0 <= config.decay < float("inf"):
        raise InputError(f"decay must be a finite number of at least 0, got {config.decay!r}")
    for name in ("temperature", "gain"):
        value = getattr(config, name)
        if not _is_number(value) and value != "learned":
            raise InputError(f"{name} must be a number or 'learned', got {value!r}")
    if config.strength is not None and not _is_number(config.strength):
        raise InputError(f"strength must be a number, got {config.strength!r}")
    for name, needed in (("data", True), ("tokenizer", False), ("sign", False)):
        value = getattr(config, name)
        if not (isinstance(value, str) and value) and (needed or value is not None):
            raise InputError(f"{name} must be a text, got {value!r}")
    if not isinstance(config.options, dict):
        raise InputError(f"options must be a table such as {{scale = 0.1}}, got {config.options!r}")
    _check_lists(config)


def _check_counts(config: Any) -> None:
    for name, least in {**AT_LEAST, **OPTIONAL}.items():
        value = getattr(config, name)
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_lists(config: Any) -> None:
    if len(config.betas) != 2 or not all(_is_number(beta) and 0 <= beta < 1 for beta in config.betas):
        raise InputError(f"betas are two numbers from 0 to 1, such as [0.9, 0.95], got {list(config.betas)}")
    if not all(map(_is_number, config.split)):
        raise InputError(f"split is shares such as [0.9, 0.05, 0.05], got {list(config.split)}")
    if not all(isinstance(cutoff, int) and not isinstance(cutoff, bool) and cutoff > 0 for cutoff in config.cutoffs):
        raise InputError(f"cutoffs are whole numbers such as [2000, 10000], got {list(config.cutoffs)}")
    if not all(isinstance(name, str) for name in config.trackers):
        raise InputError(f"trackers are names such as ['tensorboard'], got {list(config.trackers)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("text", "images"),
    "tokens": ("bytes", "bpe", "words"),
    "attention": ("plain", "convergent", "divergent", "intermediate"),
    "kernel": ("softmax", "l2", "sinkhorn", "sigmoid"),
    "positions": ("none", "absolute", "sinusoidal", "rotary"),
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
    """One run: model, attention, data and schedule.

    Model: ``layers`` blocks of dimension ``dim`` with ``heads`` heads and a feed-forward part of width ``hidden`` (default 4 dim).
    ``loops`` applies all blocks this many times with the same weights (a looped model); ``inject`` adds the embedded tokens again before
    every further time. ``placement`` of norms is that of ``TransformerBlock``, such as "pre" or "ngpt:0.2". ``penalty`` times the mean
    cosine of tokens after every block is added to the training loss.

    Data. ``task`` "text": windows of ``context`` tokens, which are "bytes", "bpe" (``vocabulary`` tokens learned from the training text,
    or the file ``tokenizer``) or "words" (of the training text; ``cutoffs`` select an adaptive softmax). Text without separate files for
    train, validation and test is divided by ``split``. ``task`` "images": images resized to ``size`` pixels (0: not resized) in patches
    of ``patch``; ``pooling`` is a "class" token or the "mean" of tokens; ``augment`` is "flip" (mirror) or "crop" (mirror and shift).

    Attention. ``attention`` is "plain" or a regime. Plain: ``kernel``, ``temperature``, ``gain`` (of values), ``spectral`` (the value has
    norm 1), ``bias``. Regimes: ``relaxed``, ``orientation``, ``metric``, and ``signs`` "channels" (the signs of the metric at other
    channels, with the same inertia) or "scattered" (the signs of metric and interactions permuted together, which removes the regime).
    Both: ``refinement`` with ``sign`` and ``strength``; ``options`` for other arguments of the layer; ``equal`` widens the feed-forward
    part until a block has as many parameters as one with plain attention.

    Schedule. ``batch`` is per process and per one of ``accumulate`` passes of a step. The rate rises for ``warmup`` steps and then falls
    to ``final_rate`` of itself along a cosine. Gradients are scaled to a norm of at most ``clip`` (0: not scaled). Every ``evaluate`` steps
    ``evaluations`` validation samples are scored, windows of text or images (0: all). ``test`` scores the test part at the end;
    without ``labels`` evaluations leave out spectra and regimes, whose cost grows as the cube of ``dim``. The last
    checkpoint of every ``checkpoint`` steps is kept, and the weights of every ``keep`` steps with those of the start (0: none). Samples
    follow from ``seed`` and their position in the run: two processes, or ``accumulate = 2``, with half the batch have the curve of one.
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
    loops: int = 1
    inject: bool = False
    penalty: float = 0.0
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
    evaluations: int = 128
    test: bool = False
    labels: bool = True
    checkpoint: int = 100
    keep: int = 0
    trackers: tuple[str, ...] = ()
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cutoffs", "split", "betas", "trackers"):
            value = getattr(self, name)
            if not isinstance(value, (list, tuple)):
                raise InputError(f"{name} must be a list, got {value!r}: write {name} = [...]")
            object.__setattr__(self, name, tuple(value))
        check_types(self)
        if not 0 < float(self.rate) < float("inf"):
            raise InputError(f"rate must be a positive number, got {self.rate!r}")
        if not 0 <= float(self.clip) < float("inf"):
            raise InputError(f"clip must be a positive number, or 0 for gradients of any norm, got {self.clip!r}")
        if not 0 <= float(self.penalty) < float("inf"):
            raise InputError(f"penalty must be a number of at least 0, got {self.penalty!r}")
        for name in SHARES:
            if not 0 <= float(getattr(self, name)) <= 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)!r}")
        for name, known in CHOICES.items():
            check_name(getattr(self, name), known, name, "choices")
        if not isinstance(self.placement, str):
            raise InputError(f"placement must be a text such as 'pre', got {self.placement!r}")
        split_placement(self.placement)
        self._check_together()

    def _check_together(self) -> None:
        """Raise for choices that exclude each other."""
        if self.inject and self.loops == 1:
            raise InputError(
                "inject adds the embedded tokens before every further loop, and there is one: give loops of at least 2"
            )
        plain = self.attention == "plain"
        for name, default in (OF_DEFINITE if plain else OF_PLAIN).items():
            if getattr(self, name) != default:
                needed = "a regime (convergent, divergent or intermediate)" if plain else "'plain'"
                raise InputError(f"{name} goes with attention {needed}, not with {self.attention!r}")
        if self.task == "text" and kernel_named(self.kernel).sees_hidden_keys:
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
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        along = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))

    def row(self) -> dict[str, Any]:
        """Return the entries, for JSON."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


SHIPPED = Path(__file__).parent / "configs"


def read_config(given: str | Path, **changes: Any) -> Config:
    """Read a TOML file, or a configuration that comes with attractor by its name; ``changes`` replace entries.

    Relative paths of data and tokenizer refer to the folder of the file if they exist there.
    """
    path = Path(given)
    if not path.is_file() and (SHIPPED / f"{given}.toml").is_file():
        path = SHIPPED / f"{given}.toml"
    if not path.is_file():
        names = ", ".join(list_configs())
        raise InputError(f"{given} is neither a file nor the name of a configuration; attractor has {names}")
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    for name in ("data", "tokenizer"):
        if name in entries and (path.parent / str(entries[name])).exists():
            entries[name] = os.path.normpath(path.parent / str(entries[name]))
    entries |= {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(Config)}
    for name in entries:
        if name not in known:
            raise InputError(
                f"{path} has an entry {name!r} that a run does not know; it knows {', '.join(sorted(known))}"
            )
    if "data" not in entries:
        raise InputError(
            f"{path} does not say what to read: give data = 'a folder or a file' there, or --data README.md, say"
        )
    return Config(**entries)


def list_configs() -> list[str]:
    """Return the names of the configurations that come with attractor."""
    return sorted(found.stem for found in SHIPPED.glob("*.toml"))
