"""Results on stdout: one JSON object, or a few lines for people."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attractor.cli.written import Written
from attractor.memory import size

PACKAGES = ("attractor", "torch", "numpy", "scipy")


def print_json(document: dict[str, Any]) -> None:
    """Exactly one object on one line, in JSON that any reader accepts."""
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_json(document: dict[str, Any], path: Path) -> None:
    """One object in a file, whole or not at all, indented so that versions of it can be compared."""
    from attractor.pictures.writing import atomic

    with atomic(path) as temporary:
        temporary.write_text(json.dumps(document, allow_nan=False, indent=1) + "\n", encoding="utf-8")


def versions() -> dict[str, str | None]:
    """What produced the result."""
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: version(name) for name in PACKAGES}}


def version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def number(value: Any) -> str:
    """A number in few digits."""
    if value is None:
        return "infinite"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


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
    print_rows(f"{name} at t = {number(outcome['time'])}: {outcome['message']}.", _costs(report))
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
        "memory": f"{size(stats['peak_memory'])} at most" if stats["peak_memory"] else "not known",
        "saved": f"{sizes['saved']:,} times",
    }
    merges = [event["time"] for event in report["events"] if event["kind"] == "merge"]
    if merges:
        rows["merges"] = (
            f"{stats['merges']:,}, the first at t = {number(min(merges))}, the last at t = {number(max(merges))}"
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
        return number(value)
    entries = list(_flat(value))
    return number(None if None in entries else float(statistics.fmean(entries)))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value
