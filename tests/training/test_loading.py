"""Runs as models: load, generate, audit, trace, iterate, extend; what is not a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import attractor as at
from attractor.cli.main import run as command
from attractor.errors import CheckpointError, InputError, StoreError, UnsupportedError
from attractor.models import checkpoint, iterate
from attractor.training import Config, TrainedRun, load, to_transformers, train
from attractor.training.run_folder import RunFolder

pytest.importorskip("accelerate", reason="comes with attractor[train]")
SMALL: dict[str, Any] = {"layers": 2, "dim": 16, "heads": 2, "context": 16, "batch": 4, "steps": 4, "warmup": 1}
SMALL |= {"evaluate": 4, "evaluations": 2, "checkpoint": 4, "rate": 1e-2, "keep": 2}
TEXT = "The tokens gather, and where they gather they stay.\n"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"positions": "absolute", "temperature": "learned", "bias": True, "spectral": True},
    "definite": {"attention": "convergent", "placement": "post", "norm": "rms"},
    "official": {"attention": "divergent", "orientation": "official", "positions": "none", "tokens": "words"},
    "refined": {"refinement": "shift", "strength": 0.5, "tokens": "bpe", "vocabulary": 262, "placement": "peri"},
    "metric": {"attention": "intermediate", "metric": "diagonal", "refinement": "metric", "strength": 0.3},
    "looped": {"layers": 1, "loops": 2, "inject": True, "refinement": "shift", "strength": 0.5},
    "ngpt": {"placement": "ngpt:0.3", "positions": "none"},
    "images": {"task": "images", "data": "digits", "refinement": "slice", "positions": "absolute", "patch": 2},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text(TEXT * 60, encoding="utf-8")
    for kind, choice in KINDS.items():
        train(Config(**{"data": str(folder / "text.txt"), **SMALL, **choice}), folder / kind)
    (folder / "text.txt").unlink()  # a run does not need its data to be opened
    return {kind: folder / kind for kind in KINDS}


def given(run: TrainedRun) -> Any:
    if run.tokenizer is None:
        return {"images": torch.arange(64, dtype=torch.uint8).view(1, 8, 8, 1) * 4}
    return TEXT[:15]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_a_model(kind: str, runs: dict[str, Path]) -> None:
    """Verified against its own code in float64; the trace has the states of the model."""
    run = load(runs[kind])
    assert (run.step, run.steps, run.history.steps[-1].step) == (4, (0, 2, 4), 4)
    assert checkpoint(run).verify().error < 1e-13
    audited = at.audit(runs[kind], nulls=0)
    assert len(audited.heads) == 4
    assert audited.card is not None
    assert audited.card.verified is not None
    assert audited.card.verified.passed
    traced = at.trace(runs[kind], given(run))
    inputs = given(run)["images"] if run.tokenizer is None else torch.tensor([run.tokenizer.encode(TEXT[:15])])
    with torch.no_grad():
        states = run.model.states(inputs)
    torch.testing.assert_close(traced.points, torch.stack(states)[:, 0].double())
    assert traced.measurements is not None
    assert traced.measurements.heads["attention_entropy"].shape == (2, 2)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "images"])
def test_a_run_generates_and_iterates(kind: str, runs: dict[str, Path]) -> None:
    run = load(runs[kind])
    assert run.tokenizer is not None
    text = run.generate("The tokens", 8, seed=3)
    assert text.startswith("The tokens")
    assert text == run.generate("The tokens", 8, seed=3)
    ids = run.tokenizer.encode("The tokens")
    with torch.no_grad():
        following = int(run.model.logits(torch.tensor([ids]))[0, -1].argmax())
    assert run.generate("The tokens", 1, temperature=0) == "The tokens" + run.tokenizer.decode([following])
    assert run.generate("The tokens", 1, top=1) == run.generate("The tokens", 1, temperature=0)
    passed = iterate(runs[kind], [TEXT[:15]], passes=2, decode=(0,))
    with torch.no_grad():
        model = run.model.double()
        normed = model.hidden(torch.tensor([run.tokenizer.encode(TEXT[:15])]))[0]
    first = iterate(runs[kind], [TEXT[:15]], passes=1)
    torch.testing.assert_close(first.final[0], normed)
    assert passed.words[0][0]


def test_losses_of_a_loaded_model_are_those_of_the_run(runs: dict[str, Path], tmp_path: Path) -> None:
    """The validation loss of the last line of the curve, from the loaded model and the data."""
    from attractor.training.data import open_data

    (tmp_path / "text.txt").write_text(TEXT * 60, encoding="utf-8")
    run = load(runs["plain"])
    data = open_data(Config(str(tmp_path / "text.txt"), **SMALL), tmp_path)
    given, wanted = next(iter(data.evaluation("validation", 2, 2)))
    with torch.no_grad():
        loss = functional.cross_entropy(run.model.logits(given).flatten(0, 1), wanted.flatten())
    assert run.history.steps[-1].scores["validation_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_kept_weights(runs: dict[str, Path]) -> None:
    """Of the start and every two steps; those of the last step are the checkpoint's."""
    first, last = load(runs["plain"], 0), load(runs["plain"] / "kept" / "4")
    assert first.name.endswith("at step 0")
    torch.manual_seed(0)
    fresh = first.draw_model(0).state_dict()
    assert all(torch.equal(part, fresh[name]) for name, part in first.model.state_dict().items())
    whole = load(runs["plain"]).model.state_dict()
    assert all(torch.equal(part, whole[name]) for name, part in last.model.state_dict().items())
    heads = [at.audit(runs["plain"] / "kept" / str(step), nulls=0).heads[0] for step in (0, 4)]
    assert heads[0].interaction != heads[1].interaction


def test_models_of_blocks_in_memory(runs: dict[str, Path]) -> None:
    """A model of the loop, and any module with a list of blocks."""
    model = load(runs["refined"]).model
    assert checkpoint(model).verify()
    assert len(at.audit(model, nulls=0).heads) == 4

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = (at.nn.PlainAttention(8, 2, kernel="l2"), at.nn.DefiniteAttention(8, 2, "convergent"))
            self.parts = torch.nn.ModuleList([at.nn.TransformerBlock(layer, 8) for layer in layers])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = part(x)
            return x

    found = checkpoint(Own())
    assert found.verify()
    assert at.trace(Own(), {"x": torch.randn(1, 5, 8)}).points.shape == (3, 5, 8)
    with pytest.raises(InputError, match=r"or have a list of at\.nn\.TransformerBlock"):
        at.audit(torch.nn.Linear(2, 2))


def test_a_finished_run_is_extended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps before the end stay; the schedule is that of the new number of steps from there on."""
    out, settings = str(tmp_path / "run"), ["--set", "dropout=0.1", "--set", "evaluate=2", "--no-progress"]
    assert command(["train", "tiny", "--out", out, "--steps", "4", *settings]) == 0
    before = RunFolder(out).steps()
    assert command(["train", "--resume", out, "--steps", "3"]) == 2
    assert "another configuration: steps (4 there, 3 here)" in capsys.readouterr().err
    assert command(["train", "--resume", out, "--steps", "6", "--no-progress"]) == 0
    after = RunFolder(out).steps()
    assert after[:4] == before
    assert [step.step for step in after] == [1, 2, 3, 4, 5, 6]
    config = RunFolder(out).config()
    assert config.steps == 6
    assert after[4].rate == config.learning_rate(4)
    assert command(["train", "--resume", out, "--no-progress"]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["extended"] == [4]
    assert load(out).step == 6


def test_what_is_not_a_run(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run of attractor train"):
        load(tmp_path)
    with pytest.raises(InputError, match="has no weights of step 3; it has those of 0, 2, 4"):
        load(runs["plain"], 3)
    RunFolder(tmp_path / "new" / "seed1").create(Config("x"))
    with pytest.raises(StoreError, match="has no checkpoint yet"):
        load(tmp_path / "new" / "seed1")
    with pytest.raises(CheckpointError, match="has no checkpoint yet"):
        at.audit(tmp_path / "new" / "seed1")
    with pytest.raises(StoreError, match="the runs of its seeds are seed1"):
        load(tmp_path / "new")
    with pytest.raises(InputError, match="only models of text generate"):
        load(runs["images"]).generate("x")
    with pytest.raises(InputError, match="temperature must be a number of at least 0"):
        load(runs["plain"]).generate("x", temperature=-1.0)
    kept = tmp_path / "broken"
    RunFolder(kept).create(Config("x", **{**SMALL, "dim": 8}))
    (kept / "inputs.json").write_text('{"vocabulary": 256}')
    RunFolder(kept).keep(2, load(runs["plain"]).model.state_dict())
    with pytest.raises(StoreError, match="does not fit its configuration"):
        load(kept)


EXPORTED: dict[str, tuple[dict[str, Any], str, str]] = {
    "plain": ({"positions": "absolute", "temperature": "learned", "bias": True}, "gpt2", "none"),
    "sinusoidal": ({"attention": "convergent", "positions": "sinusoidal"}, "gpt2", "none"),
    "rotary": ({"attention": "divergent", "relaxed": True, "turned": 4}, "nemotron", "none"),
    "official": (
        {"attention": "divergent", "orientation": "official", "tokens": "bpe", "vocabulary": 260},
        "nemotron",
        "none",
    ),
    "shift": ({"refinement": "shift", "strength": 0.5, "temperature": 0.5}, "nemotron", "folded"),
    "no positions": ({"refinement": "slice", "strength": 0.5, "positions": "none", "bias": True}, "nemotron", "folded"),
    "looped": ({"layers": 1, "loops": 2, "refinement": "shift", "strength": 0.5}, "nemotron", "folded"),
    "module": ({"refinement": "shift", "strength": 0.5, "positions": "absolute", "temperature": 0.7}, "gpt2", "module"),
    "metric": (
        {
            "attention": "intermediate",
            "metric": "diagonal",
            "refinement": "metric",
            "strength": 0.3,
            "positions": "absolute",
        },
        "gpt2",
        "module",
    ),
    "images": (
        {"task": "images", "data": "digits", "refinement": "slice", "positions": "absolute", "patch": 2},
        "vit",
        "folded",
    ),
}


@pytest.mark.parametrize("kind", EXPORTED)
def test_a_run_becomes_a_model_of_transformers(kind: str, tmp_path: Path) -> None:
    """Its logits, tokens and laws, in the ordinary classes where the refinement is folded."""
    transformers = pytest.importorskip("transformers")
    choice, model_type, refinement = EXPORTED[kind]
    (tmp_path / "text.txt").write_text(TEXT * 60, encoding="utf-8")
    settings = {"data": str(tmp_path / "text.txt"), **SMALL, "keep": 0, "dim": 24, "heads": 3, **choice}
    settings |= {"steps": 2, "evaluate": 2, "checkpoint": 2}
    train(Config(**settings), tmp_path / "run")
    made = to_transformers(tmp_path / "run", tmp_path / "out")
    assert (made.model_type, made.refinement) == (model_type, refinement)
    assert made.error < 1e-5
    run, images = load(tmp_path / "run"), kind == "images"
    factory = transformers.AutoModelForImageClassification if images else transformers.AutoModelForCausalLM
    model = (at.nn.load_refined if refinement == "module" else factory.from_pretrained)(tmp_path / "out").eval()
    with torch.no_grad():
        if images:
            images = (torch.arange(64).view(1, 8, 8, 1) * 4).to(torch.uint8)
            processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
            assert processor.image_mean == pytest.approx(run.inputs.mean)
            pixels = (images / 255 - run.inputs.mean[0]) / run.inputs.deviation[0]
            own, other = run.model.logits(images), model(pixel_values=pixels.permute(0, 3, 1, 2)).logits
        else:
            assert run.tokenizer is not None
            ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(TEXT[:15])["input_ids"]
            assert ids == run.tokenizer.encode(TEXT[:15])
            own, other = run.model.logits(torch.tensor([ids])), model(torch.tensor([ids])).logits
    torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert checkpoint(tmp_path / "out").verify().error < 1e-12
    mine, theirs = (
        at.audit(place, nulls=0, verify=False, detail="heads").heads for place in (tmp_path / "run", tmp_path / "out")
    )
    for one, two in zip(mine, theirs, strict=True):
        assert one.value.abscissa == pytest.approx(two.value.abscissa, rel=1e-3, abs=1e-5)


def test_what_cannot_be_exported(runs: dict[str, Path], tmp_path: Path) -> None:
    for kind, message in (("definite", "norms placed as 'post' and RMS norms"), ("refined", "norms placed as 'peri'")):
        with pytest.raises(UnsupportedError, match=f"transformers has no architecture for .*{message}"):
            to_transformers(runs[kind], tmp_path / "out")
    (tmp_path / "text.txt").write_text(TEXT * 60, encoding="utf-8")
    settings = {**SMALL, "keep": 0, "steps": 1, "positions": "absolute", "refinement": "shift"}
    train(Config(str(tmp_path / "text.txt"), **settings), tmp_path / "run")
    with pytest.raises(UnsupportedError, match="the shift of a model with absolute positions cannot be folded exactly"):
        to_transformers(tmp_path / "run", tmp_path / "out", fold=True)
    with pytest.raises(StoreError, match="exists already"):
        to_transformers(tmp_path / "run", tmp_path / "run")
    assert not (tmp_path / "out").exists()
