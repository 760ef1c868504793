"""Scores on what was not trained on, and what tokens do there."""

from __future__ import annotations

from typing import Any

import torch

from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Data
from attractor.experiments.training.dynamics import dynamics


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
