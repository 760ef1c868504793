"""What a training run is, from a TOML file."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import InputError

SHIPPED = Path(__file__).parent.parent / "configs"
REGIMES = ("plain", "convergent", "divergent", "intermediate")
POSITIONS = ("none", "absolute", "rotary")


@dataclass(frozen=True)
class Config:
    """One run. Sizes: ``layers`` blocks of dimension ``dim`` with ``heads`` heads, on ``context`` bytes at a time.

    ``attention`` is "plain" or a regime, with ``options`` for its layer; ``refinement`` is "none", "shift", "slice" or "metric" with its
    ``sign`` and ``strength``. ``batch`` is for each process and each of ``accumulate`` passes of a step. The rate rises for ``warmup``
    steps and then falls to ``final_rate`` of itself along a cosine.
    """

    data: str
    layers: int = 4
    dim: int = 128
    heads: int = 4
    hidden: int | None = None
    context: int = 256
    attention: str = "plain"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    positions: str = "rotary"
    placement: str = "pre"
    refinement: str = "none"
    sign: str | None = None
    strength: float | None = None
    spectral: bool = False
    dropout: float = 0.0
    steps: int = 1000
    batch: int = 16
    accumulate: int = 1
    rate: float = 1e-3
    final_rate: float = 0.1
    warmup: int = 50
    decay: float = 0.1
    clip: float = 1.0
    precision: str = "no"
    evaluate: int = 100
    evaluations: int = 8
    checkpoint: int = 100
    trackers: tuple[str, ...] = ()
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "dim",
            "heads",
            "context",
            "steps",
            "batch",
            "accumulate",
            "evaluate",
            "evaluations",
            "checkpoint",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("rate", "clip"):
            if not 0 < float(getattr(self, name)) < float("inf"):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}")
        choices = {"attention": REGIMES, "positions": POSITIONS, "precision": ("no", "bf16", "fp16")}
        choices["refinement"] = ("none", "shift", "slice", "metric")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"{name} {getattr(self, name)!r} is not known; give {', '.join(known)}")
        if self.spectral and self.attention != "plain":
            raise InputError(f"spectral goes with attention 'plain', not with {self.attention!r}")
        object.__setattr__(self, "trackers", tuple(self.trackers))

    def learning_rate(self, step: int) -> float:
        """The rate of a step, 0 being the first."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        along = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (self.final_rate + (1 - self.final_rate) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "trackers": list(self.trackers)}


def read_config(given: str | Path, **changes: Any) -> Config:
    """The configuration in a TOML file, or in one that comes with attractor by its name; ``changes`` replace entries.

    A relative path of data is meant from the folder of the file.
    """
    path = Path(given)
    if not path.is_file() and (SHIPPED / f"{given}.toml").is_file():
        path = SHIPPED / f"{given}.toml"
    if not path.is_file():
        names = ", ".join(sorted(found.stem for found in SHIPPED.glob("*.toml")))
        raise InputError(f"{given} is neither a file nor the name of a configuration; attractor has {names}")
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a TOML file: {error}") from None
    entries |= {name: value for name, value in changes.items() if value is not None}
    known = {field.name for field in dataclasses.fields(Config)}
    for name in entries:
        if name not in known:
            raise InputError(
                f"{path} has an entry {name!r} that a run does not know; it knows {', '.join(sorted(known))}"
            )
    if "data" not in entries:
        raise InputError(f"{path} does not say what to read: give data = 'a folder or a file' there, or --data")
    entries["data"] = str(entries["data"] if changes.get("data") else path.parent / entries["data"])
    return Config(**entries)
