"""A report in a browser: the theme turns, cells are read and opened, tables sort, maths is drawn, and nothing is requested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attractor.plotting import Scene
from attractor.report import Report

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page; at the end nothing may have gone wrong in it, and nothing may have left the machine."""
    faults: list[str] = []
    pages: list[Any] = []

    def open_page(path: Path, **options: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        pages.append(page)
        page.set_default_timeout(90_000)
        page.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else faults.append(request.url),
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert faults == []


def ground(page: Any) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_the_parts_work(opened: Callable[..., Any], demonstrate: Callable[..., Report], tmp_path: Path) -> None:
    page = opened(demonstrate().write(tmp_path / "report.html"))
    assert ground(page) == "rgb(255, 255, 255)"
    page.click("#theme")
    assert ground(page) == "rgb(18, 22, 28)"

    assert page.locator("math mfrac").first.bounding_box()["height"] > 15
    page.locator(".plot").scroll_into_view_if_needed()
    page.wait_for_selector(".plot[data-drawn] svg .scatterlayer path")
    page.wait_for_function("document.querySelector('.plot').layout.font.color === '#e9edf2'")

    first = page.locator("[role=gridcell]").first
    first.hover()
    assert page.inner_text("#tip") == "layer 0, head 0\nindex: −1"
    first.click()
    assert "a prompt 0.0" in page.inner_text(".panel")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "a prompt 1.1" in page.inner_text(".panel")
    assert "not defined" in page.inner_text(".panel")
    page.keyboard.press("Escape")
    assert not page.locator(".panel").is_visible()
    before = first.evaluate("cell => cell.style.background")
    page.click(".choose button:has-text('regime')")
    assert first.evaluate("cell => cell.style.background") != before

    page.click("th button:has-text('value')")
    names = (
        "() => [...document.querySelectorAll('table.rows')[0].tBodies[0].rows].map((row) => row.cells[0].textContent)"
    )
    assert page.evaluate(names) == ["a prompt 1", "a prompt 0", "a prompt 2"]
    page.click("th button:has-text('value')")
    assert page.evaluate(names) == ["a prompt 2", "a prompt 0", "a prompt 1"]


def test_a_hostile_prompt_is_shown_and_never_run(
    opened: Callable[..., Any], demonstrate: Callable[..., Report], hostile: str, tmp_path: Path
) -> None:
    page = opened(demonstrate(hostile).write(tmp_path / "report.html"))
    page.locator(".plot").scroll_into_view_if_needed()
    page.wait_for_selector(".plot[data-drawn]")
    page.locator("[role=gridcell]").first.click()
    page.click(".choose button:has-text('regime')")
    assert page.title() == f"Tokens of {hostile}"
    assert hostile in page.inner_text(".panel")
    assert hostile in page.inner_text("h1")


def test_it_fits_a_telephone_and_paper(
    opened: Callable[..., Any], demonstrate: Callable[..., Report], tmp_path: Path
) -> None:
    page = opened(
        demonstrate().write(tmp_path / "report.html"), viewport={"width": 360, "height": 740}, color_scheme="dark"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert ground(page) == "rgb(18, 22, 28)"
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert ground(page) == "rgb(255, 255, 255)"
    assert page.evaluate("[...document.querySelectorAll('details')].every((fold) => fold.open)")
    page.wait_for_selector(".plot[data-drawn]")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert ground(page) == "rgb(18, 22, 28)"


AXE = Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"  # .ci/run brings it
QUESTIONS = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.flatMap((one) => one.nodes.map((node) => `${one.impact} ${one.id}: ${node.target}`));
}"""


def test_nobody_is_kept_out(opened: Callable[..., Any], demonstrate: Callable[..., Report], tmp_path: Path) -> None:
    """All that axe asks, by day and by night: names, headings, landmarks, contrast; and whoever uses no mouse sees where they are."""
    if not AXE.is_file():
        pytest.skip("axe-core is not here (.ci/run brings it from the npm registry)")
    report = demonstrate()
    scene = Scene(np.linspace(0.0, 1.0, 3), np.zeros((3, 2, 2)), np.full(2, 0.5), title="Two tokens")
    report.section("A animation").animation(scene)
    page = opened(report.write(tmp_path / "report.html"))
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    page.locator(".plot").scroll_into_view_if_needed()
    page.wait_for_selector(".plot[data-drawn]")
    page.locator(".animation").scroll_into_view_if_needed()
    page.wait_for_selector(".animation[data-drawn]")
    page.locator("[role=gridcell]").first.click()
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(QUESTIONS) == []
    page.click("#theme")
    assert page.evaluate(QUESTIONS) == []
    for _ in range(8):
        page.keyboard.press("Tab")
        outline = "getComputedStyle(document.activeElement)"
        assert page.evaluate(f"[{outline}.outlineStyle, {outline}.outlineWidth]") == ["solid", "3px"]


def test_tokens_move_in_a_report(opened: Callable[..., Any], tmp_path: Path) -> None:
    times = np.linspace(0.0, 4.0, 9)
    angles = np.linspace(0.0, 2.0, 5) * np.exp(-times)[:, None]
    scene = Scene(
        times, np.stack([np.cos(angles), np.sin(angles)], axis=-1), np.full(5, 0.2), np.eye(2), title="Five tokens"
    )
    report = Report("Animations")
    report.section("One").animation(scene, caption="They meet.").animation(scene)
    page = opened(report.write(tmp_path / "report.html"))
    page.wait_for_selector(".animation[data-drawn] >> nth=1")
    assert page.locator(".now").all_inner_texts() == ["t = 0", "t = 0"]
    page.locator(".time").first.focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.now').textContent === 't = 4'")
    assert page.locator(".now").all_inner_texts() == ["t = 4", "t = 0"]
    page.click("#theme")
    page.wait_for_function("document.querySelector('.animation .tokens').layout.font.color === '#e9edf2'")
