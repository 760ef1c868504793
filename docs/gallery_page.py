"""Gallery page: each script of examples/ with its docstring, figure and source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAD = """# Gallery

Each script states in its docstring what it shows, asserts it and draws a figure. The scripts are in `examples/` and run in the tests;
`python docs/figures.py` redraws the figures of this page.
"""


def scripts() -> list[Path]:
    """All examples, sorted by name."""
    return sorted((ROOT / "examples").glob("*.py"))


def page() -> str:
    return "\n".join([HEAD, *(section(script) for script in scripts())])


def section(script: Path) -> str:
    """Section of one script."""
    words = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or ""
    first, _, rest = words.partition("\n\n")
    title, _, after = " ".join(first.split()).rstrip(".").partition(": ")
    body = f"{after[:1].upper()}{after[1:]}.\n\n{rest}" if after else rest
    body = re.sub(r"\[([a-z]+\d{4}[a-z]+)\]", r"{cite:p}`\1`", body)
    body = re.sub(r"Run: (python \S+\.py)", r"Run: `\1`", body)
    return "\n".join(
        [
            f"## {title}",
            "",
            body,
            "",
            f"![{title}](../_static/gallery/{script.stem}.png)",
            "",
            f"```{{literalinclude}} ../../examples/{script.name}",
            ":language: python",
            "```",
            "",
        ]
    )
