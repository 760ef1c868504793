"""Vision Transformers: pictures of every source, batches that follow from the step, learning and resuming."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attractor.cli.main import run as command
from attractor.errors import InputError, StoreError
from attractor.training import Config, TrainingStep, read_config, train
from attractor.training.data import open_data
from attractor.training.data.batches import sample_indices
from attractor.training.data.images import augment, read_arrays
from attractor.training.models import VisionModel
from attractor.training.run_folder import RunFolder

pytest.importorskip("accelerate", reason="comes with attractor[train]")
pytest.importorskip("sklearn", reason="comes with attractor[train]")
SMALL: dict[str, Any] = {"task": "images", "patch": 4, "layers": 1, "dim": 16, "heads": 2, "batch": 8, "warmup": 2}
SMALL |= {"steps": 6, "evaluate": 3, "evaluations": 2, "checkpoint": 3, "augment": "crop", "positions": "absolute"}


def test_a_model_learns_digits_and_its_tokens_are_followed(tmp_path: Path) -> None:
    config = read_config("tiny-vit", steps=40, evaluate=40, batch=48)
    report = train(config, tmp_path / "run")
    assert report.scores["accuracy"] > 0.3
    found = RunFolder(tmp_path / "run").steps()[-1].dynamics
    assert found is not None
    assert found.regimes is not None
    assert [len(values) for values in (found.norm, found.distance, found.cosine, found.regimes)] == [3, 3, 3, 2]
    assert [len(heads) for heads in found.head_regimes or ()] == [4, 4]


@pytest.mark.theorem
@pytest.mark.parametrize("regime", ["convergent", "divergent", "intermediate"])
def test_regimes_hold_along_a_run(regime: str, tmp_path: Path) -> None:
    """Full attention without positions in the scores: the theorems speak of every layer, at every evaluation, also in bfloat16."""
    config = Config(
        "digits", **{**SMALL, "steps": 8, "evaluate": 2, "rate": 3e-2, "precision": "bf16", "attention": regime}
    )
    train(config, tmp_path / "run")
    found = [step.dynamics.regimes for step in RunFolder(tmp_path / "run").steps() if step.dynamics is not None]
    assert found == [(regime,)] * 4


def test_stopped_and_resumed_to_the_same_curve(tmp_path: Path) -> None:
    """Augmentation and order follow from the step, and random states of dropped paths are kept."""
    config = Config("digits", **SMALL, drop_path=0.3)
    train(config, tmp_path / "whole")

    class Stopped(Exception):
        pass

    def stop(done: TrainingStep) -> None:
        if done.step == 5:
            raise Stopped

    with pytest.raises(Stopped):
        train(config, tmp_path / "parts", progress=stop)
    assert RunFolder(tmp_path / "parts").last_step() == 3
    train(config, tmp_path / "parts", resume=True)
    assert RunFolder(tmp_path / "parts").steps() == RunFolder(tmp_path / "whole").steps()


def test_an_epoch_goes_once_through_all() -> None:
    """Over the batches of two processes; the next epoch has another order."""
    seen = np.concatenate([sample_indices(12, 3, 0, number, rank, 2) for number in range(4) for rank in range(2)])
    assert sorted(seen[:12]) == sorted(seen[12:]) == list(range(12))
    assert seen[:12].tolist() != seen[12:].tolist()
    assert sample_indices(5, 4, 0, 1).tolist()[0] == sample_indices(5, 5, 0, 0).tolist()[4]


def test_images_of_a_step_do_not_depend_on_how_it_is_divided(tmp_path: Path) -> None:
    """Order and augmentation: over two processes, and over two accumulated passes."""
    data: Any = open_data(Config("digits", **SMALL), tmp_path)
    whole, labels = data.batch(8, 3, 5)
    for parts in (
        [data.batch(4, 3, 5, rank, 2) for rank in range(2)],
        [data.batch(4, 3, number) for number in (10, 11)],
    ):
        assert torch.equal(torch.cat([part[0] for part in parts]), whole)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)


def test_augmentation_moves_and_mirrors() -> None:
    pictures = torch.randint(1, 256, (64, 16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(pictures, "none", 0, np.arange(64)), pictures)
    flipped = augment(pictures, "flip", 0, np.arange(64))
    mirrored = pictures.flip(2)
    kinds = [
        (torch.equal(new, old), torch.equal(new, other))
        for new, old, other in zip(flipped, pictures, mirrored, strict=True)
    ]
    assert all(sum(kind) == 1 for kind in kinds)
    assert 15 < sum(kind[0] for kind in kinds) < 49
    moved = augment(pictures, "crop", 0, np.arange(64))
    assert moved.shape == pictures.shape
    # every picture is its own or its mirror image, moved by at most 2 pixels into black
    for new, old in zip(moved, pictures, strict=True):
        padded = torch.nn.functional.pad(torch.stack((old, old.flip(1))), (0, 0, 2, 2, 2, 2))
        cuts = padded.unfold(1, 16, 1).unfold(2, 16, 1).permute(0, 1, 2, 4, 5, 3)
        assert bool((cuts == new).all((-3, -2, -1)).any())


def test_patches_are_row_by_row() -> None:
    """Against a convolution with the same weights."""
    torch.manual_seed(0)
    model = VisionModel(Config("x", **{**SMALL, "pooling": "mean"}), (8, 12, 3), 4, [0.4, 0.5, 0.6], [0.2, 0.3, 0.4])
    pictures = torch.randint(0, 256, (2, 8, 12, 3), dtype=torch.uint8)
    normed = (pictures / 255.0 - model.mean) / model.deviation
    kernel = model.embedding.weight.view(16, 4, 4, 3).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.conv2d(normed.permute(0, 3, 1, 2), kernel, model.embedding.bias, stride=4)
    torch.testing.assert_close(model.tokens(pictures), wanted.flatten(2).mT, rtol=1e-5, atol=1e-5)


def cifar(folder: Path, rows: int = 20) -> np.ndarray:
    """Files as the package has them, with fewer pictures."""
    folder.mkdir()
    whole = np.random.default_rng(0).integers(0, 256, (6, rows, 1024, 3), dtype=np.uint8)
    for name, part in zip([f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"], whole, strict=True):
        Image.fromarray(part).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps([number % 10 for number in range(5 * rows)]))
    (folder / "test_lables.json").write_text(json.dumps([number % 10 for number in range(rows)]))
    return whole


def test_cifar(tmp_path: Path) -> None:
    whole = cifar(tmp_path / "cifar")
    data: Any = open_data(Config(str(tmp_path / "cifar"), **SMALL), tmp_path)
    assert (data.shape, data.classes, len(data.labels["train"])) == ((32, 32, 3), 10, 100)
    assert np.array_equal(data.images["validation"][3].numpy().reshape(1024, 3), whole[5, 3])
    flat = whole[:5].reshape(-1, 3) / 255
    assert np.allclose(data.mean, flat.mean(0), atol=1e-6)
    assert np.allclose(data.deviation, flat.std(0), atol=1e-6)
    pictures, _ = data.batch(8, 0, 3)
    assert pictures.shape == (8, 32, 32, 3)
    assert torch.equal(pictures, data.batch(8, 0, 3)[0])
    assert not torch.equal(pictures, data.batch(8, 1, 3)[0])
    assert sum(len(labels) for _, labels in data.evaluation("validation", 8, 0)) == 20
    smaller: Any = open_data(Config(str(tmp_path / "cifar"), **{**SMALL, "size": 16}), tmp_path)
    assert smaller.shape == (16, 16, 3)
    (tmp_path / "cifar" / "data_batch_2.png").write_bytes(b"no picture")
    with pytest.raises(StoreError, match=r"data_batch_2\.png is not a file of CIFAR-10"):
        read_arrays(str(tmp_path / "cifar"))


def test_mnist_and_arrays(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (10, 28, 28), dtype=np.uint8)
    labels = np.arange(10, dtype=np.uint8)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("train", "t10k"):
        head = b"\0\0\x08\x03" + np.array(pictures.shape, dtype=">i4").tobytes()
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pictures.tobytes()))
        head = b"\0\0\x08\x01" + np.array([10], dtype=">i4").tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    found = read_arrays(str(folder))
    assert found is not None
    assert np.array_equal(found["validation"][0][..., 0], pictures)
    assert found["train"][1].tolist() == list(range(10))
    wide = np.repeat(pictures[..., None], 3, -1)
    np.savez(
        tmp_path / "own.npz",
        train_pictures=wide,
        train_labels=labels,
        validation_pictures=wide,
        validation_labels=labels,
    )
    data: Any = open_data(Config(str(tmp_path / "own.npz"), **SMALL), tmp_path)
    assert (data.shape, data.classes) == ((28, 28, 3), 10)
    np.savez(tmp_path / "half.npz", train_pictures=wide, train_labels=labels)
    with pytest.raises(InputError, match="no array validation_pictures"):
        read_arrays(str(tmp_path / "half.npz"))


def test_class_folders(tmp_path: Path) -> None:
    """As ImageNet is kept: pictures of any size, cut at random for training and in the middle for validation."""
    draw = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in ("n01", "n02"):
            folder = tmp_path / "imagenet" / part / name
            folder.mkdir(parents=True)
            for number, shape in enumerate(((40, 30, 3), (30, 50, 3), (32, 32))):
                Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{number}.png")
    config = Config(str(tmp_path / "imagenet"), **{**SMALL, "size": 16})
    data: Any = open_data(config, tmp_path)
    assert (data.shape, data.classes) == ((16, 16, 3), 2)
    pictures, labels = data.batch(6, 0, 0)
    assert pictures.shape == (6, 16, 16, 3)
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    assert torch.equal(pictures, data.batch(6, 0, 0)[0])
    assert torch.equal(pictures, torch.cat([data.batch(3, 0, 0, rank, 2)[0] for rank in range(2)]))
    held = [(len(found), wanted.tolist()) for found, wanted in data.evaluation("validation", 4, 0)]
    assert held == [(4, [0, 0, 0, 1]), (2, [1, 1])]
    assert train(config, tmp_path / "run").scores["accuracy"] in (0.0, 1 / 6, 2 / 6, 0.5, 4 / 6, 5 / 6, 1.0)
    with pytest.raises(InputError, match="give the size that they are brought to"):
        open_data(Config(str(tmp_path / "imagenet"), **SMALL), tmp_path)


class Rows(list[dict[str, Any]]):
    column_names = ("img", "label")

    def __getitem__(self, key: Any) -> Any:
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_pictures_of_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    pictures = [Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)) for _ in range(6)]
    rows = Rows({"img": picture, "label": number % 3} for number, picture in enumerate(pictures))
    library = SimpleNamespace(load_dataset=lambda name, configuration: {"train": rows, "test": rows})
    monkeypatch.setitem(sys.modules, "datasets", library)
    data: Any = open_data(Config("datasets:cifar10", **{**SMALL, "size": 16}), tmp_path)
    assert (data.shape, data.classes, data.parts()) == ((16, 16, 3), 3, ("train", "validation"))
    held = next(iter(data.evaluation("validation", 6, 0)))
    assert held[0].shape == (6, 16, 16, 3)
    assert held[1].tolist() == [0, 1, 2, 0, 1, 2]
    Rows.column_names = ("pixels", "label")
    with pytest.raises(InputError, match="needs columns image and label; it has pixels, label"):
        open_data(Config("datasets:cifar10", **{**SMALL, "size": 16}), tmp_path)


def test_bad_data_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for data, message in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "empty", "holds no known images"),
    ):
        with pytest.raises(InputError, match=message):
            train(Config(str(data), **{**SMALL, "size": 16}), tmp_path / "run")
    for part in ("train/a", "val/a"):
        (tmp_path / "bare" / part).mkdir(parents=True)
    with pytest.raises(InputError, match="it is empty"):
        train(Config(str(tmp_path / "bare"), **{**SMALL, "size": 16}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert command(["train", "tiny-vit", "--set", "patch=3", "--out", str(tmp_path / "run")]) == 2
    assert "do not split into patches of 3" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
