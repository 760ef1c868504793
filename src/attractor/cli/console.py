"""Terminal output of commands: errors and exit codes, JSON, tables, and the list of files written."""

from __future__ import annotations

import logging
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.errors import AttractorError, InputError, RankError, UnsupportedError
from attractor.files import dump_json

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130
UNBROKEN = ("theorem", "head", "label", "proved by", "fate", "verdict", "hypothesis")  # columns that do not wrap
WIDEST = 160  # width of a table that is not shown in a terminal
GAP = 2  # spaces between columns
SHORTEST = 16  # least width at which texts of several words wrap
NARROWEST = 24  # least width of texts beside their labels


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
        print_rows(
            "Results", {label: text for label, text in (rows | more).items() if text} | {"command": command}, wrap=False
        )


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(dump_json(document) + "\n")
    sys.stdout.flush()


def terminal_width() -> int | None:
    """Return the width that output must fit, or None where it is not shown in a terminal and COLUMNS is not set."""
    console = Console()
    return console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdigit() else None


def print_rows(title: str, rows: Mapping[str, str], indent: str = "  ", *, wrap: bool = True) -> None:
    """Print a title and rows of a label and a text.

    In a terminal texts continue below themselves, or below their label where little room is left. Without ``wrap`` no line is broken,
    so that commands and paths can be copied.
    """
    console, width = Console(highlight=False), terminal_width() if wrap else None
    for line in _wrap(title, width) if title else ():
        console.print(Text(line, "bold"), soft_wrap=True)
    label_width = max(map(len, rows), default=0) + 2
    below = width is not None and width - len(indent) - label_width < NARROWEST
    for label, text in rows.items():
        left = len(indent) + (2 if below else label_width)
        lines = _wrap(text, None if width is None else width - left)
        if below and label:
            console.print(Text.assemble(indent, (label, "cyan")), soft_wrap=True)
            lines = ["", *lines]
        else:
            console.print(Text.assemble(indent, (f"{label:<{label_width}}", "cyan"), lines[0]), soft_wrap=True)
        for line in lines[1:]:
            console.print(Text(" " * left + line), soft_wrap=True)


def _wrap(text: str, width: int | None) -> list[str]:
    """Break lines at spaces; a word that is longer than the width, such as a path, stays whole."""
    if width is None:
        return [text]
    wrapper = textwrap.TextWrapper(
        max(width, NARROWEST // 2), break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    return [part for line in text.split("\n") for part in wrapper.wrap(line) or [""]]


def print_findings(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what was found, one line each, those that random weights share last; then values, thresholds, rates, places, meanings."""
    if not rows:
        print_rows("what was found", {"nothing": "no quantity is beyond its threshold"})
        return
    label = {row["kind"]: row["kind"].replace("_", " ") for row in rows}
    shared = {row["kind"]: "; random weights show it too" if row["common"] else "" for row in rows}
    print_rows("what was found", {label[row["kind"]]: row["summary"] + shared[row["kind"]] for row in rows})
    print_rows(
        "findings in detail: value, threshold, rate, places, usual meaning",
        {label[row["kind"]]: _detail(row) for row in rows},
    )


def _detail(row: Mapping[str, Any]) -> str:
    places = f" {row['everywhere'][0].upper()}{row['everywhere'][1:]}." if row["everywhere"] else ""
    return f"{row['details']}.{places} {row['meaning'][0].upper()}{row['meaning'][1:]}."


SHOWN_PLACES = 3  # of a condition of --fail-if


def exit_on_failures(failures: Mapping[str, Sequence[str]], command: str) -> None:
    """Print one line for each condition of ``--fail-if`` that holds, with its first places, and exit with code 1 if any does."""
    for text, places in failures.items():
        more = f" and at {len(places) - SHOWN_PLACES} more places" if len(places) > SHOWN_PLACES else ""
        print_error(f"the condition {text!r} holds: {'; '.join(places[:SHOWN_PLACES])}{more}", command)
    if failures:
        raise typer.Exit(FAILED)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    fixed: Collection[str] = UNBROKEN,
    right: Collection[str] | None = (),
) -> None:
    """Print a table that fits the terminal.

    Cells wrap where the table is too wide; a table that is still too wide is printed in several parts, each with the first column.

    Parameters
    ----------
    fixed : columns whose cells do not wrap unless one alone is wider than the terminal.
    right : columns aligned on the right; None for all but the first.
    """
    right = columns[1:] if right is None else right
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    parts = arrange_columns(columns, [[cell.plain for cell in row] for row in cells], fixed, terminal_width() or WIDEST)
    console = Console(highlight=False, width=max(sum(part.values()) + GAP * len(part) for part in parts))
    for number, part in enumerate(parts):
        table = Table(box=None, pad_edge=False, header_style="cyan")
        for place, width in part.items():
            justify = "right" if columns[place] in right else "left"
            table.add_column(columns[place], overflow="fold", justify=justify, width=width)
        for row in cells:
            table.add_row(*(row[place] for place in part))
        if number == 0 and title:
            for line in _wrap(title, terminal_width()):
                console.print(Text(line, "bold"), soft_wrap=True)
        elif number:
            console.print()
        console.print(table)


def arrange_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], fixed: Collection[str], width: int
) -> list[dict[int, int]]:
    """Return the parts of a table that fit a width: for each the places of its columns and their widths."""
    texts = [[name, *(row[place] for row in rows)] for place, name in enumerate(columns)]
    whole = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
    words = [max(cell_len(word) for text in column for word in text.split() or [""]) for column in texts]
    cells = [max((cell_len(text) for text in column[1:]), default=0) for column in texts]
    least = [max(word, min(cell, SHORTEST)) for word, cell in zip(words, cells, strict=True)]
    kept = [full if name in fixed else short for name, full, short in zip(columns, whole, least, strict=True)]
    for floor in (whole, kept):
        if sum(floor) + GAP * (len(columns) - 1) <= width:
            return [_share_width(range(len(columns)), floor, whole, width)]
    first = min(kept[0], max(NARROWEST, width // 2))
    rest = max(NARROWEST // 2, width - first - GAP)
    floor = [first, *(min(short, rest) for short in kept[1:])]
    parts: list[list[int]] = []
    for place in range(1, len(columns)):
        if parts and sum(floor[k] for k in (*parts[-1], place)) + GAP * len(parts[-1]) <= width:
            parts[-1].append(place)
        else:
            parts.append([0, place])
    return [_share_width(part, floor, whole, width) for part in parts or [[0]]]


def _share_width(places: Sequence[int], floor: Sequence[int], whole: Sequence[int], width: int) -> dict[int, int]:
    """Return widths from ``floor`` up to ``whole`` that fill the width as far as they need it."""
    found = {place: floor[place] for place in places}
    left = width - sum(found.values()) - GAP * (len(found) - 1)
    for place in sorted(places, key=lambda place: whole[place] - floor[place]):
        waiting = [other for other in places if whole[other] - floor[other] >= whole[place] - floor[place]]
        more = max(0, min(whole[place] - floor[place], left // max(1, len(waiting))))
        found[place] += more
        left -= more
    return found


def short(value: float | None) -> str:
    """Return a number with three significant digits, or an empty text for None."""
    return "" if value is None else f"{value:.3g}"
