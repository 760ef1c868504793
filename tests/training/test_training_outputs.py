"""What becomes of a run besides its scores: trackers, pictures, pages, several seeds and several processes; and what stops it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from accessible import faults
from attractor.cli.main import run as command
from attractor.errors import AttractorError, MemoryShortageError, StoreError
from attractor.training import Config, load, train
from attractor.training.models import LanguageModel, find_not_finite
from attractor.training.run_folder import History, RunFolder, summarise

pytest.importorskip("accelerate", reason="comes with attractor[train]")
SMALL: dict[str, Any] = {"layers": 2, "dim": 16, "heads": 2, "context": 16, "batch": 4, "steps": 4, "warmup": 2}
SMALL |= {"evaluate": 2, "evaluations": 2, "checkpoint": 2, "rate": 3e-3}


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "text.txt"
    path.write_text("The tokens gather, and where they gather they stay. " * 40, encoding="utf-8")
    return str(path)


# of the protobuf and numpy code that reads events
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_curve(data: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="comes with attractor[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(Config(data, trackers=("tensorboard",), refinement="shift", **SMALL), tmp_path / "run")
    events = next((tmp_path / "run").rglob("events.out.tfevents.*"))
    folders = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents.*")}
    found: dict[str, list[tuple[int, float]]] = {}
    for folder in folders or {events.parent}:
        read = EventAccumulator(str(folder)).Reload()
        for name in read.Tags()["scalars"]:
            found[name] = [(event.step, event.value) for event in read.Scalars(name)]
    rows = RunFolder(tmp_path / "run").steps()
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4]
    assert np.allclose([value for _, value in found["loss"]], [row.loss for row in rows], rtol=1e-6)
    assert [step for step, _ in found["bits_per_byte"]] == [0, 2, 4]
    assert len(found["gradient"]) == 4
    assert [step for step, _ in found["strength/1"]] == [0, 2, 4]
    assert {"growth/0", "form_low/1", "entropy/0", "effective_rank/2", "gradient/0"} <= found.keys()
    last = rows[-1].dynamics
    assert last is not None
    assert found["dynamics/norm"][-1][1] == pytest.approx(last.norm[-1], rel=1e-6)


WANDB = """
import json, pathlib
__version__ = "0.0"
class Config(dict):
    def update(self, values, allow_val_change=False):
        super().update(values)
class Run:
    name = "run"
    def __init__(self, project): self.project, self.config, self.rows = project, Config(), []
    def log(self, values, step=None, **options): self.rows.append((step, values))
    def finish(self): pathlib.Path(PLACE).write_text(json.dumps([self.project, self.rows]))
run = None
def init(project=None, **options):
    global run, config
    run = Run(project)
    config = run.config
    return run
"""


def test_weights_and_biases_is_given_the_curve(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the library, which would ask for an account: what Accelerate hands to it."""
    (tmp_path / "library").mkdir()
    place = tmp_path / "logged.json"
    (tmp_path / "library" / "wandb.py").write_text(f"PLACE = {str(place)!r}\n{WANDB}")
    info = tmp_path / "library" / "wandb-0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wandb\nVersion: 0.0\n")
    monkeypatch.syspath_prepend(tmp_path / "library")
    # which libraries there are is asked once, when Accelerate is imported
    from accelerate.utils import LoggerType

    monkeypatch.setattr("accelerate.tracking._available_trackers", [LoggerType.WANDB])
    train(Config(data, trackers=("wandb",), **SMALL), tmp_path / "run")
    project, rows = json.loads(place.read_text())
    assert project == "attractor"
    assert [step for step, _ in rows] == [0, 1, 2, 3, 4]
    assert "bits_per_byte" in rows[2][1]
    monkeypatch.delitem(sys.modules, "wandb")


def test_seeds_picture_and_page(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2", reason="comes with attractor[report]")
    monkeypatch.setenv("FORCE_COLOR", "1")  # or the bar would not be drawn where there is no terminal
    arguments = ["train", "tiny", "--data", data, "--seeds", "0,1", "--out", str(tmp_path / "runs")]
    arguments += ["--set", "context=16"]
    arguments += ["--steps", "4", "--set", "evaluate=2", "--set", "attention=intermediate", "--progress"]
    arguments += ["--set", "refinement=slice", "--set", "sign=-"]
    assert command([*arguments, "--plot", str(tmp_path / "curve.png"), "--report", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr()
    assert "95% interval" in shown.out
    assert "tokens/s" in shown.err
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (
        "A language model of bytes: 2 layers, 32 dimensions, intermediate attention with the refinement slice of sign"
        in page
    )
    assert "Smallest strength lambda of a layer." in page
    assert "over 2 seeds" in page
    assert faults(page) == []
    history = History.read(tmp_path / "runs" / "seed1")
    assert (history.measure, len(history.evaluations)) == ("bits_per_byte", 3)
    for wrong, message in (
        (["--plot", str(tmp_path / "x.html")], "this figure is written as .png, .pdf, .svg"),
        (["--report", str(tmp_path / "none" / "x.html")], "none does not exist"),
        (["--set", "layers"], "is not of the form NAME=VALUE"),
        (["--set", "colour=red"], "an entry 'colour' that a run does not know"),
    ):
        other = ["train", "tiny", "--data", data, "--out", str(tmp_path / "other"), *wrong]
        assert command(other) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    with pytest.raises(StoreError, match="no run that could be resumed"):
        History.read(tmp_path)


def test_measurements_along_depth(data: str, tmp_path: Path) -> None:
    """Of the start and every evaluation, against the model of the last step; without labels no spectra are computed."""
    settings = {**SMALL, "dim": 8, "refinement": "shift", "sign": "-", "strength": 0.2, "clip": 1e-3}
    train(Config(data, **settings), tmp_path / "run")
    run = load(tmp_path / "run")
    (begin, first), *_, (_, last) = run.history.evaluations
    assert begin.step == 0
    assert begin.scores["validation_loss"] == pytest.approx(math.log(256), abs=0.3)
    assert first.strength == pytest.approx((-0.2, -0.2))
    assert first.gradient is None
    assert last.gradient is not None
    assert run.history.steps[-1].gradient is not None
    assert run.history.steps[-1].gradient >= math.hypot(*(one or 0.0 for one in last.gradient)) > 1e-3
    for index, block in enumerate(run.model.backbone.blocks):
        law: Any = block.attention.law()  # type: ignore[union-attr]
        values, interactions = law.output @ law.value, law.query.mT @ law.key
        form = (values.mT @ interactions).mean(0)
        eigenvalues = torch.linalg.eigvalsh(form + form.mT) / (form + form.mT).norm()
        ends = [(last.form_low or ())[index], (last.form_high or ())[index]]
        assert ends == pytest.approx([float(eigenvalues[0]), float(eigenvalues[-1])], abs=1e-6)
        growth = float(torch.linalg.eigvals(values.sum(0)).real.max())
        assert (last.growth or ())[index] == pytest.approx(growth, abs=1e-6)
    assert last.entropy is not None
    assert all(one is not None and 0.5 < one <= 1 for one in last.entropy)
    frame = run.history.depth_frame()
    assert len(frame) == 9
    assert {"strength_low", "effective_rank", "gradient", "entropy"} <= set(frame.columns)
    train(Config(data, **{**settings, "labels": False}), tmp_path / "bare")
    bare = load(tmp_path / "bare").history.evaluations[-1][1]
    assert bare.regimes is None
    assert bare.growth is None
    assert bare.strength == last.strength


def test_summary_is_a_t_interval() -> None:
    """By the definition, against scipy's own interval."""
    from scipy import stats

    values = [2.0, 2.5, 3.5]
    found = summarise(values)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert found.interval == pytest.approx((low, high))
    assert summarise([1.0]).interval is None


def test_two_processes_are_one_with_twice_the_batch(data: str, tmp_path: Path) -> None:
    """Through torchrun and gloo, with a tracker, two seeds and accumulation: texts of a step are the same, and so are the losses."""
    pytest.importorskip("tensorboard", reason="comes with attractor[train]")
    settings = ["--data", data, "--steps", "3", "--seeds", "0,1", "--set", "evaluate=3", "--set", "checkpoint=2"]
    settings += ["--set", "trackers=['tensorboard']"]
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "attractor", "train"]
    launched += [
        "tiny",
        "--set",
        "batch=2",
        "--set",
        "accumulate=2",
        "--out",
        str(tmp_path / "two"),
        *settings,
        "--json",
    ]
    done = subprocess.run(launched, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    printed = json.loads(done.stdout)  # of the first process alone
    assert command(["train", "tiny", "--set", "batch=8", "--out", str(tmp_path / "one"), *settings]) == 0
    for index, seed in enumerate(("seed0", "seed1")):
        one, two = (RunFolder(tmp_path / name / seed).steps() for name in ("one", "two"))
        assert np.allclose([row.loss for row in two], [row.loss for row in one], rtol=1e-5)
        assert two[-1].scores == pytest.approx(one[-1].scores, rel=1e-5)
        assert printed["runs"][index]["bits_per_byte"] == two[-1].scores["bits_per_byte"]
        assert RunFolder(tmp_path / "two" / seed).last_step() == 3


def test_a_loss_that_is_no_number_stops_before_it_is_applied(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the step and the module, and the weights and the last checkpoint are still good."""
    from attractor.nn import PlainAttention

    calls = []
    real = PlainAttention.forward

    def broken(self: Any, x: torch.Tensor, mask: Any = None) -> torch.Tensor:
        moved = real(self, x, mask)
        calls.append(self.training)
        # from the third training step on, in the second block
        return moved * math.inf if calls.count(True) > 5 and len(calls) % 2 == 0 else moved

    monkeypatch.setattr(PlainAttention, "forward", broken)
    with pytest.raises(
        AttractorError,
        match=r"the loss of step 3 is not a finite number; the first such number is in the output of backbone\.blocks\.1\.attention"
        r".*The checkpoint after step 2 is kept in .*: lower rate",
    ):
        train(Config(data, **SMALL), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.last_step() == 2
    assert [row.step for row in folder.steps()] == [1, 2]


def test_a_gradient_that_is_no_number_stops_too(data: str, tmp_path: Path) -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * math.nan

    real = LanguageModel.forward
    LanguageModel.forward = lambda self, given, wanted: Bad.apply(real(self, given, wanted))  # type: ignore[assignment, method-assign]
    try:
        with pytest.raises(
            AttractorError, match=r"the gradient of step 1 is not a finite number.*in the gradient of embedding"
        ):
            train(Config(data, **SMALL), tmp_path / "run")
    finally:
        LanguageModel.forward = real  # type: ignore[method-assign]


def test_where_a_number_that_is_not_finite_arises() -> None:
    model = LanguageModel(Config("x", **SMALL), 20)
    batch = torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)
    assert find_not_finite(model, batch) == "the backward pass"
    with torch.no_grad():
        model.backbone.blocks[1].narrow.bias[0] = math.nan  # type: ignore[union-attr, index]
    assert find_not_finite(model, batch) == "the parameter backbone.blocks.1.narrow.bias"


@pytest.mark.parametrize(
    ("task", "further"), [("text", r"lower context \(now 16\)"), ("images", r"raise patch \(now 2\)")]
)
def test_a_device_without_memory_says_what_to_lower(
    task: str, further: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attractor.training.models import Backbone

    def full(self: Any, x: torch.Tensor) -> torch.Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Backbone, "forward", full)
    config = Config("digits" if task == "images" else data, task=task, patch=2, **SMALL)
    message = rf"no memory left at step 1: lower batch \(now 4\) and raise accumulate \(now 1\).*{further}"
    with pytest.raises(MemoryShortageError, match=message):
        train(config, tmp_path / "run")


def test_a_damaged_checkpoint_is_refused(data: str, tmp_path: Path) -> None:
    """Accelerate ignores random states that it cannot read, so that the curve would go on differently."""
    config = Config(data, **{**SMALL, "steps": 2}, dropout=0.1)
    train(config, tmp_path / "run")
    names = ["random_states_0.pkl", "model.safetensors", "optimizer.bin", "step.json"]
    for cut in names:
        folder = tmp_path / f"cut {cut}"
        shutil.copytree(tmp_path / "run", folder)
        path = folder / "checkpoint" / cut
        path.write_bytes(path.read_bytes()[:-20])
        curve = (folder / "curve.jsonl").read_bytes()
        with pytest.raises(StoreError, match=r"the checkpoint in .* is damaged") as error:
            train(config, folder, resume=True)
        assert "\n" not in str(error.value)
        assert (folder / "curve.jsonl").read_bytes() == curve


def test_a_checkpoint_of_attractor_0_2_is_read_unless_it_is_cut(data: str, tmp_path: Path) -> None:
    config = Config(data, **SMALL)
    train(config, tmp_path / "whole")
    train(config, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint"
    (checkpoint / "step.json").write_text('{"step": 4}\n')
    train(config, tmp_path / "run", resume=True)
    path = checkpoint / "random_states_0.pkl"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=r"its file random_states_0\.pkl is not complete"):
        train(config, tmp_path / "run", resume=True)


def test_a_damaged_curve_or_configuration_is_refused(data: str, tmp_path: Path) -> None:
    config = Config(data, **{**SMALL, "steps": 2})
    train(config, tmp_path / "run")
    curve, entries = tmp_path / "run" / "curve.jsonl", tmp_path / "run" / "config.json"
    whole = curve.read_text()
    curve.write_text(whole.replace('"step": 1', '"step": 3', 1))
    for read in (History.read, lambda folder: train(config, folder, resume=True)):
        with pytest.raises(StoreError, match=r"curve\.jsonl is damaged"):
            read(tmp_path / "run")
    curve.write_text("{" + whole)
    with pytest.raises(StoreError, match="line 1 of"):
        RunFolder(tmp_path / "run").steps()
    curve.write_text(whole)
    entries.write_text(entries.read_text().replace('"clip": 1.0', '"clip": 2.0'))
    with pytest.raises(StoreError, match=r"config\.json is not the one that the run began with"):
        train(RunFolder(tmp_path / "run").config(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("tokens", ["words", "bpe"])
def test_a_damaged_cache_is_written_again(tokens: str, data: str, tmp_path: Path) -> None:
    from attractor.training.data.text import open_text

    config = Config(data, **{**SMALL, "tokens": tokens, "vocabulary": 260})
    whole = open_text(config, tmp_path / "cache").text_parts["train"].tokens.copy()  # of the mapped file
    files = {path: path.read_bytes() for path in (tmp_path / "cache").iterdir()}
    for path, content in files.items():
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    again = open_text(config, tmp_path / "cache")
    assert {path: path.read_bytes() for path in (tmp_path / "cache").iterdir()} == files
    assert (again.text_parts["train"].tokens == whole).all()
