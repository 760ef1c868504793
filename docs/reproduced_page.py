"""Page of reproduced figures: verdict, picture and command of each entry of ``attractor reproduce``.

``python docs/reproduced_page.py FOLDER`` renews ``docs/data/reproduced.json`` and the pictures from a folder that
``attractor reproduce --all --out FOLDER`` wrote; entries that are not in the folder stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data" / "reproduced.json"
PICTURES = ROOT / "docs" / "_static" / "reproduced"
WIDTH = 900  # pixels
HEAD = """# Reproduced figures

Each entry of `attractor reproduce` computes a figure or an experiment of a paper, draws it from the stored data alone, and judges it:
*reproduced*, *reproduced with a correction*, *differs* (the reason says why), or *no published result* for experiments of ours. All
numbers below were written by the command of the entry; {doc}`/howto/figures` says how to run them. Training tables of the papers are
on {doc}`/experiments`.
"""


def page() -> str:
    """Return the page in Markdown."""
    from attractor.papers import list_figures

    stored = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    figures = list_figures()
    parts = [HEAD, overview(figures, stored)]
    for source in dict.fromkeys(figure.source for figure in figures):
        parts += [f"## {{cite:t}}`{source}`", ""]
        parts += [section(figure, stored.get(figure.key)) for figure in figures if figure.source == source]
    return "\n".join(parts)


def overview(figures: Any, stored: dict[str, Any]) -> str:
    """Return the table of entries and verdicts."""
    rows = ["| entry | shows | verdict | CPU time | independent numbers that agree |", "|---|---|---|---|---|"]
    for figure in figures:
        row = stored.get(figure.key)
        if row is None:
            rows.append(f"| `{figure.key}` | {figure.title} | not computed for this page | | |")
            continue
        agree = f"{row['agree']} of {row['compared']}" if row["compared"] else ""
        rows.append(f"| `{figure.key}` | {figure.title} | {row['outcome']} | {row['seconds']:.3g} s | {agree} |")
    return "\n".join([*rows, ""])


def section(figure: Any, row: dict[str, Any] | None) -> str:
    """Return the section of one entry."""
    lines = [f"### {figure.title}", "", figure.question, ""]
    if figure.reference:
        lines += [f"Reference: {figure.reference}.", ""]
    if row is not None:
        lines += [f"**{row['outcome'].capitalize()}.** {plain(row['reason'])}", ""]
        if (PICTURES / f"{figure.key}.png").exists():
            lines += [f"![{figure.title}](../_static/reproduced/{figure.key}.png)", ""]
    lines += [f"Not known: {plain(words)}" for words in figure.unknown]
    return "\n".join([*lines, "", "```text", row["command"] if row else f"attractor reproduce {figure.key}", "```", ""])


def plain(words: str) -> str:
    """Escape characters that Markdown would interpret."""
    return "".join(f"\\{letter}" if letter in "_*<>|`" else letter for letter in words)


def renew(folder: Path) -> None:
    """Read verdicts and pictures of a folder of reproduced figures."""
    from attractor.papers import list_figures, shrink, stored_data

    found = json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}
    PICTURES.mkdir(parents=True, exist_ok=True)
    for figure in list_figures():
        data = stored_data(figure, folder)
        if data is None:
            continue
        document = figure.document(data)
        if not document["published_settings"]:
            raise SystemExit(f"{figure.key} in {folder} was not computed with the default settings")
        compared = document["comparisons"]
        found[figure.key] = {
            **document["verdict"],
            "seconds": document["seconds"],
            "command": document["command"],
            "compared": len(compared),
            "agree": sum(row["agrees"] for row in compared),
        }
        (PICTURES / f"{figure.key}.png").write_bytes(shrink(folder / figure.key / "figure.png", WIDTH))
    DATA.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew(Path(sys.argv[1]))
