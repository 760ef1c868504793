"""Terminal output of commands: errors and exit codes, JSON, tables, and the list of files written."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.errors import AttractorError, InputError, RankError, UnsupportedError
from attractor.files import dump_json

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130
UNBROKEN = ("theorem", "head", "label", "proved by", "fate", "verdict", "hypothesis")  # columns that never wrap
WIDEST = 160


def print_error(message: str, command: str = "attractor") -> None:
    """Print one line on stderr; under torchrun only the first process that reports a message prints it."""
    if _is_first_report(message):
        typer.echo(f"{command}: error: {' '.join(message.split())}", err=True)


def _is_first_report(message: str) -> bool:
    """Whether no other process of torchrun has printed this message; True if that cannot be determined."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    import torch.distributed as processes

    try:
        # torchrun itself keeps this store, so that it outlives its workers
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = processes.TCPStore(*place, is_master=False, timeout=timedelta(seconds=2))  # pyright: ignore[reportPrivateImportUsage]
        return store.add(f"attractor/error/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}/{message}", 1) == 1
    except Exception:
        return True


@contextmanager
def exit_codes(command: str, debug: bool, *, interrupted: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Turn exceptions into one line on stderr and an exit code: 1 failed, 2 bad argument, 130 interrupted."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        # zarr's event loop would log every pending write at exit
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        print_error(interrupted(), command)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # the reader closed the pipe; Python's flush at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except RankError as error:
        if not error.reported:
            print_error(str(error), command)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        print_error(format_error(error), command)
        raise typer.Exit(BAD_ARGUMENT if isinstance(error, (InputError, UnsupportedError)) else FAILED) from None


def format_error(error: Exception) -> str:
    """Return the message of an error, with ``step=...`` written as ``--step``; foreign errors get their class name."""
    if isinstance(error, AttractorError):
        return re.sub(r"\b(\w+)=\.\.\.", lambda found: "--" + found[1].replace("_", "-"), str(error))
    if isinstance(error, MemoryError):
        return f"not enough memory for this run: {error or 'use fewer tokens or saved times'}"
    return f"{type(error).__name__}: {str(error) or 'no message'} (give --debug for the traceback)"


@dataclass(frozen=True)
class Outputs:
    """Files that a command wrote: figures, a report, data files, and the store of a run."""

    figures: Sequence[str | Path] = ()
    report: str | Path | None = None
    files: Sequence[str | Path] = ()
    store: str | Path | None = None

    @classmethod
    def given(
        cls, figures: Iterable[str | Path | None] = (), report: Path | None = None, files: Iterable[Path | None] = ()
    ) -> Outputs:
        """Build from values of options, of which some are None."""
        return cls([path for path in figures if path is not None], report, [path for path in files if path is not None])

    def row(self) -> dict[str, Any]:
        """Return the paths as text, for JSON."""
        report, store = (None if path is None else str(path) for path in (self.report, self.store))
        figures, files = (list(map(str, paths)) for paths in (self.figures, self.files))
        return {"figures": figures, "report": report, "files": files, "store": store}

    def print(self, command: str, **more: str) -> None:
        """Print the paths, and last the command line that repeats the run."""
        rows = {name: " ".join(value) if isinstance(value, list) else value or "" for name, value in self.row().items()}
        print_rows("Results", {label: text for label, text in (rows | more).items() if text} | {"command": command})


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(dump_json(document) + "\n")
    sys.stdout.flush()


def print_rows(title: str, rows: Mapping[str, str], indent: str = "  ") -> None:
    """Print a title and rows of a label and a text, neither cut nor wrapped, so that they can be copied."""
    console = Console(highlight=False)
    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    width = max(map(len, rows), default=0) + 2
    for label, text in rows.items():
        console.print(Text.assemble(indent, (f"{label:<{width}}", "cyan"), text), soft_wrap=True)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    fixed: Collection[str] = UNBROKEN,
    right: Collection[str] = (),
) -> None:
    """Print a table.

    Parameters
    ----------
    fixed : columns whose cells never wrap; if that is all of them, the table is as wide as it needs to be.
    right : columns aligned on the right.
    """
    table = Table(box=None, pad_edge=False, header_style="cyan")
    for column in columns:
        table.add_column(
            column, overflow="fold", no_wrap=column in fixed, justify="right" if column in right else "left"
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else str(cell) for cell in row))
    console = Console(highlight=False)
    console.print(Text(title, "bold"), soft_wrap=True)
    if set(columns) <= set(fixed):
        console = Console(highlight=False, width=max(console.width, WIDEST))
        console.print(table, soft_wrap=True)
    else:
        console.print(table)


def short(value: float | None) -> str:
    """Return a number with three significant digits, or an empty text for None."""
    return "" if value is None else f"{value:.3g}"
