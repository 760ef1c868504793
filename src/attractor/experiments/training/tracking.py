"""TensorBoard and Weights & Biases, through Accelerate."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from attractor.errors import InputError, MissingExtraError
from attractor.experiments.training.config import Config

CURVES = ("norm", "distance", "cosine")


def check_trackers(config: Config) -> None:
    """Refuse what is not known or not installed, before anything is made."""
    for name in config.trackers:
        if name not in ("tensorboard", "wandb"):
            raise InputError(f"tracker {name!r} is not known; give tensorboard or wandb")
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
