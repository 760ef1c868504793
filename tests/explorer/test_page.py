"""The explorer's page in Chromium: it moves, obeys mouse, touch and keyboard, keeps its state in the address, and requests nothing."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from attractor.explorer import SCHEMA, build_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
AXE = Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"  # .ci/run downloads it
WAIT = 60.0  # seconds; a busy machine draws slowly


class Window:
    """A page of the explorer, with the requests and faults that it has seen."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.path = page, path
        self.requests: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(1000 * WAIT)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)

    def open(self, address: str = "") -> None:
        self.page.goto("about:blank")
        self.page.goto(self.path.as_uri() + address)
        self.page.wait_for_selector("html[data-ready]")

    def ask(self, script: str, *arguments: Any) -> Any:
        return self.page.evaluate(script, *arguments)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true; the page's policy forbids the waiting functions of playwright."""
        end = time.monotonic() + WAIT
        while not self.ask(f"() => Boolean({condition})"):
            assert time.monotonic() < end, f"{condition} is still false"
            self.page.wait_for_timeout(50)

    def finish(self) -> None:
        """Wait for the end of the computation."""
        self.wait("!state.next && state.run && state.run.outcome")

    def show(self, system: dict[str, Any], view: dict[str, Any] | None = None) -> None:
        """Open a system, at rest."""
        self.ask("([system, view]) => { openState({ system, view }); setPlaying(false); }", [system, view or {}])
        self.finish()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("explorer") / "explorer.html"
    file.write_text(build_page(), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def shared(browser: Any, path: Path) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": 1280, "height": 820}, accept_downloads=True)
    window = Window(context.new_page(), path)
    window.open("?webgl")  # in software, where the page would take a plain canvas as the other tests do
    assert window.ask("() => Boolean(scene.gl)")
    yield window
    context.close()


@pytest.fixture
def window(shared: Window) -> Iterator[Window]:
    """The shared page; afterwards nothing was requested and nothing has failed."""
    shared.ask("() => { setPlaying(false); select(-1); scrollTo(0, 0); }")
    yield shared
    assert [url for url in shared.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
    assert [fault for fault in shared.faults if "GPU stall" not in fault] == []


SMALL = {"dim": 2, "start": {"kind": "uniform", "tokens": 12, "seed": 0}, "beta": 3, "until": 20}


def test_it_is_one_small_file_that_may_not_connect(path: Path, window: Window) -> None:
    assert path.stat().st_size < 320_000
    policy = window.ask("() => document.querySelector('meta[http-equiv]').content")
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    tried = "() => fetch('https://example.org').then(() => 'sent', () => 'blocked')"
    assert window.ask(tried) == "blocked"
    window.faults.clear()  # the browser reports what it blocked


def test_it_moves_at_once(browser: Any, path: Path) -> None:
    context = browser.new_context(viewport={"width": 900, "height": 700})
    window = Window(context.new_page(), path)
    window.open()
    window.wait("state.moved")
    assert window.ask("() => state.playing")
    assert (
        window.ask("() => state.moved") < 5000
    )  # under one second on a quiet machine; docs/explorer.md has the measured time
    before = window.ask("() => state.at")
    window.wait(f"state.at > {before}")
    context.close()


def test_sliders_change_the_run_and_keep_the_time(window: Window) -> None:
    window.show(SMALL)
    window.ask("() => goTo(200)")
    clusters = window.ask("() => state.run.curves.at(-1).gap")
    slider = window.page.get_by_label("β (selectivity)", exact=True)
    slider.focus()
    for _ in range(40):
        slider.press("ArrowRight")
    window.finish()
    assert window.ask("() => state.system.beta") > 4
    assert abs(window.ask("() => state.at") - 200) < 1
    assert window.ask("() => state.run.curves.at(-1).gap") != clusters
    box = window.page.get_by_label("β (selectivity), number")
    box.fill("-8")
    box.press("Enter")
    window.finish()
    assert window.ask("() => state.run.system.beta") == -8
    window.page.get_by_role("radio", name="sphere", exact=True).click()
    window.finish()
    assert window.ask("() => [state.run.d, state.run.system.space]") == [3, "sphere"]


def test_a_token_follows_the_mouse_and_a_new_run_starts_there(window: Window) -> None:
    window.show(SMALL)
    at = "() => { const p = scene.project({ at: state.at }), b = document.getElementById('scene').getBoundingClientRect();"
    at += (
        " const [x, y] = scene.toPixels(scene.placesAt(state.at).subarray(0, 3), p); return [b.left + x, b.top + y]; }"
    )
    x, y = window.ask(at)
    middle = window.page.locator("#scene").bounding_box()
    cx, cy = middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2
    window.page.mouse.move(x, y)
    window.page.mouse.down()
    window.page.mouse.move(x + 10, y + 10, steps=2)
    goal = (2 * cx - x, 2 * cy - y)  # the opposite point of the circle
    window.page.mouse.move(*goal, steps=6)
    window.page.wait_for_timeout(300)
    window.page.mouse.up()
    window.finish()
    assert window.ask("() => state.system.start.kind") == "points"
    placed = window.ask("() => Array.from(state.run.start.slice(0, 2))")
    expected = ((goal[0] - cx), -(goal[1] - cy))
    length = (expected[0] ** 2 + expected[1] ** 2) ** 0.5
    assert abs(placed[0] - expected[0] / length) < 0.05
    assert abs(placed[1] - expected[1] / length) < 0.05
    assert window.ask("() => [state.live, state.system.pinned.length]") == [None, 0]


def test_the_wheel_changes_a_mass_and_a_double_click_pins(window: Window) -> None:
    window.show(SMALL)
    window.ask("() => { select(3); togglePin(); }")
    window.finish()
    assert window.ask("() => state.run.system.pinned") == [3]
    assert window.ask(
        "() => { const [a, b] = [0, -1].map((k) => state.run.frames.at(k).points.slice(6, 8)); return a[0] === b[0] && a[1] === b[1]; }"
    )
    window.ask("() => weigh(3, 2)")
    window.finish()
    masses = window.ask("() => Array.from(state.run.masses)")
    assert masses[3] == pytest.approx(2 * masses[0], rel=1e-6)
    assert sum(masses) == pytest.approx(1)


def test_curves_and_keys_travel_in_time(window: Window) -> None:
    window.show(SMALL)
    curve = window.page.locator(".curve").first
    curve.scroll_into_view_if_needed()
    box = window.page.locator(".curve canvas").first.bounding_box()
    window.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
    assert window.ask("() => state.at / (state.run.times.length - 1)") == pytest.approx(0.5, abs=0.02)
    window.page.focus("#scene")
    for key, place in (("Home", 0), ("ArrowRight", 4), ("End", 400)):
        window.page.keyboard.press(key)
        assert window.ask("() => state.at") == place
    window.page.keyboard.press("]")
    assert window.ask("() => state.selected") == 0
    window.page.keyboard.press("p")
    window.finish()
    assert window.ask("() => state.run.system.pinned") == [0]
    window.page.keyboard.press("Delete")
    window.finish()
    assert window.ask("() => state.run.n") == 11
    window.page.keyboard.press(" ")
    assert window.ask("() => state.playing")


def test_presets_open_from_the_keyboard_and_say_what_to_try(window: Window) -> None:
    keys = window.ask("() => DATA.presets.map(({ key }) => key)")
    assert len(keys) >= 12
    for key in keys:
        button = window.page.locator(f'#presets [data-key="{key}"]')
        button.focus()
        window.page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        story = window.page.inner_text("#story")
        assert "Try:" in story
        assert "?" in story
    window.finish()


def test_the_address_holds_the_system(window: Window, browser: Any, path: Path) -> None:
    window.show(
        {
            **SMALL,
            "beta": 7.25,
            "mask": "causal",
            "start": {"kind": "points", "points": [[1, 0], [0.123456, 0.5], [-0.2, 0.9]]},
        }
    )
    fragment = window.ask("() => currentAddress()")
    context = browser.new_context()
    other = Window(context.new_page(), path)
    other.open(fragment)
    assert other.ask("() => state.system") == window.ask("() => state.system")
    other.open("#p=bipartite")
    assert other.ask("() => state.preset.key") == "bipartite"
    other.open("#s=nonsense")
    assert "cannot be read" in other.page.inner_text("#notice")
    assert other.faults == []
    context.close()


def test_everything_can_be_taken_away(window: Window) -> None:
    window.show(SMALL, {"clock": "linear"})
    window.ask("() => { state.speed = 60; }")

    def take(name: str) -> bytes:
        window.page.click("#export")
        with window.page.expect_download() as download:
            window.page.click(f'[data-export="{name}"]')
        return Path(download.value.path()).read_bytes()

    drawing = ElementTree.fromstring(take("svg"))
    assert len(drawing.findall(".//{http://www.w3.org/2000/svg}circle")) == 12
    with Image.open(io.BytesIO(take("png"))) as picture:
        assert picture.width > 400
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 20
    data = json.loads(take("json"))
    assert data["schema"] == "attractor.explorer/1"
    assert data["system"]["schema"] == SCHEMA
    assert len(data["times"]) == len(data["points"]) == len(data["curves"]["gap"]) == 401
    assert take("webm")[:4] == b"\x1a\x45\xdf\xa3"  # EBML
    for name, begins in (("command", "attractor simulate "), ("python", "import attractor as at"), ("link", "file:")):
        window.page.click("#export")
        window.page.click(f'[data-export="{name}"]')
        window.wait(f"(document.documentElement.dataset.copied || '').startsWith({begins!r})")
    window.ask("() => { state.speed = 1; }")


def test_files_open_and_bad_ones_are_refused_in_words(window: Window) -> None:
    def drop(name: str, text: str) -> None:
        window.ask("([name, text]) => readFile(new File([text], name))", [name, text])
        window.page.wait_for_timeout(50)

    drop("system.json", json.dumps({"schema": SCHEMA, **SMALL, "beta": 5.5}))
    window.finish()
    assert window.ask("() => state.run.system.beta") == 5.5
    for text, words in (
        ("{", "cannot be opened"),
        (json.dumps({"schema": "attractor.other/1"}), "does not read"),
        (json.dumps({"schema": SCHEMA, "dim": 99}), "2 to 8 dimensions"),
        (json.dumps({"schema": SCHEMA, "kernel": "sinkhorn"}), "attractor explore"),
        (json.dumps({"schema": SCHEMA, "start": {"kind": "points", "points": [[1], ["x"]]}}), "finite numbers"),
        (json.dumps({"schema": SCHEMA, "masses": [1, -1]}), "positive numbers"),
    ):
        drop("other.json", text)
        assert words in window.page.inner_text("#notice"), text
    assert window.ask("() => state.run.system.beta") == 5.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault(browser: Any, path: Path, scheme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not here: .ci/run downloads it")
    context = browser.new_context(
        viewport={"width": 1280, "height": 820}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    window = Window(context.new_page(), path)
    window.open()
    window.finish()
    assert not window.ask("() => state.playing")  # reduced motion: nothing moves by itself
    window.ask("() => { select(2); document.querySelector('.chip').click(); }")
    window.page.add_script_tag(path=str(AXE))
    found = window.ask("() => axe.run(document, { resultTypes: ['violations'] })")
    violations = [(rule["id"], [node["html"][:120] for node in rule["nodes"]][:3]) for rule in found["violations"]]
    assert violations == []
    context.close()


def test_it_fits_a_phone_and_obeys_touch(browser: Any, path: Path) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, device_scale_factor=2
    )
    window = Window(context.new_page(), path)
    window.open("#p=causal")
    window.finish()
    assert window.ask("() => document.documentElement.scrollWidth") <= 360
    stage = window.page.locator("#stage").bounding_box()
    assert stage["width"] > 300
    assert stage["y"] < 300
    small = """() => [...document.querySelectorAll('button')]
      .filter((button) => button.offsetParent && button.getBoundingClientRect().height < 24).map((button) => button.textContent)"""
    assert window.ask(small) == []
    window.ask("() => { setPlaying(false); goTo(0); }")
    x, y = window.ask(
        """() => {
          const p = scene.project({ at: 0 }), ratio = scene.canvas.ratio, box = scene.canvas.getBoundingClientRect();
          const all = scene.placesAt(0);
          const pixels = Array.from({ length: state.run.n }, (_, i) => scene.toPixels(all.subarray(3 * i, 3 * i + 3), p));
          const [u, v] = pixels.sort((a, b) => b[2] - a[2])[0];
          return [box.left + u / ratio, box.top + v / ratio];
        }"""
    )
    window.page.touchscreen.tap(x, y)
    window.wait("state.selected >= 0")
    assert window.page.is_visible("#token")
    context.close()
