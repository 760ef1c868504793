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

Say = Callable[[str], None]


class Skipped(Exception):
    """A stop that cannot be made here: why, and how to get what is missing."""


@dataclass(frozen=True)
class Settings:
    """What all stops share; ``small`` makes every one of them short, for tests and for the impatient."""

    seed: int = 0
    model: str = "minilm"
    text: str = ""
    small: bool = False


@dataclass(frozen=True)
class Stop:
    """One stop: it fills a section, says on the way what it is doing, and returns a sentence and numbers."""

    key: str
    title: str
    run: Callable[[Section, Settings, Say], tuple[str, dict[str, Any]]] = field(repr=False)


MARKS = {"made": "[green]✓[/]", "skipped": "[yellow]–[/]", "failed": "[red]✗[/]"}


class Silent:
    """No display."""

    def begin(self, stop: Stop) -> None:
        """A stop begins."""

    def say(self, words: str) -> None:
        """What it is doing."""

    def end(self, stop: Stop, visit: Visit) -> None:
        """How it went."""


class Lines(Silent):
    """One line on stderr when a stop is done."""

    def end(self, stop: Stop, visit: Visit) -> None:
        sys.stderr.write(f"attractor tour: {stop.title} ({visit.status}, {visit.seconds:.0f} s)\n")
        sys.stderr.flush()


class Live(Silent):
    """A list in which the present stop turns."""

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

    def say(self, words: str) -> None:
        from rich.markup import escape

        self._progress.update(self._now, note=escape(words))

    def end(self, stop: Stop, visit: Visit) -> None:
        from rich.markup import escape

        self._progress.update(self._now, mark=MARKS[visit.status], note=escape(visit.words), completed=1)
        self._progress.stop_task(self._now)


@contextmanager
def display(stops: list[Stop], wanted: bool | None) -> Iterator[Silent]:
    """What shows the tour on stderr."""
    if wanted is None and not sys.stderr.isatty():
        yield Lines()
        return
    if wanted is False:
        yield Silent()
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
