"""``attractor study`` and ``attractor study-results``: killed and resumed, and refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

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
    assert found["schema"] == "attractor.study-results/3"
    assert [pair["seeds"] for pair in found["parts"][0]["comparisons"]] == [2]
    assert "plain/rotary against plain/absolute" in found["parts"][0]["missing"]
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

    def broken(*given: Any, **options: Any) -> None:
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr("attractor.training.studies.runs.train_models", broken)
    failed = command(f"{STUDY} --out failed")
    assert failed.code == 1
    assert failed.err.splitlines() == [f"{arm}: failed, RuntimeError: no memory" for arm in ARMS.split(",")]
    assert "0 runs, without plain/rotary, convergent/rotary" in failed.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("study run sound --data words.txt --out new", "the studies are bytes, bpe, vision, dynamics-bytes"),
        (
            "study run bytes --data words.txt --out new --arms plain/rotary,bent/rotary",
            "arm 'bent/rotary' is not known",
        ),
        ("study run bytes --data words.txt --out new --arms plain/sideways", "arm 'plain/sideways' is not known"),
        ("study run bytes --data absent.txt --out new", "absent.txt does not exist, nor is it a name"),
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


MINE = """
name = "mine"
seeds = [0, 1, 2]
rates = [1e-3, 1e-2]
common_rate = 1e-3

[base]
layers = 1
dim = 8
heads = 2
context = 8
batch = 2
steps = 6
warmup = 1
evaluate = 2
evaluations = 2

[data]
words = "words.txt"
letters = { data = "letters.txt", batch = 3 }

[arms]
plain = "plain/rotary"
convergent = { attention = "convergent", positions = "rotary", equal = true }
published = { attention = "divergent", orientation = "official", positions = "none" }

[questions]
regimes = [["convergent", "plain"], ["published", "plain"], ["published", "convergent"]]
"""


def holm(ps: list[float]) -> list[float]:
    """Holm's method, as the largest multiple among the smaller p values."""
    order = sorted(ps)
    return [max(min(1.0, (len(ps) - k) * order[k]) for k in range(order.index(p) + 1)) for p in ps]


def test_a_study_of_ones_own_is_resumed_and_its_statistics_are_right(
    words: Path, command: Callable[[str], Any]
) -> None:
    """Three arms, two rates, three seeds and two data sets; every mean, interval and p is computed again from the lines."""
    (words / "letters.txt").write_text("abcdefgh " * 300)
    (words / "mine.toml").write_text(MINE)
    whole = command("study run mine.toml --out whole --json")
    assert whole.code == 0
    assert whole.json["runs"] == 36
    lines = (words / "whole" / "runs.jsonl").read_text().splitlines(keepends=True)
    (words / "cut").mkdir()
    (words / "cut" / "study.toml").write_text(MINE)
    (words / "cut" / "runs.jsonl").write_text("".join(lines[:7]) + lines[8][:40])  # as if it had been killed
    assert command("study run mine.toml --out cut").code == 0

    def numbers(folder: str) -> list[Any]:
        found = [json.loads(line) for line in (words / folder / "runs.jsonl").read_text().splitlines()]
        return sorted((row["data_set"], row["arm"], row["rate"], row["seed"], row["scores_curve"]) for row in found)

    again = numbers("cut")
    for one, other in zip(numbers("whole"), again, strict=True):
        assert one[:4] == other[:4]
        # other models of the same batched program round differently
        assert [value for _, value in one[4]] == pytest.approx([value for _, value in other[4]], abs=1e-5)

    document = command("study results whole --plot-curves curves.png --json").json
    assert (words / "curves.png").stat().st_size > 1000
    assert [(part["data_set"], part["rate"]) for part in document["parts"]] == [
        (name, rate) for name in ("words", "letters") for rate in ("best", "common")
    ]
    rows = [json.loads(line) for line in lines]
    ends = {(row["data_set"], row["arm"], row["rate"], row["seed"]): row["bits_per_byte"] for row in rows}
    means = {key[:3]: np.mean([ends[*key[:3], seed] for seed in range(3)]) for key in ends}
    for part in document["parts"]:
        name = part["data_set"]
        chosen = dict.fromkeys(("plain", "convergent", "published"), 0.001)
        if part["rate"] == "best":
            chosen = {arm: min((1e-3, 1e-2), key=lambda rate: means[name, arm, rate]) for arm in chosen}
        ps = []
        for pair in part["comparisons"]:
            arm, reference = pair["arm"], pair["reference"]
            first = [ends[name, arm, chosen[arm], seed] for seed in range(3)]
            second = [ends[name, reference, chosen[reference], seed] for seed in range(3)]
            test = ttest_rel(first, second)
            low, high = test.confidence_interval(0.95)
            assert pair["difference"] == pytest.approx(np.mean(first) - np.mean(second), rel=1e-9)
            assert (pair["low"], pair["high"], pair["p"]) == pytest.approx((low, high, test.pvalue), rel=1e-6)
            ps.append(float(test.pvalue))
            last = [row for row in part["along"] if (row["arm"], row["reference"]) == (arm, reference)][-1]
            assert last["step"] == 6
            assert last["difference"] == pytest.approx(pair["difference"], rel=1e-9)
        assert [pair["p_holm"] for pair in part["comparisons"]] == pytest.approx(holm(ps), rel=1e-6)
    told = command("study results whole --data-set letters --rate best").out
    assert "letters" in told
    assert "the compared runs" in told

    (words / "mine.toml").write_text(MINE.replace("steps = 6", "steps = 8"))
    other = command("study run mine.toml --out whole")
    assert other.code == 1
    assert "another version of the study" in other.err


def test_rates_are_chosen_by_seeds_of_their_own_and_may_all_diverge(words: Path, command: Callable[[str], Any]) -> None:
    text = MINE.replace('letters = { data = "letters.txt", batch = 3 }', "").replace(
        "seeds = [0, 1, 2]", "seeds = [0, 1]"
    )
    (words / "tuned.toml").write_text(text + "\n[tuning]\nseeds = [7]\nsteps = 3\n")
    assert command("study run tuned.toml --arms plain,convergent --out tuned").code == 0
    found = [json.loads(line) for line in (words / "tuned" / "runs.jsonl").read_text().splitlines()]
    tuning = [row for row in found if row["tuning"]]
    assert {(row["arm"], row["rate"], row["seed"], row["steps"]) for row in tuning} == {
        (arm, rate, 7, 3) for arm in ("plain", "convergent") for rate in (1e-3, 1e-2)
    }
    for arm in ("plain", "convergent"):
        best = min((row for row in tuning if row["arm"] == arm), key=lambda row: row["bits_per_byte"])["rate"]
        kept = {(row["rate"], row["seed"]) for row in found if row["arm"] == arm and not row["tuning"]}
        assert kept == {(rate, seed) for rate in {best, 1e-3} for seed in (0, 1)}
    assert "runs of its own" in command("study results tuned").out

    wild = text.replace("rates = [1e-3, 1e-2]\ncommon_rate = 1e-3", "rates = [1e30, 1e32]")
    (words / "wild.toml").write_text(wild + "\n[tuning]\nseeds = [7]\n")
    lost = command("study run wild.toml --arms plain,convergent --out wild")
    assert lost.code == 1
    assert lost.err.splitlines()[-2:] == [
        f"{arm} on words: every rate of the grid diverged, so no rate can be chosen" for arm in ("plain", "convergent")
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ('convergent", "plain"]', 'convergant", "plain"]'),
            "arm 'convergant' is not known; did you mean 'convergent'?",
        ),
        (('"plain/rotary"', '"plane/rotary"'), "did you mean 'plain'?"),
        (("[questions]", "[question]"), "did you mean 'questions'?"),
        (("layers = 1", "layer = 1"), "did you mean 'layers'?"),
        (("common_rate = 1e-3", "common_rate = 1e-4"), "common_rate 0.0001 is not one of the rates"),
        (("rates = [1e-3, 1e-2]", "rates = [1e-3, -1]"), "rates must be a list of different positive numbers"),
        (("seeds = [0, 1, 2]", "seeds = [0, 0]"), "seeds must be a list of different whole numbers"),
        (('words = "words.txt"', "words = { batch = 2 }"), "words does not say what to read"),
        (('name = "mine"', 'name = "mine'), "is not a TOML file"),
        (('attention = "convergent",', 'attention = "konvergent",'), "attention 'konvergent' is not known"),
    ],
)
def test_a_bad_study_is_one_sentence(
    change: tuple[str, str], said: str, words: Path, command: Callable[[str], Any]
) -> None:
    assert change[0] in MINE
    (words / "mine.toml").write_text(MINE.replace(*change))
    (words / "letters.txt").write_text("abcdefgh " * 300)
    done = command("study run mine.toml --out new")
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
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
