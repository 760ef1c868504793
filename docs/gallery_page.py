"""The gallery: every script of examples/ with its first words, its picture and its source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "_static" / "gallery"
HEAD = """# Gallery

Scripts that read from top to bottom: each says in its first lines what it shows, checks what it says, and draws a picture.
They are in `examples/` of the repository and run in the tests; `python docs/pictures.py` draws the pictures on this page again.
"""


def scripts() -> list[Path]:
    """Every example, in the order of its name."""
    return sorted((ROOT / "examples").glob("*.py"))


def page() -> str:
    return "\n".join([HEAD, *(section(script) for script in scripts())])


def section(script: Path) -> str:
    """One script."""
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
