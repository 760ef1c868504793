"""Sphinx configuration. MathJax comes from a package, so neither building nor reading the pages needs a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attractor

sys.path.insert(0, str(Path(__file__).parent))

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "attractor"
author = "The attractor developers"
project_copyright = author
version = release = attractor.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

bibtex_bibfiles = ["../src/attractor/references.bib"]
bibtex_default_style = "unsrt"
bibtex_reference_style = "author_year"

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

# Names of other projects (linking to them would need a network) and of private modules.
nitpick_ignore_regex = [
    (
        r"py:.*",
        r"(torch|np|numpy|pandas|os|scipy|collections|pathlib|dataclasses|typing|matplotlib|plotly|zarr|xarray)(\..*)?",
    ),
    (r"py:.*", r"attractor\.[a-z]+\..*"),
    (r"py:class", r"integer -- .*"),  # docstrings inherited from collections.abc
    (r"py:class", r"(dict|tuple|list)\[\w+"),  # autodoc splits signatures with a default factory at commas
    (r"py:class", r"[A-Z]\w*|ndarray"),  # unqualified annotations of fields, which autodoc does not resolve
]

html_theme = "furo"
html_title = f"attractor {release}"
html_static_path = ["_static"]
html_js_files = ["access.js"]
html_show_sphinx = False
copybutton_prompt_text = "$ "

KEY = r"[a-z]+\d{4}[a-z]+"
MARKUP = r"(``.+?``|:[\w:]+:`.+?`)"  # literals and roles are not changed


def convert_markup(line: str) -> str:
    """Escape bars (absolute values, not substitutions) and turn [key], [key]_ and [key; key] into citations."""
    parts = re.split(MARKUP, line)
    parts[::2] = [re.sub(r"(?<!\\)\|", r"\|", part) for part in parts[::2]]
    parts[::2] = [
        re.sub(rf"\[({KEY}(?:; {KEY})*)\]_?", lambda found: f":cite:p:`{found[1].replace('; ', ',')}`", part)
        for part in parts[::2]
    ]
    return "".join(parts)


def convert_sections(lines: list[str]) -> list[str]:
    """Turn NumPy sections into rubrics, and their entries ("name, name : text", or a name above indented text) into definition lists."""
    converted, in_section = [], False
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if re.fullmatch(r"[A-Z]\w+( \w+)?", line) and re.fullmatch(r"-{3,}", following):
            converted += [f".. rubric:: {line}", ""]
            in_section = True
        elif re.fullmatch(r"-{3,}", line):
            continue
        elif in_section and line[:1].strip() and (" : " in line or following.startswith("    ")):
            names, _, text = line.partition(" : ")
            converted.append(", ".join(f"``{name.strip()}``" for name in names.split(",")))
            converted += ["    " + text] if text else []
        elif in_section and line.startswith(" "):
            converted.append("    " + line.strip())
        else:
            converted.append(line)
    return converted


def process_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [convert_markup(line) for line in convert_sections(lines)]


def write_pages(app: Sphinx) -> None:
    """Write the generated pages: theorems, performance, gallery, reproduced figures, commands and columns."""
    import columns_page
    import commands_page
    import gallery_page
    import performance_page
    import reproduced_page

    from attractor.theory.theorem import render_markdown

    pages = {
        "theorems": "# Theorems\n\n" + render_markdown(),
        "performance": performance_page.page(),
        "gallery": gallery_page.page(),
        "reproduced": reproduced_page.page(),
        "commands": commands_page.page(),
        "columns": columns_page.page(),
    }
    folder = Path(app.srcdir) / "generated"
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def write_explorer(app: Sphinx, error: Exception | None) -> None:
    """Write the interactive page beside the others."""
    from attractor.explorer import build_page

    if error is None and app.builder.name == "html":
        page = build_page(documentation="generated/theorems.html")
        (Path(app.outdir) / "explore.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_pages)
    app.connect("build-finished", write_explorer)
    app.connect("autodoc-process-docstring", process_docstring)
