"""Predictions and checks as one page of HTML: the statements as MathML, which browsers draw without scripts or a network."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from attractor.errors import InputError, missing
from attractor.theory import Prediction, Report, Theorem, theorem
from attractor.theory.fates import FATES

STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-bottom:.2rem}table{border-collapse:collapse;margin:.5rem 0}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top;border-bottom:1px solid #e3e6ea}
.holds{color:#17692b}.fails{color:#b3261e}.undetermined{color:#8a5a00}.note{color:#59636e}
@media(prefers-color-scheme:dark){body{color:#e6e9ec;background:#14171a}td,th{border-color:#343a40}.holds{color:#6fce83}
.fails{color:#ff8f87}.undetermined{color:#e5b454}.note{color:#9aa4ae}}"""


def mathematics(latex: str) -> str:
    """A formula as MathML."""
    try:
        from latex2mathml.converter import convert
    except ImportError:
        raise missing("latex2mathml", "theory") from None
    return convert(latex)


def sentence(text: str) -> str:
    r"""Words with formulas between \( and \)."""
    parts = re.split(r"\\\((.*?)\\\)", text)
    return "".join(mathematics(part) if index % 2 else html.escape(part) for index, part in enumerate(parts))


def rows(head: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    """A table; cells are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def statement(entry: Theorem) -> str:
    """What a theorem says."""
    rate = f"<p>Rate: {mathematics(entry.rate)}</p>" if entry.rate else ""
    note = f"{entry.status.value}; {entry.citation.key}, {entry.citation.place}. Symbols: {entry.citation.symbols}."
    title = html.escape(f"{entry.key}: {entry.title}")
    return f"<h2>{title}</h2><p>{sentence(entry.statement)}</p>{rate}<p class='note'>{html.escape(note)}</p>"


def conditions(row: dict[str, Any], formulas: dict[str, str]) -> str:
    cells = []
    for found in row["conditions"]:
        margin = "" if found["margin"] is None else f"{found['margin']:.3g}"
        verdict = f"<span class='{found['verdict']}'>{found['verdict']}</span>"
        name = html.escape(found["name"])
        cells.append((name, mathematics(formulas[found["name"]]), verdict, margin, html.escape(found["detail"])))
    return rows(("hypothesis", "", "verdict", "margin", "detail"), cells)


def write_prediction(found: Prediction, path: Path) -> None:
    """The answer of ``predict``."""
    fates = [(fate, FATES[fate], ", ".join(keys)) for fate, keys in found.fates.items()]
    parts = [rows(("fate", "which means that", "by"), fates) if fates else "<p>No theorem predicts a fate.</p>"]
    parts += [
        f"<p class='fails'>{one.theorem.key} and {other.theorem.key} exclude each other.</p>"
        for one, other in found.contradictions
    ]
    near = [] if found.nearest is None else [found.nearest]
    for title, group in (("Theorems that apply", found.applicable), ("Nearest theorem that does not apply", near)):
        parts.append(f"<h1>{title}</h1>")
        for item in group:
            formulas = {hypothesis.name: hypothesis.formula for hypothesis in item.theorem.hypotheses}
            parts.append(statement(item.theorem) + conditions(item.row(), formulas))
    _write("What the theorems predict", "".join(parts), path)


def write_check(report: Report, path: Path) -> None:
    """The report of ``check``."""
    parts = [f"<p>Seed {report.seed}; {report.violations} violations of proved statements.</p>"]
    for entry in report.theorems:
        style = "fails" if entry.violations else "holds"
        counts = f"<p><span class='{style}'>{entry.violations} violations</span> in {entry.instances} instances"
        counts += f"; smallest margin {entry.worst:.3g}"
        parts.append(statement(theorem(entry.key)) + counts + f" ({html.escape(entry.conclusion)}).</p>")
        sharp = [(html.escape(item.hypothesis), f"{item.held} of {item.instances}") for item in entry.sharpness]
        parts.append(rows(("violated hypothesis", "conclusion held"), sharp) if sharp else "")
    _write("Theorems on random instances", "".join(parts), path)


def _write(title: str, body: str, path: Path) -> None:
    from attractor.pictures.writing import atomic

    if path.suffix != ".html":
        raise InputError(f"--html writes a page: give a name that ends in .html, not {path}")
    head = f"<meta charset='utf-8'><meta name='viewport' content='width=device-width'><title>{title}</title><style>{STYLE}</style>"
    with atomic(path) as temporary:
        temporary.write_text(
            f"<!doctype html><html lang='en'><head>{head}</head><body><h1>{title}</h1>{body}</body></html>",
            encoding="utf-8",
        )
