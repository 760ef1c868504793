"""How far a command is, on stderr: a bar for work that is counted, lines for work of hours."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def counted(what: str, wanted: bool | None, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """``show(done, all)`` moves a bar, if one is wanted or, by default, stderr is a terminal."""
    shown = sys.stderr.isatty() and not quiet if wanted is None else wanted
    if not shown:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def said(wanted: bool | None) -> Callable[[str], None]:
    """A line for each part, into a log too, unless that is not wanted."""
    return (lambda line: None) if wanted is False else (lambda line: typer.echo(line, err=True))
