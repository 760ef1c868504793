"""A report says what it was given, escapes all of it, and is written whole or not at all."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from attractor.errors import InputError, MissingExtraError, StoreError
from attractor.report import Badge, Measure, Report, check_place
from attractor.report.blocks import format_value, render_maths, render_words
from attractor.report.figures import encode_json, figure_content
from attractor.report.report import environment


class Tags(HTMLParser):
    """Elements of a page, in order, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_hostile_text_is_inert(demonstrate: Callable[..., Report], hostile: str) -> None:
    tame, wild = Tags(demonstrate().html()), Tags(demonstrate(hostile).html())
    assert [tag for tag, _ in wild.found] == [tag for tag, _ in tame.found]
    assert not [name for _, attributes in wild.found for name in attributes if name.startswith("on")]


def test_nothing_is_linked(demonstrate: Callable[..., Report]) -> None:
    tags = Tags(demonstrate().html()).found
    links = [value for _, attributes in tags for name, value in attributes.items() if name in ("src", "href", "action")]
    assert links
    assert all(link is not None and link.startswith("#") for link in links)


def test_plotly_travels_once_and_only_for_pictures(demonstrate: Callable[..., Report]) -> None:
    page = demonstrate().html()
    assert len(page.encode()) < 8_000_000
    assert page.count("window.PlotlyConfig") == 1
    assert len(Report("Words").html()) < 60_000


def test_pictures_need_words() -> None:
    with pytest.raises(InputError, match="caption"):
        Report("x").figure({"data": []}, "", "alt")
    with pytest.raises(InputError, match="alt"):
        Report("x").figure({"data": []}, "caption", " ")


@pytest.mark.parametrize(
    ("measures", "reason"),
    [
        ({}, "at least one"),
        ({"a": np.zeros((2, 2))}, "shape"),
        ({"a": Measure(np.zeros((3, 2)), "rainbow")}, "not known"),
    ],
)
def test_heatmaps_that_cannot_be(measures: dict, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Report("x").heatmap(measures, rows=range(3), columns=range(2), caption="c", alt="a")


def test_tables_and_tones_that_cannot_be() -> None:
    with pytest.raises(InputError, match="columns"):
        Report("x").table([(1, 2)])
    with pytest.raises(InputError, match="3 cells"):
        Report("x").table([(1, 2, 3)], ("a", "b"))
    with pytest.raises(InputError, match="tone"):
        Badge("x", "loud")
    with pytest.raises(InputError, match="tone"):
        Report("x").text("x", tone="loud")
    with pytest.raises(InputError, match="plotly figure"):
        figure_content([1, 2])
    with pytest.raises(InputError, match="title"):
        Report(" ")


def test_formulas_are_mathml_and_escaped() -> None:
    assert "<mfrac>" in render_maths(r"\frac{1}{2}")
    assert "<script>" not in render_maths(r"\text{<script>alert(1)</script>}")
    assert "&lt;script&gt;" in render_maths(r"\text{<script>alert(1)</script>}")
    assert "Σ" in render_maths(r"\Sigma")
    assert render_maths(r"\begin{foo}") == r"<code>\begin{foo}</code>"
    said = render_words(r"a < b, \(x < y\) and `c < d`")
    assert said.startswith("a &lt; b, <math")
    assert said.endswith("<code>c &lt; d</code>")


def test_numbers_are_short_and_honest() -> None:
    shown = [
        format_value(value) for value in (None, True, 12345, 0.123456, -2.5, float("inf"), float("nan"), 1e9, "word")
    ]
    assert shown == ["–", "yes", "12,345", "0.1235", "−2.5", "∞", "not defined", "1e+09", "word"]


def test_data_cannot_close_its_element() -> None:
    text = encode_json({"a": "</script>", "b": np.array([1 / 3, np.nan])})
    assert "<" not in text
    assert text == '{"a":"\\u003c/script\\u003e","b":[0.3333333,null]}'


def test_a_figure_keeps_what_it_says() -> None:
    content = figure_content(
        {"data": [], "layout": {"margin": {"l": 7}, "xaxis2": {"title": {"text": "t"}}, "template": {}}}
    )
    assert content["layout"]["margin"]["l"] == 7
    assert content["layout"]["margin"]["r"] == 20
    assert content["layout"]["xaxis2"]["gridcolor"]
    assert "template" not in content["layout"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.html"):
        check_place(tmp_path / "report.pdf", "--report")
    with pytest.raises(InputError, match="does not exist"):
        check_place(tmp_path / "missing" / "report.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        check_place(tmp_path / "folder.html")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        check_place(tmp_path / "report.html")


def test_a_failure_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Report("Old").write(tmp_path / "report.html")
    before = place.read_bytes()

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StoreError, match="no space left"):
        Report("New").write(place)
    assert place.read_bytes() == before
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("module", ["jinja2", "latex2mathml.converter", "plotly.offline"])
def test_a_missing_package_is_named(
    module: str, demonstrate: Callable[..., Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = demonstrate()
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"this needs {module.split('.')[0]}.*attractor\[report\]"):
        report.html()
    environment.cache_clear()


def test_colours_of_words_can_be_read() -> None:
    """WCAG AA: contrast of at least 4.5 between every colour of words and the grounds it stands on, by day and by night."""
    source = (Path(__file__).parents[2] / "src/attractor/report/templates/style.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part))
        for part in re.findall(r"color-scheme: \w+;([^}]*)", source)
    ]
    assert len(themes) == 3
    assert themes[1] == themes[2]

    def light(colour: str) -> float:
        levels = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
        return float(
            np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    def contrast(one: str, other: str) -> float:
        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for theme in themes:
        pairs = [(word, ground) for word in ("ink", "quiet", "accent") for ground in ("paper", "raised")]
        pairs += [(tone, f"{tone}-ground") for tone in ("good", "warn", "bad")] + [("accent-ink", "accent")]
        for word, ground in pairs:
            assert contrast(theme[word], theme[ground]) >= 4.5, (word, ground)
