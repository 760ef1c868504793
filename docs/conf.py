"""Sphinx configuration. Nothing is fetched, neither while building nor while reading: MathJax comes from a package."""

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

# Names of other projects, of which there is no index to link to without a network, and of modules that are private by
# convention.
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|np|numpy|os|scipy|collections|pathlib|dataclasses|typing|matplotlib|plotly|zarr)(\..*)?"),
    (r"py:.*", r"attractor\.[a-z]+\..*"),
    (r"py:class", r"integer -- .*"),  # what collections.abc says of its methods
    (r"py:class", r"(dict|tuple)\[str"),  # a signature with a default factory is cut at its commas
    (r"py:class", r"(Tensor|ndarray|Path|Callable|Sequence|Iterable|Mapping|Any)"),
]

html_theme = "furo"
html_title = f"attractor {release}"
html_static_path = ["_static"]
html_show_sphinx = False
copybutton_prompt_text = "$ "

KEY = r"[a-z]+\d{4}[a-z]+"
MARKUP = r"(``.+?``|:[\w:]+:`.+?`)"  # literals and roles, which are left alone


def readable(line: str) -> str:
    """Bars are absolute values, not substitutions; [key] and [key; key] are citations."""
    parts = re.split(MARKUP, line)
    parts[::2] = [re.sub(r"(?<!\\)\|", r"\|", part) for part in parts[::2]]
    parts[::2] = [
        re.sub(rf"\[({KEY}(?:; {KEY})*)\]", lambda found: f":cite:p:`{found[1].replace('; ', ',')}`", part)
        for part in parts[::2]
    ]
    return "".join(parts)


def parameters(lines: list[str]) -> list[str]:
    """The house style, "name, name : what it is" under a ruled heading and up to a blank line, as a definition list."""
    if "----------" not in lines:
        return lines
    begin = lines.index("----------") + 1
    end = next((k for k in range(begin, len(lines)) if not lines[k].strip()), len(lines))
    listed = []
    for line in lines[begin:end]:
        if line.startswith(" "):
            listed.append("    " + line.strip())
        else:
            names, _, text = line.partition(" : ")
            listed += [", ".join(f"``{name.strip()}``" for name in names.split(",")), "    " + text]
    return [*lines[: begin - 2], ".. rubric:: Parameters", "", *listed, *lines[end:]]


def house_style(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [readable(line) for line in parameters(lines)]


def generated(app: Sphinx) -> None:
    """Pages that are written from what they are about: theorems from the objects, speeds from reports, the gallery from scripts,
    commands from the program."""
    import commands_page
    import gallery_page
    import performance_page

    from attractor.theory.theorem import markdown

    pages = {
        "theorems": "# Theorems\n\n" + markdown(),
        "performance": performance_page.page(),
        "gallery": gallery_page.page(),
        "commands": commands_page.page(),
    }
    folder = Path(app.srcdir) / "generated"
    folder.mkdir(exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", generated)
    app.connect("autodoc-process-docstring", house_style)
