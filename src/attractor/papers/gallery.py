"""Folders of reproduced figures: data, pictures and a page of each entry, and the page that shows all of them."""

from __future__ import annotations

import base64
import io
import shutil
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from attractor._version import __version__
from attractor.errors import AttractorError, FetchError, MissingExtraError, StoreError
from attractor.files import hold_lock, make_folder, to_json, write_json, write_text
from attractor.html_repr import format_number
from attractor.papers.figure import (
    OUTCOMES,
    Data,
    Figure,
    Settings,
    Update,
    Verdict,
    command_of,
    list_figures,
    read_data,
)
from attractor.report import Badge, Code, Report, Tile
from attractor.solvers import describe_source

DATA, PICTURE, PAGE, PARTS, FAILED = "data.json", "figure.png", "index.html", ".parts", "failed.txt"
THUMBNAIL = 560  # pixels


@dataclass(frozen=True)
class Reproduced:
    """An entry in a folder: its data and verdict, or the reason why there are none.

    Attributes
    ----------
    state : "computed", "stored" (by an earlier run), "failed" or "missing" (weights or an optional dependency).
    """

    figure: Figure
    state: str
    data: Data | None = None
    message: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if the data were computed."""
        return None if self.data is None else self.figure.verdict(self.data)


def reproduce_into(
    figure: Figure, folder: Path, changes: Settings | None = None, progress: Update | None = None, again: bool = False
) -> Reproduced:
    """Compute, draw and describe an entry in ``folder / key``; what an earlier run with equal settings finished is kept.

    The folder holds ``data.json``, ``figure.png`` and ``index.html``. With ``again`` everything is computed again.
    """
    place = folder / figure.key
    make_folder(place)
    with hold_lock(place / ".lock", f"{place}"):
        if again:
            shutil.rmtree(place / PARTS, ignore_errors=True)
        data = None if again else stored_data(figure, folder)
        state = "stored"
        if data is None or data["settings"] != to_json(figure.settings(changes)):
            (place / PAGE).unlink(missing_ok=True)
            data, state = figure.reproduce(changes, progress, place / PARTS), "computed"
            write_json(place / DATA, figure.document(data), indent=1)
        if state == "computed" or not (place / PAGE).exists():
            pictures = figure.draw(data, place / PICTURE)
            write_text(place / PAGE, entry_report(figure, data, pictures).html())
        shutil.rmtree(place / PARTS, ignore_errors=True)
        (place / FAILED).unlink(missing_ok=True)
    return Reproduced(figure, state, data)


def stored_data(figure: Figure, folder: Path) -> Data | None:
    """Return the data of an entry in a folder, or None if there are none that this release can read."""
    path = folder / figure.key / DATA
    if not path.exists():
        return None
    try:
        return read_data(path, figure)
    except StoreError:
        return None  # of another version, or damaged: computed again


def reproduce_all(
    folder: Path,
    figures: Sequence[Figure],
    *,
    small: bool = False,
    again: bool = False,
    progress: Callable[[Figure], AbstractContextManager[Update]],
    tell: Callable[[Reproduced], object] = lambda row: None,
) -> list[Reproduced]:
    """Reproduce entries in a folder and write its page; an entry that fails is reported there and costs only itself."""
    rows = []
    for figure in figures:
        try:
            with progress(figure) as update:
                row = reproduce_into(figure, folder, figure.small if small else None, update, again)
        except (MissingExtraError, FetchError) as error:
            row = Reproduced(figure, "missing", None, str(error))
        except (
            Exception
        ) as error:  # the entry's own error: kept in its folder, shown on the page, and counted by the caller
            words = str(error) if isinstance(error, AttractorError) else f"{type(error).__name__}: {error}"
            row = Reproduced(figure, "failed", None, words)
            write_text(folder / figure.key / FAILED, traceback.format_exc())
        rows.append(row)
        tell(row)
    write_gallery(folder, {row.figure.key: row.message for row in rows})
    return rows


def entry_report(figure: Figure, data: Data, pictures: Iterable[Path]) -> Report:
    """Build the page of an entry from its data and pictures."""
    verdict = figure.verdict(data)
    facts = {
        "verdict": Badge(verdict.outcome, OUTCOMES[verdict.outcome]),
        "paper": describe_source(figure.source),
        "figure": figure.reference or "an experiment of ours on a question of the paper",
        "CPU time": f"{format_number(data['seconds'])} s",
    }
    page = Report(figure.title, command_of(data), lead=figure.question, facts=facts, kicker="reproduced figure")
    settings = "" if figure.has_published_settings(data) else "These are not the default settings of the entry. "
    page.text(settings + verdict.reason, tone=OUTCOMES[verdict.outcome])
    for picture in pictures:
        page.picture(picture_content(picture), f"{figure.title}.", f"{figure.title}: {figure.question}")
    beside = figure.beside(data)
    if beside:
        part = page.section("Accurate result and published procedure")
        part.table(
            [(row.quantity, row.accurate, row.published) for row in beside],
            ["quantity", "accurate", "published procedure"],
        )
    compared = figure.compare(data)
    if compared:
        part = page.section("Comparison with independent code")
        part.table(
            [
                (
                    row.quantity,
                    row.ours,
                    row.other,
                    f"{row.tolerance:g}{' (relative)' if row.relative else ''}",
                    Badge("agrees", "good") if row.agrees else Badge("differs", "bad"),
                    row.code,
                )
                for row in compared
            ],
            ["quantity", "ours", "independent code", "tolerance", "result", "code"],
        )
    part = page.section("Results")
    for table in figure.summarise(data):
        if table.columns:
            part.table(table.rows, table.columns, caption=table.title)
        else:
            part.table(table.rows, ["quantity", "value"], caption=table.title)
    part = page.section("Parameters")
    shown = {name: format_setting(value) for name, value in data["settings"].items()}
    part.table(
        [
            (row.name, Code(shown[row.name] or "empty"), row.description, row.source or "our choice")
            for row in figure.parameters
        ],
        ["parameter", "value", "meaning", "source"],
    )
    for sentence in figure.unknown:
        part.text(f"Not known: {sentence}")
    return page


def write_gallery(folder: Path, messages: dict[str, str] | None = None) -> Path:
    """Write the page of a folder: thumbnails, verdicts and commands of all entries in it."""
    rows = [(figure, stored_data(figure, folder)) for figure in list_figures()]
    computed = [(figure, data) for figure, data in rows if data is not None]
    counts = dict.fromkeys(OUTCOMES, 0)
    for figure, data in computed:
        counts[figure.verdict(data).outcome] += 1
    facts = {name: count for name, count in counts.items() if count} | {
        "CPU time": f"{format_number(sum(data['seconds'] for _, data in computed))} s",
        "attractor": __version__,
    }
    lead = f"{len(computed)} of {len(rows)} entries of `attractor reproduce`, each computed by the command below its picture."
    page = Report("Reproduced figures", "attractor reproduce --all --out FOLDER", lead=lead, facts=facts)
    for source in dict.fromkeys(figure.source for figure, _ in rows):
        chosen = [(figure, data) for figure, data in computed if figure.source == source]
        if chosen:
            part = page.section(describe_source(source))
            part.gallery([_tile(figure, data, folder) for figure, data in chosen])
    absent = {figure.key: (messages or {}).get(figure.key, "") for figure, data in rows if data is None}
    if absent:
        part = page.section("Not computed")
        part.table(
            [
                (key, words or "not run in this folder", Code(f"attractor reproduce {key}"))
                for key, words in absent.items()
            ],
            ["entry", "reason", "command"],
        )
    place = folder / PAGE
    write_text(place, page.html())
    return place


def _tile(figure: Figure, data: Data, folder: Path) -> Tile:
    verdict = figure.verdict(data)
    picture = folder / figure.key / PICTURE
    return Tile(
        image=thumbnail(picture) if picture.exists() else "",
        title=figure.title,
        link=f"{figure.key}/{PAGE}",
        badge=Badge(verdict.outcome, OUTCOMES[verdict.outcome]),
        words=figure.reference,
        note="" if figure.has_published_settings(data) else "not the default settings",
        command=command_of(data),
    )


def picture_content(path: Path) -> str:
    """Return a picture as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def thumbnail(path: Path, width: int = THUMBNAIL) -> str:
    """Return a smaller picture with a palette, as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(shrink(path, width)).decode()}"


def shrink(path: Path, width: int) -> bytes:
    """Return a PNG at most ``width`` pixels wide, with 64 colours."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB")
    small.thumbnail((width, 4 * width), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.quantize(64, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def format_setting(value: object) -> str:
    """Return a setting as it may be typed."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
