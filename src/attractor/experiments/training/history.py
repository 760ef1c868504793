"""The curves of finished runs: what was scored, at which steps, and what tokens did along depth; summed up over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import StoreError
from attractor.experiments.training.folder import RunFolder

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
