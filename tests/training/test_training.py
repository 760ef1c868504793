"""Training runs: learning, resuming to the same curve after a kill, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attractor.cli.main import run as command
from attractor.errors import AttractorError, InputError, StoreError
from attractor.training import Config, TrainingStep, read_config, train
from attractor.training.data.text import open_text
from attractor.training.models import LanguageModel, parameter_groups
from attractor.training.run_folder import RunFolder

pytest.importorskip("accelerate", reason="comes with attractor[train]")
SMALL: dict[str, Any] = {"layers": 2, "dim": 16, "heads": 2, "context": 16, "batch": 4, "steps": 6, "warmup": 2}
SMALL |= {"evaluate": 3, "evaluations": 2, "checkpoint": 3, "rate": 3e-3}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("The tokens gather, and where they gather they stay. " * 40, encoding="utf-8")
    return folder


def losses(folder: Path) -> list[float]:
    return [step.loss for step in RunFolder(folder).steps()]


def test_a_model_learns_and_its_tokens_are_followed(data: Path, tmp_path: Path) -> None:
    config = Config(str(data), **{**SMALL, "steps": 40, "evaluate": 20, "rate": 1e-2, "accumulate": 2})
    report = train(config, tmp_path / "run")
    rows = RunFolder(tmp_path / "run").steps()
    assert [row.step for row in rows] == list(range(1, 41))
    assert rows[0].loss == pytest.approx(math.log(256), abs=0.3)
    assert report.loss < 3.5
    assert report.scores["bits_per_byte"] == pytest.approx(math.log2(report.scores["perplexity"]))
    assert report.scores["word_perplexity"] > report.scores["perplexity"] ** 5
    found = rows[19].dynamics
    assert found is not None
    assert found.regimes is not None
    assert [len(values) for values in (found.norm, found.distance, found.cosine, found.regimes)] == [3, 3, 3, 2]
    assert all("bits_per_byte" not in row.scores for row in rows[:19])


CHOICES: list[dict[str, Any]] = [
    {"attention": "convergent", "positions": "none"},
    {"attention": "divergent", "positions": "absolute", "metric": "diagonal", "refinement": "metric"},
    {"attention": "intermediate", "placement": "peri", "dropout": 0.1},
    {"attention": "plain", "refinement": "shift", "placement": "post"},
    {"attention": "plain", "spectral": True, "temperature": "learned", "gain": "learned"},
    {"attention": "plain", "refinement": "slice", "sign": "-", "strength": 0.1, "precision": "bf16"},
]


@pytest.mark.parametrize(
    "choice", CHOICES, ids=lambda choice: f"{choice['attention']}, {choice.get('refinement', 'none')}"
)
def test_every_choice_trains(choice: dict[str, Any], data: Path, tmp_path: Path) -> None:
    config = Config(str(data), **{**SMALL, **choice})
    assert math.isfinite(train(config, tmp_path / "run").scores["bits_per_byte"])
    found = RunFolder(tmp_path / "run").steps()[-1].dynamics
    assert found is not None
    if choice == CHOICES[0]:
        assert found.regimes == ("convergent", "convergent")


def test_stopped_and_resumed_to_the_same_curve(data: Path, tmp_path: Path) -> None:
    """Dropout draws random numbers, so that their state is part of it; a line half written is forgotten."""
    config = Config(str(data), **SMALL, dropout=0.2)
    train(config, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(done: TrainingStep) -> None:
        if done.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", progress=stop)
    with RunFolder(tmp_path / "parts").curve.open("a", encoding="utf-8") as curve:
        curve.write('{"step": 6, "lo')
    assert RunFolder(tmp_path / "parts").last_step() == 3
    train(config, tmp_path / "parts", resume=True)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


def test_killed_and_resumed_to_the_same_curve(data: Path, tmp_path: Path) -> None:
    """Killed without warning in another process, resumed by the command line."""
    settings = {**SMALL, "steps": 80, "checkpoint": 8, "evaluate": 80}
    path = tmp_path / "run.toml"
    path.write_text("data = 'text'\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    folder = tmp_path / "killed"
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    arguments = [sys.executable, "-m", "attractor", "train", str(path), "--out", str(folder)]
    running = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while running.poll() is None and not (folder / "checkpoint" / "step.json").exists():
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert len(losses(folder)) < 80
    assert command(["train", "--resume", str(folder)]) == 0
    train(read_config(path), tmp_path / "whole")
    assert losses(folder) == losses(tmp_path / "whole")


def test_a_loss_that_is_no_number_stops_the_run(data: Path, tmp_path: Path) -> None:
    config = Config(str(data), **{**SMALL, "checkpoint": 1, "rate": 1e30, "warmup": 1, "evaluate": 6})
    with pytest.raises(
        AttractorError, match=r"loss of step \d is not a finite number.*checkpoint after step \d is kept"
    ):
        train(config, tmp_path / "run")
    assert RunFolder(tmp_path / "run").last_step() >= 1


def test_batches_depend_on_the_step_alone(data: Path, tmp_path: Path) -> None:
    text = open_text(Config(str(data), **SMALL), tmp_path)
    given, wanted = text.batch(4, 0, 7)
    assert torch.equal(given[:, 1:], wanted[:, :-1])
    assert torch.equal(given, text.batch(4, 0, 7)[0])
    assert not torch.equal(given, text.batch(4, 0, 8)[0])
    assert not torch.equal(given, text.batch(4, 0, 7, rank=1)[0])
    assert given.shape == wanted.shape == (4, 16)
    # the parts of processes and of accumulated passes are those of the whole
    halves = [text.batch(2, 0, 7, rank, 2)[0] for rank in range(2)]
    assert torch.equal(torch.cat(halves), given)
    assert torch.equal(torch.cat([text.batch(2, 0, number)[0] for number in (14, 15)]), given)
    quarters = [text.batch(1, 0, number, rank, 2)[0] for number in (14, 15) for rank in range(2)]
    assert torch.equal(torch.cat(quarters), given)
    assert sum(len(part.tokens) for part in text.text_parts.values()) == 2 * 52 * 40


def test_accumulation_gives_the_curve_of_the_whole_batch(data: Path, tmp_path: Path) -> None:
    for name, batch, accumulate in (("whole", 4, 1), ("parts", 1, 4)):
        train(Config(str(data), **{**SMALL, "batch": batch}, accumulate=accumulate), tmp_path / name)
    whole, parts = (RunFolder(tmp_path / name).steps() for name in ("whole", "parts"))
    for one, other in zip(whole, parts, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.scores == pytest.approx(other.scores, rel=1e-5)
        if one.dynamics is not None and other.dynamics is not None:
            assert one.dynamics.norm == pytest.approx(other.dynamics.norm, rel=1e-5)


def test_validation_samples_do_not_depend_on_the_batch(data: Path, tmp_path: Path) -> None:
    text = open_text(Config(str(data), **SMALL), tmp_path)
    drawn = [torch.cat([given for given, _ in text.evaluation("validation", size, 6)]) for size in (1, 4, 6)]
    assert len(drawn[0]) == 6
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


def test_signs_are_not_decayed() -> None:
    model = LanguageModel(Config("text", attention="convergent", refinement="shift", **SMALL), 256)
    free = {id(parameter) for parameter in parameter_groups(model, 0.1)[1]["params"]}
    names = {name.rpartition(".")[2] for name, parameter in model.named_parameters() if id(parameter) in free}
    assert {"pivots", "theta", "skew", "lower", "bias"} <= names
    assert "projection" not in names


def test_rates() -> None:
    config = Config("text", steps=100, warmup=10, rate=1.0, final_rate=0.1)
    assert config.learning_rate(0) == pytest.approx(0.1)
    assert config.learning_rate(9) == config.learning_rate(10) == pytest.approx(1.0)
    assert config.learning_rate(55) == pytest.approx(0.55)
    assert config.learning_rate(100) == pytest.approx(0.1)


def test_refused(data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    path = tmp_path / "run.toml"
    for text, message in (
        ("data = 'text'\ncolour = 1\n", "entry 'colour' that a run does not know"),
        ("steps = 5\n", "does not say what to read"),
        ("data = = 1", "is not a TOML file"),
        ("data = 'text'\nattention = 'chaotic'\n", "attention 'chaotic' is not known"),
        ("data = 'text'\nattention = 'divergent'\nspectral = true\n", "spectral goes with attention 'plain'"),
        ("data = 'text'\nsteps = 0\n", "steps must be a whole number of at least 1, got 0"),
        ("data = 'text'\ndecay = nan\n", "decay must be a finite number of at least 0, got nan"),
        ("data = 3\n", "data must be a text, got 3"),
        ("data = 'text'\nturned = 'x'\n", "turned must be a whole number of at least 1, got 'x'"),
        ("data = 'text'\ngain = [1]\n", r"gain must be a number or 'learned', got \[1\]"),
        ("data = 'text'\ncutoffs = ['x']\n", "cutoffs are whole numbers"),
        ("data = 'text'\nsign = '+'\n", "sign goes with a refinement"),
        ("data = 'text'\noptions = 3\n", "options must be a table"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_config(path)
    with pytest.raises(
        InputError, match="attractor has cifar10, enwik8, imagenet, prose, prose-bpe, tiny, tiny-vit, wikitext103"
    ):
        read_config("huge")
    with pytest.raises(InputError, match="tracker 'paper' is not known"):
        train(Config(str(data), trackers=("paper",), **SMALL), tmp_path / "run")
    with pytest.raises(InputError, match="does not exist"):
        train(Config(str(tmp_path / "nothing"), **SMALL), tmp_path / "run")
    with pytest.raises(InputError, match="holds 0 bytes in 0 files"):
        train(Config(str(empty), **SMALL), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    config = Config(str(data), **{**SMALL, "steps": 1})
    train(config, tmp_path / "run")
    stored = tmp_path / "run" / "config.json"
    whole = stored.read_text()
    stored.write_text(whole.replace('"format": 3', '"format": 2'))
    with pytest.raises(StoreError, match="started by an earlier version of attractor"):
        train(config, tmp_path / "run", resume=True)
    stored.write_text(whole)
    with pytest.raises(StoreError, match="holds a run already"):
        train(config, tmp_path / "run")
    with pytest.raises(StoreError, match=r"another configuration: dim \(16 there, 32 here\)"):
        train(dataclasses.replace(config, dim=32), tmp_path / "run", resume=True)
    with pytest.raises(StoreError, match="holds no run that could be resumed"):
        train(config, empty, resume=True)


def test_command(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "tiny", "--data", str(data), "--steps", "2"]
    assert command([*arguments, "--out", str(tmp_path / "runs"), "--seeds", "0,1", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema"] == "attractor.train/2"
    assert [run["seed"] for run in printed["runs"]] == [0, 1]
    assert printed["runs"][0]["loss"] != printed["runs"][1]["loss"]
    assert (tmp_path / "runs" / "seed1" / "checkpoint" / "step.json").is_file()
    for wrong, message in (
        ([], "give --out FOLDER for a new run"),
        (["--out", str(tmp_path / "x"), "--seeds", "one"], "--seeds one is not a list of whole numbers"),
    ):
        assert command([*arguments, *wrong]) == 2
        assert message in capsys.readouterr().err


def test_seeds_that_had_not_begun_begin_when_the_others_go_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped during the first seed, the second one has no folder yet."""
    runs = tmp_path / "runs"
    arguments = ["train", "tiny", "--data", str(data), "--steps", "2", "--no-progress"]
    assert command([*arguments, "--out", str(runs / "seed0")]) == 0
    assert command([*arguments, "--resume", str(runs), "--seeds", "0,1,1"]) == 0
    assert "over 2 seeds" in capsys.readouterr().out
    assert RunFolder(runs / "seed1").last_step() == 2
    for wrong, code, message in (
        (["--resume", str(tmp_path / "rums"), "--seeds", "0,1"], 1, "rums holds no run of the seeds 0,1"),
        (["--out", str(runs), "--seeds", "2,1"], 1, "seed1 holds a run already"),
        (
            ["--resume", str(runs), "--seeds", "2,1", "--set", "dim=64"],
            2,
            "another configuration: dim (32 there, 64 here)",
        ),
    ):
        assert command([*arguments, *wrong]) == code
        assert message in capsys.readouterr().err
    assert sorted(path.name for path in runs.iterdir()) == ["data", "seed0", "seed1", "seeds.json"]
    assert json.loads((runs / "seeds.json").read_text())["seeds"] == [0, 1]


def test_nothing_stays_behind_where_no_run_began(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["train", "tiny", "--data", str(data), "--set", "tokens=bpe", "--set", "vocabulary=260"]
    for wrong, message in (
        (["--resume", "typo"], "typo holds no run that could be resumed"),
        (["--out", "run", "--seed", "1", "--seeds", "1,2"], "give one of them"),
        (["--out", "new/run", "--set", "options={foo=1}"], "options has foo, which plain attention does not take"),
        (["--out", "new/run", "--set", "options={causal=false}"], "it takes head_dim, scale, value_dim"),
        (["--out", "new/run", "--seeds", "0,1", "--set", "turned=5"], "rotary positions"),
    ):
        monkeypatch.chdir(tmp_path)
        assert command([*arguments, *wrong]) in (1, 2)
        printed = capsys.readouterr().err
        assert message in printed
        assert printed.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["text"]

    def broken(*given: Any, **options: Any) -> None:
        raise ValueError("a value that only the optimiser refuses")

    monkeypatch.setattr(torch.optim, "AdamW", broken)
    with pytest.raises(ValueError, match="only the optimiser"):
        train(Config(str(data), **SMALL), tmp_path / "new" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
