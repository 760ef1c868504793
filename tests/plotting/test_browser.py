"""The page in a browser: it draws, the slider moves the tokens, playing ends at the last frame, and nothing is requested."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attractor.plotting import Scene, draw

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


def test_the_page_moves_and_asks_for_nothing(browser: Any, globe_scene: Scene, tmp_path: Path) -> None:
    expect = pytest.importorskip("playwright.sync_api").expect
    path = draw(globe_scene, tmp_path / "tokens.html", frames=12)
    requests: list[str] = []
    faults: list[str] = []
    page = browser.new_page(viewport={"width": 900, "height": 620})
    page.set_default_timeout(60_000)
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")

    heads = "() => Array.from(document.getElementById('tokens').data.at(-1).x)"
    start = page.evaluate(heads)
    assert page.inner_text("#now") == "t = 0"
    page.focus("#time")
    page.keyboard.press("End")
    expect(page.locator("#now")).to_have_text("t = 60", timeout=60_000)
    end = page.evaluate(heads)
    assert max(abs(a - b) for a, b in zip(start, end, strict=True)) > 0.5

    page.keyboard.press("Home")
    page.click("#play")
    expect(page.locator("#now")).to_have_text("t = 60", timeout=60_000)
    expect(page.locator("#play")).to_have_attribute("aria-pressed", "false", timeout=60_000)

    # the lens stays square to the line of sight when the globe is turned
    box = page.locator("#tokens").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 170, steps=4)
    page.mouse.up()
    page.wait_for_timeout(500)
    tilt = page.evaluate(
        """() => {
          const tokens = document.getElementById('tokens'), lens = tokens.data.find((trace) => trace.name === 'lens');
          const eye = tokens.layout.scene.camera.eye, length = Math.hypot(eye.x, eye.y, eye.z);
          return Math.max(...lens.x.map((_, i) => Math.abs(lens.x[i] * eye.x + lens.y[i] * eye.y + lens.z[i] * eye.z) / length));
        }"""
    )
    assert tilt < 1e-3
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert faults == []


def test_the_page_fits_a_telephone_by_night(browser: Any, globe_scene: Scene, tmp_path: Path) -> None:
    path = draw(globe_scene, tmp_path / "tokens.html", frames=3)
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.set_default_timeout(60_000)
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 28)"


@pytest.mark.parametrize("space", ["sphere", "euclidean"])
def test_without_webgl_a_fixed_view_is_drawn(browser: Any, make_scene: Any, tmp_path: Path, space: str) -> None:
    path = draw(make_scene(3, space), tmp_path / "tokens.html", frames=4)
    plain = browser.browser_type.launch(
        executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu", "--disable-3d-apis"]
    )
    try:
        page = plain.new_page(viewport={"width": 900, "height": 620})
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate("document.createElement('canvas').getContext('webgl') === null")
        assert "no WebGL" in page.inner_text("#tokens")
        places = (
            "() => [...document.querySelectorAll('#tokens .points path')].map((dot) => dot.getAttribute('transform'))"
        )
        start = page.evaluate(places)
        assert len(start) == 12
        page.focus("#time")
        page.keyboard.press("End")
        page.wait_for_function(f"(start) => ({places})().join() !== start.join()", arg=start)
        assert faults == []
    finally:
        plain.close()


@pytest.mark.parametrize("size", [(1400, 900), (860, 1400)])
def test_the_sphere_is_whole(browser: Any, make_scene: Any, tmp_path: Path, size: tuple[int, int]) -> None:
    path = draw(make_scene(3, "sphere"), tmp_path / "tokens.html", frames=4)
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    page.wait_for_timeout(1000)
    pixels = np.asarray(Image.open(io.BytesIO(page.locator("#tokens").screenshot())).convert("L"), dtype=int)
    page.close()
    drawn = np.abs(pixels - pixels[2, 2]) > 6
    rows, columns = np.flatnonzero(drawn[40:].any(axis=1)), np.flatnonzero(drawn[40:].any(axis=0))
    assert columns[0] > 2
    assert columns[-1] < pixels.shape[1] - 3
    assert rows[-1] < pixels.shape[0] - 43
    assert (columns[-1] - columns[0]) / (rows[-1] - rows[0]) == pytest.approx(1.0, abs=0.08)  # a disc
