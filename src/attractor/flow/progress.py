"""A bar on stderr while a run is under way."""

from __future__ import annotations

import math
import time as clock
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attractor.errors import missing

if TYPE_CHECKING:
    from attractor.flow.integration import Integration, Plan

INTERVAL = 0.1  # seconds between updates


class Progress:
    """``progress=True`` draws a bar with rich; a function is called with the integration instead; False does nothing.

    The bar moves with the logarithm of time, as the default save times do: half of a metastable run is its last decade.
    """

    def __init__(self, progress: bool | Callable[[Integration], None], plan: Plan) -> None:
        self.wanted, self.plan = progress, plan
        self.every_step = callable(progress)
        self.bar: Any = None
        self.next = 0.0

    def __enter__(self) -> Progress:
        if self.wanted is True:
            try:
                from rich.console import Console
                from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
                from rich.progress import Progress as Bar
            except ImportError:
                raise missing("rich", "all") from None
            columns = (TextColumn("flow"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("flow", total=1.0, note="")
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, run: Integration) -> None:
        """Called after every step."""
        if callable(self.wanted):
            self.wanted(run)
        elif self.bar is not None and clock.perf_counter() >= self.next:
            self.next = clock.perf_counter() + INTERVAL
            slowest = float(run.t.min()) if len(run.t) else self.plan.until
            note = (
                f"t = {slowest:.4g} of {self.plan.until:.4g}, {run.accepted} steps, {run.field.evaluations} evaluations"
            )
            self.bar.update(self.task, completed=self._share(slowest), note=note)

    def _share(self, time: float) -> float:
        span, unit = self.plan.until - self.plan.start, min(0.1, (self.plan.until - self.plan.start) / 10)
        return math.asinh((time - self.plan.start) / unit) / math.asinh(span / unit)
