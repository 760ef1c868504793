"""Progress of long computations, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from attractor.errors import missing


class Update(Protocol):
    """Sets a progress bar to ``done`` of ``total``, with a short note."""

    def __call__(self, done: float, total: float | None = None, note: str = "") -> None: ...


def is_shown(wanted: bool | None, quiet: bool = False) -> bool:
    """Whether to show progress: as ``wanted`` or, if that is None, where stderr is a terminal and ``quiet`` is not set."""
    return sys.stderr.isatty() and not quiet if wanted is None else wanted


@contextmanager
def progress_bar(
    label: str, wanted: bool | None = None, quiet: bool = False, *, total: float | None = None, count: bool = True
) -> Iterator[Update]:
    """Draw a bar while the block runs.

    Parameters
    ----------
    label : text before the bar.
    wanted, quiet : see :func:`is_shown`.
    total : amount of work; may also be given with the first update.
    count : whether to print "done/total" next to the bar.

    Yields
    ------
    update : function ``update(done, total=None, note="")``; it does nothing if no bar is shown.
    """
    if not is_shown(wanted, quiet):
        yield lambda done, total=None, note="": None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        raise missing("rich", "all") from None
    amounts = (MofNCompleteColumn(),) if count else ()
    columns: tuple[Any, ...] = (BarColumn(), *amounts, TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(TextColumn(label), *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, note="")

        def update(done: float, total: float | None = None, note: str = "") -> None:
            bar.update(task, completed=done, total=total, note=note)

        yield update


def progress_lines(wanted: bool | None = None) -> Callable[[str], None]:
    """Return a function that prints a line on stderr, or does nothing if ``wanted`` is False."""

    def write(line: str) -> None:
        if wanted is not False:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return write
