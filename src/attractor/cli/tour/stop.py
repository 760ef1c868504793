"""Stops of the tour and their display."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attractor.report import Section

if TYPE_CHECKING:
    from attractor.cli.tour.command import Visit

Update = Callable[[str], None]


class Skipped(Exception):
    """Raised by a stop that cannot run here; the message tells what to install."""


@dataclass(frozen=True)
class Settings:
    """Settings of all stops; ``small`` makes them short, for tests."""

    seed: int = 0
    model: str = "minilm"
    text: str = ""
    small: bool = False


@dataclass(frozen=True)
class Stop:
    """One stop: ``run`` fills a section of the report, reports its progress, and returns a sentence and numbers."""

    key: str
    title: str
    run: Callable[[Section, Settings, Update], tuple[str, dict[str, Any]]] = field(repr=False)


MARKS = {"made": "[green]✓[/]", "skipped": "[yellow]–[/]", "failed": "[red]✗[/]"}


class Display:
    """Progress of the tour; this one shows nothing."""

    def begin(self, stop: Stop) -> None:
        """Start a stop."""

    def update(self, note: str) -> None:
        """Show what the stop does now."""

    def end(self, stop: Stop, visit: Visit) -> None:
        """Show the result of a stop."""


class Lines(Display):
    """Print one line on stderr when a stop is done."""

    def end(self, stop: Stop, visit: Visit) -> None:
        status = "done" if visit.status == "made" else visit.status
        sys.stderr.write(f"attractor tour: {stop.title} ({status}, {visit.seconds:.0f} s)\n")
        sys.stderr.flush()


class Live(Display):
    """Show a live list of all stops."""

    def __init__(self, progress: Any, stops: list[Stop]) -> None:
        self._progress = progress
        self._tasks = {
            stop.key: progress.add_task(stop.title, total=1, start=False, note="", mark="[dim]·[/]") for stop in stops
        }
        self._now: Any = None

    def begin(self, stop: Stop) -> None:
        self._now = self._tasks[stop.key]
        self._progress.start_task(self._now)
        self._progress.update(self._now, mark="[cyan]▸[/]")

    def update(self, note: str) -> None:
        from rich.markup import escape

        self._progress.update(self._now, note=escape(note))

    def end(self, stop: Stop, visit: Visit) -> None:
        from rich.markup import escape

        self._progress.update(self._now, mark=MARKS[visit.status], note=escape(visit.summary), completed=1)
        self._progress.stop_task(self._now)


@contextmanager
def display(stops: list[Stop], wanted: bool | None) -> Iterator[Display]:
    """Show the progress of the tour on stderr: live on a terminal, otherwise a line for each stop."""
    if wanted is None and not sys.stderr.isatty():
        yield Lines()
        return
    if wanted is False:
        yield Display()
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        TextColumn("{task.fields[mark]}"),
        TextColumn("[bold]{task.description}[/]"),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}[/]", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as progress:
        yield Live(progress, stops)
