"""Report builder and HTML output."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor._version import __version__
from attractor.errors import InputError, missing
from attractor.files import check_folder, check_target, write_text
from attractor.registry import check_name
from attractor.report import blocks
from attractor.report.blocks import (
    Badge,
    CellFigures,
    Code,
    Maths,
    Measure,
    Tile,
    format_value,
    heatmap_content,
    make_animation,
    render_maths,
    render_words,
)
from attractor.report.figures import encode_json, figure_content

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from attractor.plotting import Scene

TEMPLATES = files("attractor.report") / "templates"
ANIMATION = files("attractor.plotting")


def check_place(path: str | os.PathLike[str], option: str = "a report") -> Path:
    """Return the path of a report; raise if no page can be written there. Call it before the work starts."""
    place = Path(path).expanduser()
    if place.suffix != ".html":
        raise InputError(f"{option} writes a page: give a name that ends in .html, not {place}")
    place = check_target(place)
    check_folder(place.parent, f"{option} {place}")
    environment()
    plotly()
    return place


def render(report: Report) -> str:
    """Return the HTML of a page; plotly is included once, if there is a figure."""
    found = [block for section in (report, *report.sections) for block in flatten(section.blocks)]
    kinds = {type(block) for block in found}
    opens = any(isinstance(block, blocks.Heatmap) and "figures" in block.content for block in found)
    draws, moves = opens or bool(kinds & {blocks.Figure, blocks.Animation}), blocks.Animation in kinds
    return (
        environment()
        .get_template("page.html")
        .render(
            report=report,
            numbered=list(enumerate(report.sections, start=1)),
            version=__version__,
            style=read_markup(TEMPLATES, "style.css") + (read_markup(ANIMATION, "animation.css") if moves else ""),
            script=read_markup(TEMPLATES, "script.js"),
            plotly=plotly() if draws else "",
            animation=read_markup(ANIMATION, "animation.js") if moves else None,
        )
    )


def flatten(blocks: list[Any]) -> list[Any]:
    """Return blocks and those folded into them."""
    return [block for item in blocks for block in (item, *flatten(getattr(item, "blocks", [])))]


def read_markup(folder: Any, name: str) -> Markup:
    """Return a file of this package, to be included without escaping."""
    from markupsafe import Markup

    return Markup((folder / name).read_text(encoding="utf-8"))


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
    made.filters |= {"words": render_words, "cell": render_cell, "json": embed_json}
    made.globals["maths"] = render_maths
    return made


def render_cell(value: Any) -> Markup:
    """Return a value of a table or a card as HTML."""
    from markupsafe import Markup, escape

    if isinstance(value, Badge):
        return Markup('<span class="badge {}">{}</span>').format(value.tone, value.text)
    if isinstance(value, Maths):
        return render_maths(value.latex)
    if isinstance(value, Code):
        return Markup("<code>{}</code>").format(value.text)
    return escape(format_value(value))


def embed_json(content: Any) -> Markup:
    """Return data for the script."""
    from markupsafe import Markup

    return Markup(encode_json(content))


def plotly() -> Markup:
    """Return the source of plotly.js."""
    try:
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("plotly", "report") from None
    return Markup(get_plotlyjs())


class Section:
    """A heading and its blocks; every method adds one block and returns the section."""

    def __init__(self, title: str = "", command: str = "", lead: str = "") -> None:
        self.title, self.command, self.lead = title, command, lead
        self.blocks: list[Any] = []

    def _add(self, block: Any) -> Section:
        self.blocks.append(block)
        return self

    def text(self, words: str, tone: str = "plain") -> Section:
        r"""Add a paragraph with \( formulas \) and `code`; ``tone`` "good", "warn" or "bad" puts it in a coloured box."""
        check_name(tone, blocks.TONES, "tone")
        return self._add(blocks.Text(words, tone))

    def maths(self, latex: str) -> Section:
        """Add a displayed formula."""
        return self._add(blocks.Formula(latex))

    def commands(self, lines: Mapping[str, str]) -> Section:
        """Add shell commands with explanations."""
        return self._add(blocks.Commands(tuple(lines.items())))

    def table(
        self,
        rows: Iterable[Mapping[str, Any] | Sequence[Any]],
        columns: Sequence[str] | None = None,
        *,
        caption: str = "",
        command: str = "",
    ) -> Section:
        """Add a sortable table. Rows are dicts, with keys as columns unless ``columns`` selects some, or sequences.

        A cell is a text, a number, None, a ``Badge``, a ``Maths`` or a ``Code``.
        """
        return self._add(make_table(rows, columns, caption, command))

    def card(self, rows: Mapping[str, Any], title: str = "", tone: str = "plain") -> Section:
        """Add labels and values; consecutive cards stand side by side."""
        card = blocks.Card(dict(rows), title, tone)
        if self.blocks and isinstance(self.blocks[-1], blocks.Cards):
            self.blocks[-1] = blocks.Cards((*self.blocks[-1].cards, card))
            return self
        return self._add(blocks.Cards((card,)))

    def figure(
        self,
        figure: Any,
        caption: str,
        alt: str,
        *,
        command: str = "",
        height: int = 420,
        numbers: Iterable[Mapping[str, Any] | Sequence[Any]] | None = None,
        columns: Sequence[str] | None = None,
    ) -> Section:
        """Add a plotly figure (or a dict of data and layout) with caption and alt text.

        ``numbers`` (rows, as in ``table``) are folded away below it.
        """
        table = None if numbers is None else make_table(numbers, columns, "", "")
        return self._add(blocks.Figure(figure_content(figure), *check_words(caption, alt), command, height, table))

    def picture(self, content: str, caption: str, alt: str) -> Section:
        """Add a picture, given as a data URI, with caption and alt text."""
        return self._add(blocks.Picture(content, *check_words(caption, alt)))

    def gallery(self, tiles: Iterable[Tile]) -> Section:
        """Add small pictures in rows."""
        return self._add(blocks.Gallery(tuple(tiles)))

    def animation(
        self, scene: Scene, *, caption: str = "", command: str = "", frames: int = 90, tokens: int = 600
    ) -> Section:
        """Add an animation of tokens with their observables; ``caption`` precedes the caption of the scene."""
        return self._add(make_animation(scene, caption, command, frames, tokens))

    def heatmap(
        self,
        measures: Mapping[str, Measure | Any],
        *,
        rows: Sequence[object],
        columns: Sequence[object],
        caption: str,
        alt: str,
        axes: tuple[str, str] = ("layer", "head"),
        detail: Callable[[int, int], Mapping[str, Any]] | None = None,
        figures: CellFigures | None = None,
        command: str = "",
    ) -> Section:
        """Add a grid coloured by one of several measures, chosen by the reader.

        ``detail(row, column)`` returns the rows of the panel that a click opens: label -> text, number or Badge; ``figures`` adds a
        plot to it.
        """
        content = heatmap_content(measures, rows, columns, axes, detail, figures)
        return self._add(blocks.Heatmap(content, *check_words(caption, alt), command))

    def fold(self, title: str) -> Section:
        """Add a collapsed part and return its section."""
        inner = Section(title)
        self._add(blocks.Fold(title, inner.blocks))
        return inner


class Report(Section):
    """One self-contained page; blocks added to it directly stand before the first section.

    ``command`` is the command that made it, ``facts`` short labels and values at the head, such as model and seed.
    """

    def __init__(
        self, title: str, command: str = "", *, lead: str = "", facts: Mapping[str, Any] | None = None, kicker: str = ""
    ) -> None:
        if not title.strip():
            raise InputError("a report needs a title")
        super().__init__(title, command, lead)
        self.facts = dict(facts or {})
        self.kicker = kicker
        self.sections: list[Section] = []

    def section(self, title: str, command: str = "", *, lead: str = "") -> Section:
        """Add a section; ``command`` made its numbers, if it differs from the command of the report."""
        made = Section(title, command, lead)
        self.sections.append(made)
        return made

    def html(self) -> str:
        """Return the page as text."""
        return render(self)

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        frame = "width:100%;height:80vh;border:1px solid #8884;border-radius:10px"
        return f'<iframe srcdoc="{escape(self.html())}" style="{frame}" title="{escape(self.title)}"></iframe>'

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page atomically; ``path`` ends in .html, in an existing folder."""
        place = check_place(path)
        write_text(place, render(self))
        return place


def check_words(caption: str, alt: str) -> tuple[str, str]:
    """Raise for a figure without caption or alt text."""
    if not caption.strip() or not alt.strip():
        raise InputError("a figure in a report needs a caption and an alt text")
    return caption, alt


def make_table(
    rows: Iterable[Mapping[str, Any] | Sequence[Any]], columns: Sequence[str] | None, caption: str, command: str
) -> blocks.Table:
    listed = list(rows)
    if columns is None:
        if not listed or not isinstance(listed[0], Mapping):
            raise InputError("give the columns of a table whose rows are not dicts")
        columns = [str(name) for name in listed[0]]
    if any(not str(name).strip() for name in columns):
        raise InputError("every column of a table needs a name")
    cells = [tuple(row.get(name) for name in columns) if isinstance(row, Mapping) else tuple(row) for row in listed]
    for row in cells:
        if len(row) != len(columns):
            raise InputError(f"a row of {len(row)} cells does not fit {len(columns)} columns: {row!r}")
    return blocks.Table(tuple(columns), tuple(cells), caption, command)
