"""``attractor study`` and ``attractor study-results``: killed and resumed, and refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attractor.cli.study import parse_entries

SMALL = "--set layers=1,dim=8,heads=2,context=8,batch=2,steps=4,evaluate=2,evaluations=1"
ARMS = "plain/rotary,convergent/rotary"
STUDY = f"study run bytes --data words.txt --seeds 0,1 --arms {ARMS} {SMALL}"
TIMES = ("seconds", "tokens_per_second", "time", "command")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("Tokens gather, and where they gather they stay. " * 40)
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]
    found = [{name: value for name, value in row.items() if name not in TIMES} for row in found]
    return sorted(found, key=lambda row: (row["arm"], row["seed"]))


def test_a_killed_study_goes_on_to_the_same_runs(words: Path, command: Callable[[str], Any]) -> None:
    assert command(f"{STUDY} --out whole").code == 0
    begun = subprocess.Popen(
        [sys.executable, "-m", "attractor", *STUDY.split(), "--out", "cut"], stderr=subprocess.DEVNULL
    )
    file, end = words / "cut" / "runs.jsonl", time.monotonic() + 100
    while time.monotonic() < end and not (file.exists() and file.read_text().count("\n") >= 2):
        time.sleep(0.05)
    begun.kill()
    begun.wait()
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2]) + lines[0][:50])  # as if it had died while it wrote
    done = command(f"{STUDY} --out cut --json")
    assert done.json["runs"] == 4
    assert done.json["missing"] == []
    assert "plain/rotary" not in done.err  # was there already
    assert rows(words / "cut") == rows(words / "whole")
    assert "with changes" not in command(f"{STUDY} --out cut").err  # nothing is left to do

    found = command("study results cut --plot differences.png --plot-depth depth.svg --json").json
    assert found["schema"] == "attractor.study-results/2"
    assert [pair["seeds"] for pair in found["comparisons"]] == [2]
    assert "plain/rotary against plain/absolute" in found["missing"]
    assert (words / "differences.png").stat().st_size > 1000
    assert (words / "depth.svg").exists()
    told = command("study results cut --question regimes")
    assert told.code == 0
    assert "at least 0.5 with 2 seeds" in told.out

    other = command(f"{STUDY},rate=0.5 --out cut")
    assert other.code == 1
    assert "give another folder" in other.err
    assert rows(words / "cut") == rows(words / "whole")


def test_time_that_is_up_and_arms_that_fail_are_said(
    words: Path, command: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for spelled in ("--max-seconds 0", "--max-seconds=0 --quiet"):
        late = command(f"{STUDY} --out late {spelled}")
        assert late.code == 1
        assert ("0 runs, without plain/rotary" in late.out) is ("quiet" not in spelled)
        assert late.err.splitlines() == [f"{arm}: not started in time" for arm in ARMS.split(",")]
    failed = command(
        f"study run bytes --data words.txt --out failed --seeds 0 --arms plain/rotary {SMALL},context=100000"
    )
    assert failed.code == 2
    assert failed.err.count("\n") == 1
    assert "with a context of 100000 a run needs" in failed.err
    assert not (words / "failed").exists()

    def broken(*given: Any) -> None:
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr("attractor.training.studies.runs.train_models", broken)
    failed = command(f"{STUDY} --out failed")
    assert failed.code == 1
    assert failed.err.splitlines() == [f"{arm}: failed, RuntimeError: no memory" for arm in ARMS.split(",")]
    assert "0 runs, without plain/rotary, convergent/rotary" in failed.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("study run sound --data words.txt --out new", "the studies are bytes, bpe, vision"),
        (
            "study run bytes --data words.txt --out new --arms plain/rotary,bent/rotary",
            "arm 'bent/rotary' is not known",
        ),
        ("study run bytes --data words.txt --out new --arms plain/sideways", "arm 'plain/sideways' is not known"),
        ("study run bytes --data absent.txt --out new", "absent.txt do not exist"),
        ("study run bytes --data words.txt --out new --seeds one", "--seeds one is not a list"),
        ("study run bytes --data words.txt --out new --set steps", "--set steps is not a list"),
        ("study run bytes --data words.txt --out new --set stops=3", "--set stops is not an entry"),
        ("study run bytes --data words.txt --out new --set betas=[0.9],steps=2", "betas are two numbers"),
        ("study run bytes --data words.txt --out new --set options={foo=1}", "options has foo"),
        ("study results absent", "absent does not exist"),
        ("study results words.txt --plot picture.bmp", "written as .png, .pdf, .svg"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    line: str, said: str, words: Path, command: Callable[[str], Any]
) -> None:
    done = command(line)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
    assert not done.out
    assert not (words / "new").exists()


def test_entries_may_be_lists_tables_and_words() -> None:
    found = parse_entries(
        "steps=4,betas=[0.9, 0.99],options={scale = 0.1, head_dim=8},tokenizer='a,b.json',augment=none"
    )
    assert found == {
        "steps": 4,
        "betas": [0.9, 0.99],
        "options": {"scale": 0.1, "head_dim": 8},
        "tokenizer": "a,b.json",
        "augment": "none",
    }
    assert parse_entries(None) == {}


def test_an_unknown_question_names_those_there_are(command: Callable[[str], Any]) -> None:
    kept = Path(__file__).parents[2] / "benchmarks" / "results" / "training" / "bpe.jsonl"
    done = command(f"study results {kept} --question fate")
    assert done.code == 2
    assert "regimes, positions, refinements, alternatives, control" in done.err
