"""The interactive page: one file, no request, all text escaped, small."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accessible import faults
from attractor.errors import InputError
from attractor.plotting import Scene, draw

Make = Callable[..., Scene]
NASTY = "</script><script>alert('x')</script> & \"quoted\" <b>"
PLOTLY_SIZE = 6_000_000


class Reader(HTMLParser):
    """Collects tags, addresses that a browser would follow, and the text of elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, str] = {}
        self.scripts: list[str] = []
        self.current = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in ("src", "href", "srcset", "data", "action") if name in given]
        self.current = given.get("id") or given.get("class") or tag

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)
        self.texts[self.current] = self.texts.get(self.current, "") + data


@pytest.fixture(scope="module")
def reader(globe_scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Reader:
    path = tmp_path_factory.mktemp("page") / "tokens.html"
    named = replace(
        globe_scene, title=NASTY, caption=NASTY, outcome=NASTY, curves={NASTY: globe_scene.times}, events=[(1.0, NASTY)]
    )
    return Reader(draw(named, path).read_text(encoding="utf-8"))


def test_no_address_is_followed(reader: Reader) -> None:
    assert reader.addresses == []
    assert "link" not in reader.tags
    assert "iframe" not in reader.tags


def test_nobody_is_kept_out(globe_scene: Scene, tmp_path: Path) -> None:
    titled = replace(globe_scene, title="Tokens on a globe")
    assert faults(draw(titled, tmp_path / "tokens.html").read_text(encoding="utf-8")) == []


def test_a_policy_forbids_the_network(globe_scene: Scene, tmp_path: Path) -> None:
    page = draw(globe_scene, tmp_path / "tokens.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    assert "showSendToCloud: false" in page


def test_text_is_escaped(reader: Reader) -> None:
    assert reader.tags.count("script") == 4
    assert NASTY in reader.texts["title"] + reader.texts["h1"]
    assert reader.texts["caption"].startswith(NASTY)
    assert NASTY in reader.texts["verdict"]
    assert not any("alert('x')" in script and "data" not in script and len(script) < 100 for script in reader.scripts)


def test_the_reel_holds_the_tokens(globe_scene: Scene, reader: Reader) -> None:
    animation = json.loads(reader.texts["data"])
    frames, n = len(animation["labels"]), len(animation["masses"])
    grid = np.frombuffer(base64.b64decode(animation["coordinates"]), dtype="<i2").reshape(frames, n, 3)
    points = np.array(animation["centre"]) + animation["half"] * grid / 32767
    assert points[0] == pytest.approx(globe_scene.points[0], abs=1e-4)
    assert points[-1] == pytest.approx(globe_scene.points[-1], abs=1e-4)
    leaders = np.frombuffer(base64.b64decode(animation["leaders"]), dtype="<u2").reshape(frames, n)
    assert (leaders[0] == np.arange(n)).all()
    assert np.unique(leaders[-1]).size < n
    assert frames <= 120


def test_labels_cannot_carry_markup_into_plotly(reader: Reader) -> None:
    curves = json.loads(reader.texts["data"])["figures"]["curves"]
    words = [note["text"] for note in curves["layout"]["annotations"]] + [trace["name"] for trace in curves["data"]]
    assert not any("<script" in text for text in words)


def test_many_frames_and_tokens_stay_small(tmp_path: Path) -> None:
    generator = np.random.default_rng(7)
    points = generator.standard_normal((1, 3000, 3)) + np.linspace(0, 1, 500)[:, None, None]
    scene = Scene(times=np.linspace(0, 1, 500), points=points, masses=np.ones(3000))
    path = draw(scene, tmp_path / "tokens.html")
    animation = json.loads(Reader(path.read_text(encoding="utf-8")).texts["data"])
    assert len(animation["labels"]) <= 120
    assert len(animation["masses"]) == 2000
    assert path.stat().st_size < PLOTLY_SIZE + 3_500_000


def test_one_saved_time_has_no_controls(make_scene: Make, tmp_path: Path) -> None:
    scene = make_scene()
    still = replace(scene, times=scene.times[:1], points=scene.points[:1], curves={}, events=[])
    assert '<main class="animation lone still"' in draw(still, tmp_path / "still.html").read_text(encoding="utf-8")


def test_a_plotly_figure_for_notebooks(globe_scene: Scene) -> None:
    import plotly.graph_objects as graph_objects

    figure: Any = draw(globe_scene, backend="plotly", frames=10)
    assert issubclass(type(figure), graph_objects.Figure)
    assert 1 < len(figure.frames) <= 10
    assert len(figure.layout.sliders[0].steps) == len(figure.frames)
    assert figure.layout.title.text == globe_scene.title


def test_labels_name_the_tokens_and_are_escaped(make_scene: Make, tmp_path: Path) -> None:
    scene = replace(make_scene(n=3), labels=("the", NASTY, "bank"))
    content = Reader(draw(scene, tmp_path / "words.html").read_text(encoding="utf-8")).texts["data"]
    assert json.loads(content)["tokens"][2] == "2: bank"
    assert "<" not in "".join(json.loads(content)["tokens"])
    with pytest.raises(InputError, match="one for each"):
        replace(scene, labels=("one",))
