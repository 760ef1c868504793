"""The page itself: templates filled by jinja2, which escapes everything that is not a template of ours."""

from __future__ import annotations

import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor._version import __version__
from attractor.errors import InputError, missing
from attractor.pictures.writing import atomic, check_folder, target
from attractor.report.blocks import Badge, Code, Maths, number
from attractor.report.figures import encoded
from attractor.report.mathematics import mathematics, words

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from attractor.report.report import Report

TEMPLATES = files("attractor.report") / "templates"
FILM = files("attractor.pictures")


def check_place(path: str | os.PathLike[str], option: str = "a report") -> Path:
    """The path of a report, or one sentence on why none can be written there; call it before the work starts."""
    place = Path(path).expanduser()
    if place.suffix != ".html":
        raise InputError(f"{option} writes a page: give a name that ends in .html, not {place}")
    place = target(place)
    check_folder(place.parent, f"{option} {place}")
    environment()
    plotly()
    return place


def write_page(report: Report, path: str | os.PathLike[str]) -> Path:
    place = check_place(path)
    page = render(report)
    with atomic(place) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return place


def render(report: Report) -> str:
    """The whole page; plotly travels in it once, and only if there is something to draw."""
    from attractor.report.blocks import Figure, Film, Heatmap

    found = [block for section in (report, *report.sections) for block in flat(section.blocks)]
    kinds = {type(block) for block in found}
    opens = any(isinstance(block, Heatmap) and "pictures" in block.content for block in found)
    draws, moves = opens or bool(kinds & {Figure, Film}), Film in kinds
    source = {name: Trusted(TEMPLATES, f"{name}.{end}") for name, end in (("style", "css"), ("script", "js"))}
    return (
        environment()
        .get_template("page.html")
        .render(
            report=report,
            numbered=list(enumerate(report.sections, start=1)),
            version=__version__,
            style=source["style"].markup() + (Trusted(FILM, "film.css").markup() if moves else ""),
            script=source["script"].markup(),
            plotly=plotly() if draws else "",
            film=None if not moves else Trusted(FILM, "film.js").markup(),
        )
    )


def flat(blocks: list[Any]) -> list[Any]:
    """Blocks and those folded into them."""
    return [block for item in blocks for block in (item, *flat(getattr(item, "blocks", [])))]


class Trusted:
    """A file of this package, which is put into the page as it is."""

    def __init__(self, folder: Any, name: str) -> None:
        self.path = folder / name

    def markup(self) -> Markup:
        from markupsafe import Markup

        return Markup(self.path.read_text(encoding="utf-8"))


@cache
def environment() -> Environment:
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined
    except ImportError:
        raise missing("jinja2", "report") from None
    made = Environment(
        loader=FunctionLoader(lambda name: (TEMPLATES / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"words": words, "cell": cell, "embedded": embedded}
    made.globals["mathematics"] = mathematics
    return made


def cell(value: Any) -> Markup:
    """A value of a table or a card as HTML."""
    from markupsafe import Markup, escape

    if isinstance(value, Badge):
        return Markup('<span class="badge {}">{}</span>').format(value.tone, value.text)
    if isinstance(value, Maths):
        return mathematics(value.latex)
    if isinstance(value, Code):
        return Markup("<code>{}</code>").format(value.text)
    return escape(number(value))


def embedded(content: Any) -> Markup:
    """Data for the script."""
    from markupsafe import Markup

    return Markup(encoded(content))


def plotly() -> Markup:
    """The source of plotly, from the package that carries it."""
    try:
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("plotly", "report") from None
    return Markup(get_plotlyjs())
