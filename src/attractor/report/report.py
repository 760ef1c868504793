"""The builder: sections, and in them words, formulas, tables, cards and pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import InputError
from attractor.report import blocks
from attractor.report.figures import content_of
from attractor.report.film import filmed
from attractor.report.heatmap import Measure, Pictures, grid_content
from attractor.report.page import render, write_page

if TYPE_CHECKING:
    from attractor.pictures import Scene


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
        if tone not in blocks.TONES:
            raise InputError(f"tone {tone!r} is not known; give one of {', '.join(blocks.TONES)}")
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
        return self._add(tabulated(rows, columns, caption, command))

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
        table = None if numbers is None else tabulated(numbers, columns, "", "")
        return self._add(blocks.Figure(content_of(figure), *said(caption, alt), command, height, table))

    def film(
        self, scene: Scene, *, caption: str = "", command: str = "", frames: int = 90, tokens: int = 600
    ) -> Section:
        """Tokens that move along time, with a slider and their observables beside them; ``caption`` comes before the scene's own."""
        return self._add(filmed(scene, caption, command, frames, tokens))

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
        pictures: Pictures | None = None,
        command: str = "",
    ) -> Section:
        """A grid coloured by one of several measures, which the reader chooses.

        ``detail(row, column)`` gives the rows of the panel that a click on the cell opens: label -> text, number or Badge;
        ``pictures`` adds a plot to it.
        """
        content = grid_content(measures, rows, columns, axes, detail, pictures)
        return self._add(blocks.Heatmap(content, *said(caption, alt), command))

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


def said(caption: str, alt: str) -> tuple[str, str]:
    """A picture without words is refused."""
    if not caption.strip() or not alt.strip():
        raise InputError("a picture in a report needs a caption (one sentence that says what it shows) and an alt text")
    return caption, alt


def tabulated(
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
