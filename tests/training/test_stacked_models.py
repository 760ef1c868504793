"""Fleets compute what their models compute alone, step for step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from attractor.errors import InputError
from attractor.spaces import Euclidean
from attractor.states import Tokens
from attractor.training import STUDIES, Config, arm_entries, find_study, train
from attractor.training.studies.stacked_training import Execution, open_source, train_models, train_seeds

SMALL = {
    "layers": 2,
    "dim": 16,
    "heads": 2,
    "context": 12,
    "batch": 4,
    "steps": 6,
    "evaluate": 3,
    "evaluations": 2,
    "warmup": 2,
}
ARMS = [
    ("bytes", "plain/rotary"),
    ("bytes", "divergent/absolute"),
    ("bytes", "shift/rotary"),
    ("bytes", "slice-/absolute"),
    ("bytes", "lambda-A/rotary"),
    ("bytes", "scattered-intermediate/rotary"),
    ("bytes", "spectral/rotary"),
    ("bytes", "temperature/rotary"),
    ("bytes", "post/rotary"),
    ("bytes", "peri/rotary"),
    ("bytes", "bare-convergent/rotary"),
    ("dynamics-bytes", "official-convergent/absolute"),
    ("looped", "ngpt/6"),
    ("looped", "pre-inject/6"),
    ("looped", "penalised/6"),
    ("vision", "plain/absolute"),
    ("vision", "intermediate/rotary"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    (folder / "words.txt").write_text("".join(draw.choice(list("abcdef \n"), 8000)))
    parts = {}
    for part, count in (("train", 20), ("validation", 8)):
        parts[f"{part}_pictures"] = draw.integers(0, 256, (count, 8, 8, 3)).astype(np.uint8)
        parts[f"{part}_labels"] = draw.integers(0, 3, count)
    np.savez(folder / "pictures.npz", **parts)
    return {"bytes": str(folder / "words.txt"), "vision": str(folder / "pictures.npz")}


def config_of(study: str, arm: str, data: dict[str, str], **more: object) -> Config:
    small = {**SMALL, "data": data["vision" if study in ("vision", "looped") else "bytes"]}
    small |= {"loops": 3, "dim": 12, "heads": 3} if study == "looped" else {}
    return Config(**{**arm_entries(find_study(study), arm), **small, **more})


@pytest.mark.parametrize(("study", "arm"), ARMS)
def test_losses_and_gradients_are_those_of_each_model(
    study: str, arm: str, data: dict[str, str], tmp_path: Path
) -> None:
    config = config_of(study, arm, data, **({"strength": 0.3} if "shift" in arm or "lambda" in arm else {}))
    reads = open_source(config, torch.device("cpu"), tmp_path)
    models = [reads.model(Config(**{**config.row(), "seed": seed})).double() for seed in (3, 4)]
    for model in models:
        model.train(config.penalty > 0)  # a penalty belongs to training only
    stack = reads.stack(models, torch.device("cpu"), torch.float64)
    batch = reads.batch(reads.inputs([3, 4], 0))
    found = sum(stack.losses(*batch))
    assert isinstance(found, torch.Tensor)
    alone = torch.stack([model(*(part[k] for part in batch)) for k, model in enumerate(models)])
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)  # both end in a float32 loss
    gradients = torch.autograd.grad(found.sum(), list(stack.parameters.values()))
    alone.sum().backward()
    for name, gradient in zip(stack.parameters, gradients, strict=True):
        inner = name.removeprefix("backbone.blocks.")
        for k, model in enumerate(models):
            own = dict(model.named_parameters())
            layers = range(2) if inner != name else [None]
            for layer in layers:
                wanted = own[name if layer is None else f"backbone.blocks.{layer}.{inner}"].grad
                mine = gradient[k] if layer is None else gradient[layer, k]
                assert wanted is not None
                torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    ("study", "arm"),
    [
        ("bytes", "divergent/rotary"),
        ("bytes", "spectral/rotary"),
        ("vision", "shift/absolute"),
        ("dynamics-bytes", "official-divergent/rotary"),
        ("looped", "post-convergent/6"),
    ],
)
def test_stacked_models_train_like_attractor_train(study: str, arm: str, data: dict[str, str], tmp_path: Path) -> None:
    config = config_of(study, arm, data)
    rows = train_seeds(config, [0, 1], Execution(), tmp_path)
    assert [row.seed for row in rows] == [0, 1]
    for row in rows:
        alone = tmp_path / f"run{row.seed}"
        train(Config(**{**config.row(), "seed": row.seed}), alone)
        lines = [json.loads(line) for line in (alone / "curve.jsonl").read_text().splitlines()]
        assert row.curve[0][0] == 3
        assert row.curve[0][1] == pytest.approx(lines[2]["validation_loss"], abs=2e-5)
        assert row.scores_curve[-1][0] == config.steps
        assert row.train_loss == pytest.approx(lines[-1]["loss"], abs=2e-5)


def test_arms_of_a_study_have_as_many_parameters(data: dict[str, str], tmp_path: Path) -> None:
    counts = {}
    for arm in ("plain/rotary", "convergent/rotary", "diagonal/rotary", "scattered-convergent/rotary"):
        config = Config(**{**arm_entries(STUDIES["bytes"], arm), "data": data["bytes"]})
        reads = open_source(config, torch.device("cpu"), tmp_path)
        counts[arm] = sum(part.numel() for part in reads.model(config).parameters())
    assert max(counts.values()) / min(counts.values()) < 1.002


def test_rates_and_regimes_are_trained_together_as_alone(data: dict[str, str], tmp_path: Path) -> None:
    first = config_of("bytes", "convergent/rotary", data)
    configs = [
        replace(first, rate=rate, attention=kind, seed=seed)
        for rate, kind, seed in ((3e-2, "divergent", 1), (1e-2, "convergent", 0), (3e-2, "intermediate", 0))
    ]
    together = train_models(configs, Execution(), tmp_path)
    assert [(run.rate, run.seed) for run in together] == [(config.rate, config.seed) for config in configs]
    for config, run in zip(configs, together, strict=True):
        alone = train_models([config], Execution(), tmp_path)[0]
        assert run.scores["loss"] == pytest.approx(alone.scores["loss"], abs=2e-5)
        assert run.dynamics is not None
        assert (max(run.dynamics.growth or ()) < 0) == (config.attention == "convergent")  # type: ignore[type-var]
    with pytest.raises(InputError, match="differ in seed"):
        train_models([first, replace(first, dim=32)], Execution(), tmp_path)


@pytest.mark.parametrize(("study", "arm"), [("vision", "convergent/absolute"), ("bytes", "convergent/rotary")])
def test_the_forms_for_a_gpu_have_the_same_losses(study: str, arm: str, data: dict[str, str], tmp_path: Path) -> None:
    """A hidden width padded with zeros, padded values, and attention of few tokens without the fused kernel."""
    config = config_of(study, arm, data)
    reads = open_source(config, torch.device("cpu"), tmp_path)
    stack = reads.stack([reads.model(config).double()], torch.device("cpu"), torch.float64)
    batch = reads.batch(reads.inputs([0], 0))
    usual = stack.losses(*batch)[0]
    stack.shape = replace(stack.shape, pad=True)
    assert stack.parameters["backbone.blocks.widen.weight"].shape[-2] % 64
    torch.testing.assert_close(stack.losses(*batch)[0], usual, rtol=1e-5, atol=1e-6)


def test_blocks_of_a_loop_have_the_same_weights(data: dict[str, str], tmp_path: Path) -> None:
    """Three loops of one block with injection are the block applied three times, as a law with its norms too."""
    config = config_of("looped", "pre-inject/6", data, placement="ngpt:0.3", loops=3)
    config = replace(config, layers=1)
    model = open_source(config, torch.device("cpu"), tmp_path).model(config).double().eval()
    block = model.backbone.blocks[0]
    model.backbone.places = None
    states = [torch.randn(2, 4, 12, dtype=torch.float64)]
    for again in (0, 1, 1):
        states.append(block(states[-1] + again * states[0]))
    found = model.backbone.states(states[0])
    assert len(found) == 4
    for one, other in zip(found, states, strict=True):
        torch.testing.assert_close(one, other)
    moved = block.law().layer(Tokens(states[0][0]), 1.0, Euclidean())
    torch.testing.assert_close(moved, states[1][0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"placement": "ngpt"}, "ngpt takes a share above 0"),
        ({"placement": "ngpt:2"}, "ngpt takes a share above 0"),
        ({"placement": "pre:0.1"}, "no other takes one"),
        ({"placement": "pro"}, "placement 'pro' is not known"),
        ({"inject": True}, "give loops of at least 2"),
        ({"penalty": -1.0}, "penalty must be a number of at least 0"),
        ({"loops": 0}, "loops must be a whole number of at least 1"),
    ],
)
def test_bad_loops_norms_and_penalties(entries: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Config(data="words.txt", **entries)  # type: ignore[arg-type]
