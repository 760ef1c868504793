"""The next batch is made while the device works on this one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Batch, Data


class Ahead:
    """Training batches of one process in the order of their numbers, one ahead."""

    def __init__(self, accelerator: Any, data: Data, config: Config) -> None:
        self.accelerator, self.data, self.config = accelerator, data, config
        self.last = config.steps * config.accumulate
        self.pool = ThreadPoolExecutor(1)
        self.waiting: tuple[int, Future[Batch]] | None = None

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=True, cancel_futures=True)

    def get(self, number: int) -> Batch:
        """Batch ``number`` on the device."""
        if self.waiting is not None and self.waiting[0] == number:
            made = self.waiting[1].result()
        else:
            made = self._make(number)
        if number + 1 < self.last:
            self.waiting = number + 1, self.pool.submit(self._make, number + 1)
        device = self.accelerator.device
        given, wanted = (part.to(device, non_blocking=True) for part in made)
        return given, wanted

    def _make(self, number: int) -> Batch:
        config, world = self.config, self.accelerator.num_processes
        given, wanted = self.data.batch(config.batch, config.seed, number, self.accelerator.process_index, world)
        if self.accelerator.device.type == "cuda":
            return given.pin_memory(), wanted.pin_memory()
        return given, wanted
