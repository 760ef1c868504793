"""Folder of a run: configuration, history, checkpoints."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import StoreError
from attractor.files import read_json_lines, write_json, write_json_lines
from attractor.training.config import Config


class RunFolder:
    """``config.json``, ``changed.json`` (which of its entries were set beside the file that it came from), ``curve.jsonl`` (one line
    for each step) and ``checkpoint`` (the last whole one)."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.curve, self.checkpoint = self.path / "curve.jsonl", self.path / "checkpoint"

    def begun(self) -> bool:
        """Whether there is a run."""
        return (self.path / "config.json").exists()

    def check_new(self) -> None:
        """Refuse a folder that has a run."""
        if self.begun():
            raise StoreError(f"{self.path} holds a run already: resume it, or give another folder")

    def begin(self, config: Config, changed: Iterable[str] = ()) -> None:
        """A new run."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "changed.json", [*changed])
        write_json(self.path / "config.json", config.row(), indent=1)

    def config(self) -> dict[str, Any]:
        """The configuration that the run began with."""
        try:
            return json.loads((self.path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise StoreError(
                f"{self.path} holds no run that could be resumed: it has no readable config.json"
            ) from None

    def changed(self) -> list[str]:
        """Entries that were set beside the file of the configuration; none where a run of an earlier version did not say."""
        with suppress(OSError, ValueError, TypeError):
            known = self.config()
            return [
                name for name in json.loads((self.path / "changed.json").read_text(encoding="utf-8")) if name in known
            ]
        return []

    def agree(self, config: Config) -> None:
        """Refuse to go on with another configuration."""
        old, new = self.config(), config.row()
        other = sorted(name for name in new if old.get(name) != new[name])
        if other:
            named = ", ".join(f"{name} ({old.get(name)!r} there, {new[name]!r} here)" for name in other)
            raise StoreError(f"the run in {self.path} has another configuration: {named}")

    def step(self) -> int:
        """The step that the checkpoint comes after; 0 without one."""
        try:
            return int(json.loads((self.checkpoint / "step.json").read_text(encoding="utf-8"))["step"])
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError):
            raise StoreError(f"the checkpoint in {self.checkpoint} is damaged: remove it to begin again") from None

    def save(self, step: int, write: Any) -> None:
        """A new checkpoint in the place of the old one, by ``write(folder)``."""
        fresh, old = self.path / "checkpoint.new", self.path / "checkpoint.old"
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
        write(fresh)
        write_json(fresh / "step.json", {"step": step})
        if self.checkpoint.exists():
            self.checkpoint.rename(old)
        fresh.rename(self.checkpoint)
        shutil.rmtree(old, ignore_errors=True)

    def recover(self) -> None:
        """After a kill between two renames the old checkpoint is the last whole one."""
        old = self.path / "checkpoint.old"
        if not self.checkpoint.exists() and (old / "step.json").is_file():
            old.rename(self.checkpoint)

    def rows(self) -> list[dict[str, Any]]:
        """The curve so far; a last line that a kill cut short is left out."""
        return read_json_lines(self.curve)

    def cut(self, step: int) -> None:
        """Forget what lies after a step."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_json_lines(self.curve, kept)


@contextmanager
def unmade(*folders: Path) -> Iterator[None]:
    """Take folders away again that an error left behind half filled, and those above them that are empty then."""
    fresh = [folder for folder in folders if not folder.exists()]
    above = {parent for folder in fresh for parent in folder.parents if not parent.exists()}
    try:
        yield
    except BaseException:
        for folder in fresh:
            shutil.rmtree(folder, ignore_errors=True)
        for parent in sorted(above, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):  # others may have put something there
                parent.rmdir()
        raise


SCORES = {"accuracy": "accuracy", "bits_per_byte": "bits per byte"}  # what a run is judged by, and its name


@dataclass(frozen=True)
class History:
    """The configuration and the rows of one run."""

    name: str
    config: dict[str, Any]
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, folder: str | Path) -> History:
        """From the folder of a run."""
        found = RunFolder(folder)
        config, rows = found.config(), found.rows()
        if not rows:
            raise StoreError(f"the run in {found.path} has no curve yet")
        return cls(f"seed {config['seed']}", config, rows)

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The rows that have scores."""
        return [row for row in self.rows if "dynamics" in row]

    @property
    def score(self) -> str:
        """The name of the score that the run is judged by."""
        return next(name for name in SCORES if any(name in row for row in self.evaluations))

    def losses(self, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
        """Steps and training losses, as means over pieces so that there are at most so many."""
        steps, losses = (np.array([row[name] for row in self.rows], dtype=float) for name in ("step", "loss"))
        pieces = np.array_split(np.arange(len(steps)), min(most, len(steps)))
        return np.array([steps[piece[-1]] for piece in pieces]), np.array([losses[piece].mean() for piece in pieces])


def summary(values: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """Mean, standard deviation and the interval of Student's t; no interval for one value, and nothing for none."""
    count = len(values)
    if count < 2:
        return {"count": count, "mean": float(values[0]) if count else None, "deviation": None, "interval": None}
    mean = float(np.mean(values))
    from scipy.stats import t

    deviation = float(np.std(values, ddof=1))
    half = float(t.ppf(0.5 + confidence / 2, count - 1)) * deviation / math.sqrt(count)
    return {"count": count, "mean": mean, "deviation": deviation, "interval": [mean - half, mean + half]}
