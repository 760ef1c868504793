"""Terminal output: JSON, tables, progress, output files."""

from __future__ import annotations

import logging
import os
import re
import shlex
import statistics
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from attractor.errors import AttractorError, InputError, RankError, UnsupportedError
from attractor.files import dump_json
from attractor.html_repr import format_number
from attractor.memory import format_size

FAILED, BAD_ARGUMENT, INTERRUPTED = 1, 2, 130


def complain(message: str, command: str = "attractor") -> None:
    """One line on stderr, whatever the message holds; of several processes that would say it, the first does."""
    if first_to_say(message):
        typer.echo(f"{command}: error: {' '.join(message.split())}", err=True)


def first_to_say(message: str) -> bool:
    """Whether no other process of torchrun has said this; if nobody knows, it is said."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    import torch.distributed as processes

    try:
        # kept by torchrun itself, so that it outlives any of its processes
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = processes.TCPStore(*place, is_master=False, timeout=timedelta(seconds=2))  # pyright: ignore[reportPrivateImportUsage]
        return store.add(f"attractor/said/{os.environ.get('TORCHELASTIC_RESTART_COUNT')}/{message}", 1) == 1
    except Exception:
        return True


@contextmanager
def ending(command: str, debug: bool, *, interrupted: Callable[[], str] = lambda: "interrupted") -> Iterator[None]:
    """Turn what goes wrong inside into the end of the command."""
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        # a store that was being written has tasks under way, and their loop would lament each of them at exit
        logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
        complain(interrupted(), command)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # whoever read our output has left; what Python still flushes at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except RankError as error:
        if not error.told:
            complain(str(error), command)
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(sentence(error), command)
        raise typer.Exit(BAD_ARGUMENT if isinstance(error, (InputError, UnsupportedError)) else FAILED) from None


def sentence(error: Exception) -> str:
    """Our own errors speak for themselves, with step=... spelled as --step; any other is named."""
    if isinstance(error, AttractorError):
        return re.sub(r"\b(\w+)=\.\.\.", lambda found: "--" + found[1].replace("_", "-"), str(error))
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this run: {error or 'ask for fewer tokens or saved times'}"
    return f"{type(error).__name__}: {str(error) or 'no message'} (give --debug for the traceback)"


@dataclass(frozen=True)
class Written:
    """What a command wrote: pictures, a page, tables and the like, and the store of a run."""

    pictures: Sequence[str | Path] = ()
    report: str | Path | None = None
    files: Sequence[str | Path] = ()
    store: str | Path | None = None

    @classmethod
    def of(
        cls, pictures: Iterable[str | Path | None] = (), report: Path | None = None, files: Iterable[Path | None] = ()
    ) -> Written:
        """From the values of options, of which some were not given."""
        return cls(
            [path for path in pictures if path is not None], report, [path for path in files if path is not None]
        )

    def row(self) -> dict[str, Any]:
        """Ready for JSON."""
        report, store = (None if path is None else str(path) for path in (self.report, self.store))
        return {
            "pictures": list(map(str, self.pictures)),
            "report": report,
            "files": list(map(str, self.files)),
            "store": store,
        }

    def tell(self, command: str, **more: str) -> None:
        """Places first, and the command that makes the same again last."""

        places = {
            "pictures": " ".join(map(str, self.pictures)),
            "report": str(self.report or ""),
            "files": " ".join(map(str, self.files)),
            "store": str(self.store or ""),
            **more,
        }
        print_rows("Results", {**{label: text for label, text in places.items() if text}, "again": command})


def print_json(document: dict[str, Any]) -> None:
    """Exactly one object on one line, in JSON that any reader accepts."""
    sys.stdout.write(dump_json(document) + "\n")
    sys.stdout.flush()


def print_rows(title: str, rows: dict[str, str], indent: str = "  ") -> None:
    """A heading and rows of a label and a text; nothing is cut or wrapped, so that it can be copied."""
    console = Console(highlight=False)
    if title:
        console.print(Text(title, "bold"), soft_wrap=True)
    width = max(map(len, rows), default=0) + 2
    for label, text in rows.items():
        console.print(Text.assemble(indent, (f"{label:<{width}}", "cyan"), text), soft_wrap=True)


def print_run(report: dict[str, Any], written: Written, command: str) -> None:
    """The outcome first, then what it took, what was seen, and where things are."""
    outcome = report["outcome"]
    name = outcome["name"].replace("_", " ").capitalize()
    print_rows(f"{name} at t = {format_number(outcome['time'])}: {outcome['message']}.", _costs(report))
    if report["observables"]:
        several = " (mean over the ensemble)" if report["sizes"]["ensemble"] else ""
        print_rows(f"Observables at the start and at the end{several}", _observables(report))
    more = {}
    if written.store is not None and outcome["name"] in ("budget", "unfinished"):
        more["go on"] = shlex.join(["attractor", "simulate", "--resume", str(written.store)])
    written.tell(command, **more)


def _costs(report: dict[str, Any]) -> dict[str, str]:
    sizes, stats = report["sizes"], report["stats"]
    members = "".join(f"{size} x " for size in sizes["ensemble"])
    rows = {
        "tokens": f"{members}{sizes['tokens']} of dimension {sizes['dim']}, space {report['space']}",
        "law": report["law"] or "none",
        "evaluations": f"{stats['evaluations']:,}",
        "steps": f"{stats['accepted']:,} accepted, {stats['rejected']:,} rejected ({stats['method']})",
        "seconds": f"{stats['seconds']:.3g} (engine {stats['engine'] or 'none'}{_processes(stats['processes'])})",
        "memory": f"{format_size(stats['peak_memory'])} at most" if stats["peak_memory"] else "not known",
        "saved": f"{sizes['saved']:,} times",
    }
    merges = [event["time"] for event in report["events"] if event["kind"] == "merge"]
    if merges:
        rows["merges"] = (
            f"{stats['merges']:,}, the first at t = {format_number(min(merges))}, the last at t = {format_number(max(merges))}"
        )
    if "outcomes" in report:
        rows["outcomes"] = ", ".join(f"{count} {name}" for name, count in report["outcomes"].items())
    return rows


def _observables(report: dict[str, Any]) -> dict[str, str]:
    rows = {}
    for name, values in report["observables"].items():
        start, end = (_cell(values[when], report["sizes"]["ensemble"]) for when in ("start", "end"))
        rows[name] = f"{start:>12}{end:>14}"
    return rows


def _processes(count: int) -> str:
    return "" if count == 1 else f" on {count} processes"


def _cell(value: Any, ensemble: list[int]) -> str:
    depth, inner = 0, value
    while isinstance(inner, list):
        depth, inner = depth + 1, inner[0]
    if depth > len(ensemble):
        return "see --json"
    if depth == 0:
        return format_number(value)
    entries = list(_flat(value))
    return format_number(None if None in entries else float(statistics.fmean(entries)))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
