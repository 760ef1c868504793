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
    """The path of a report, or one sentence on why none can be written there; call it before the work starts."""
    place = Path(path).expanduser()
    if place.suffix != ".html":
        raise InputError(f"{option} writes a page: give a name that ends in .html, not {place}")
    place = check_target(place)
    check_folder(place.parent, f"{option} {place}")
    environment()
    plotly()
    return place


def write_page(report: Report, path: str | os.PathLike[str]) -> Path:
    place = check_place(path)
    write_text(place, render(report))
    return place


def render(report: Report) -> str:
    """The whole page; plotly travels in it once, and only if there is something to draw."""
    from attractor.report.blocks import Animation, Figure, Heatmap

    found = [block for section in (report, *report.sections) for block in flatten(section.blocks)]
    kinds = {type(block) for block in found}
    opens = any(isinstance(block, Heatmap) and "figures" in block.content for block in found)
    draws, moves = opens or bool(kinds & {Figure, Animation}), Animation in kinds
    source = {name: Trusted(TEMPLATES, f"{name}.{end}") for name, end in (("style", "css"), ("script", "js"))}
    return (
        environment()
        .get_template("page.html")
        .render(
            report=report,
            numbered=list(enumerate(report.sections, start=1)),
            version=__version__,
            style=source["style"].markup() + (Trusted(ANIMATION, "animation.css").markup() if moves else ""),
            script=source["script"].markup(),
            plotly=plotly() if draws else "",
            animation=None if not moves else Trusted(ANIMATION, "animation.js").markup(),
        )
    )


def flatten(blocks: list[Any]) -> list[Any]:
    """Blocks and those folded into them."""
    return [block for item in blocks for block in (item, *flatten(getattr(item, "blocks", [])))]


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
    made.filters |= {"words": render_words, "cell": render_cell, "json": embed_json}
    made.globals["maths"] = render_maths
    return made


def render_cell(value: Any) -> Markup:
    """A value of a table or a card as HTML."""
    from markupsafe import Markup, escape

    if isinstance(value, Badge):
        return Markup('<span class="badge {}">{}</span>').format(value.tone, value.text)
    if isinstance(value, Maths):
        return render_maths(value.latex)
    if isinstance(value, Code):
        return Markup("<code>{}</code>").format(value.text)
    return escape(format_value(value))


def embed_json(content: Any) -> Markup:
    """Data for the script."""
    from markupsafe import Markup

    return Markup(encode_json(content))


def plotly() -> Markup:
    """The source of plotly, from the package that carries it."""
    try:
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise missing("plotly", "report") from None
    return Markup(get_plotlyjs())


class Section:
    """A heading and what stands under it; every method adds one block and returns the section, so that calls chain."""

    def __init__(self, title: str = "", command: str = "", lead: str = "") -> None:
        self.title, self.command, self.lead = title, command, lead
        self.blocks: list[Any] = []

    def _add(self, block: Any) -> Section:
        self.blocks.append(block)
        return self

    def text(self, words: str, tone: str = "plain") -> Section:
        r"""A paragraph; \( formulas \) and `code` are set as such, everything else as it is.

        ``tone`` "good", "warn" or "bad" puts it in a coloured box.
        """
        check_name(tone, blocks.TONES, "tone")
        return self._add(blocks.Text(words, tone))

    def maths(self, latex: str) -> Section:
        """A formula on a line of its own."""
        return self._add(blocks.Formula(latex))

    def commands(self, lines: Mapping[str, str]) -> Section:
        """Commands for the shell, each with what it does."""
        return self._add(blocks.Commands(tuple(lines.items())))

    def table(
        self,
        rows: Iterable[Mapping[str, Any] | Sequence[Any]],
        columns: Sequence[str] | None = None,
        *,
        caption: str = "",
        command: str = "",
    ) -> Section:
        """Rows of cells: dicts (their keys are the columns unless ``columns`` picks some) or sequences with ``columns``.

        A cell is a text, a number, None, a ``Badge``, a ``Maths`` or a ``Code``. Readers sort it by clicking on a heading.
        """
        return self._add(make_table(rows, columns, caption, command))

    def card(self, rows: Mapping[str, Any], title: str = "", tone: str = "plain") -> Section:
        """Labels and values; cards that follow one another stand side by side."""
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
        """A plotly figure (or a dict of data and layout), the sentence under it and the words for who cannot see it.

        ``numbers`` (rows, as in ``table``) are folded away below the picture.
        """
        table = None if numbers is None else make_table(numbers, columns, "", "")
        return self._add(blocks.Figure(figure_content(figure), *check_words(caption, alt), command, height, table))

    def animation(
        self, scene: Scene, *, caption: str = "", command: str = "", frames: int = 90, tokens: int = 600
    ) -> Section:
        """Tokens that move along time, with a slider and their observables beside them; ``caption`` comes before the scene's own."""
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
        """A grid coloured by one of several measures, which the reader chooses.

        ``detail(row, column)`` gives the rows of the panel that a click on the cell opens: label -> text, number or Badge;
        ``figures`` adds a plot to it.
        """
        content = heatmap_content(measures, rows, columns, axes, detail, figures)
        return self._add(blocks.Heatmap(content, *check_words(caption, alt), command))

    def fold(self, title: str) -> Section:
        """A part that the reader opens: what is added to the section it returns is hidden behind ``title``."""
        inner = Section(title)
        self._add(blocks.Fold(title, inner.blocks))
        return inner


class Report(Section):
    """One self-contained page. Blocks added to it directly stand before the first section.

    command: what made it, as one types it. facts: short labels and values at the head, such as the model and the seed.
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
        """A new section; ``command`` is what made its numbers, where that differs from the report's."""
        made = Section(title, command, lead)
        self.sections.append(made)
        return made

    def html(self) -> str:
        """The whole page as text."""
        return render(self)

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        frame = "width:100%;height:80vh;border:1px solid #8884;border-radius:10px"
        return f'<iframe srcdoc="{escape(self.html())}" style="{frame}" title="{escape(self.title)}"></iframe>'

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, whole or not at all; ``path`` ends in .html, in a folder that exists."""
        return write_page(self, path)


def check_words(caption: str, alt: str) -> tuple[str, str]:
    """A picture without words is refused."""
    if not caption.strip() or not alt.strip():
        raise InputError("a picture in a report needs a caption (one sentence that says what it shows) and an alt text")
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
        raise InputError("every column of a table needs a name: it is the header that its cells are read with")
    cells = [tuple(row.get(name) for name in columns) if isinstance(row, Mapping) else tuple(row) for row in listed]
    for row in cells:
        if len(row) != len(columns):
            raise InputError(f"a row of {len(row)} cells does not fit {len(columns)} columns: {row!r}")
    return blocks.Table(tuple(columns), tuple(cells), caption, command)
