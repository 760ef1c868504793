"""Many texts from files and names, and pictures from files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from small_models import random_model

import attractor as at
from attractor.errors import CheckpointError, InputError, MissingExtraError, UnsupportedError
from attractor.models.inputs import read_image, read_texts

ROWS = [{"text": "one", "other": "1"}, {"text": " ", "other": "2"}, {"text": "three", "other": "3"}]


def test_files(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "a.csv").write_text("text,other\none,1\n ,2\nthree,3\n")
    (tmp_path / "a.txt").write_text("one\n\n \n\nthree")
    (tmp_path / "b.txt").write_text("one\n\nstill one\f\nthree")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.json", "a.csv", "a.txt", "a.parquet"):
        assert [text.strip() for text in read_texts(tmp_path / name)] == ["one", "three"]
        assert len(read_texts(tmp_path / name, 1)) == 1
    assert read_texts(tmp_path / "a.jsonl", column="other") == ["1", "2", "3"]
    assert len(read_texts(tmp_path / "b.txt")) == 2


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'{"text": ["one", null, "three"], "other": [1, 2, 3]}'),
        ("a.json", b'["one", "", "three"]'),
        ("a.jsonl", b'{"text": "one"}\n{"text": null}\n{"text": "three"}\n'),
        ("a.csv", "\ufefftext,other\none,1\n,2\nthree,3,4\n".encode()),
        ("a.txt", "\ufeffone\n\nthree".encode()),
        ("a.jsonl", '\ufeff{"text": "one"}\n{"text": "three"}'.encode()),
    ],
)
def test_unusual_files(name: str, content: bytes, tmp_path: Path) -> None:
    """Objects of columns, texts that are missing, and marks of byte order: read as they are meant."""
    (tmp_path / name).write_bytes(content)
    assert read_texts(tmp_path / name) == ["one", "three"]


def test_a_long_cell(tmp_path: Path) -> None:
    import csv

    usual = csv.field_size_limit()
    (tmp_path / "a.csv").write_text("text\n" + "word " * 40_000 + "\n")
    assert len(read_texts(tmp_path / "a.csv")[0]) > usual
    assert csv.field_size_limit() == usual


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"a": 1}\n', "no column of texts; its columns are a"),
        ("a.jsonl", "{", "cannot be read as texts"),
        ("a.json", "3", "holds a number, not a list"),
        ("a.json", '{"a": "x", "b": 2}', "holds an object with a, b, and no texts under text, content"),
        ("a.json", '{"text": 1}\n{"text": 2}', r"rows one a line are a \.jsonl file"),
        ("a.jsonl", '{"text": "x"}\n{"text": 3}\n', "row 2 of .* has a number in its column text"),
        ("a.jsonl", '{"text": "x"}\n{"other": "y"}\n', "row 2 of .* has no column of texts; its columns are other"),
        ("a.jsonl", '{"text": "x"}\n\n{', "line 3 is no JSON"),
        ("a.jsonl", "[1]", "row 1 of .* is a list"),
        ("a.txt", " \n", "holds no text"),
        ("a.bin", "x", "is not read as texts"),
        ("a.parquet", "x", "cannot be read as texts"),
    ],
)
def test_bad_files(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts(tmp_path / name)


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"no file \./nowhere\.txt"):
        read_texts("./nowhere.txt")
    with pytest.raises(InputError, match=r"is a folder; give a file in it"):
        read_texts(Path(__file__).parent)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="datasets"):
        read_texts("wikitext")
    library: Any = ModuleType("datasets")
    library.load_dataset = lambda name, split, streaming: iter(ROWS) if (name, split) == ("w", "test") else 1 / 0
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert read_texts("w", 1, split="test") == ["one"]
    with pytest.raises(CheckpointError, match=r"'w' is no file here.*division by zero"):
        read_texts("w")


def test_pictures(tmp_path: Path) -> None:
    from PIL import Image

    values = np.arange(20 * 30 * 3, dtype=np.uint8).reshape(20, 30, 3)
    Image.fromarray(values).save(tmp_path / "a.png")
    vit = at.checkpoint(random_model("ViT"))
    pixels = read_image(vit, tmp_path / "a.png")["pixel_values"]
    assert pixels.shape == (1, 3, 12, 12)
    resized = np.asarray(Image.fromarray(values).resize((12, 12), 2), dtype=float) / 255
    np.testing.assert_allclose(pixels[0], (resized.transpose(2, 0, 1) - 0.5) / 0.5, atol=1e-6)
    assert at.trace(vit, read_image(vit, tmp_path / "a.png")).points.shape == (3, 10, 32)
    model: Any = random_model("ViT")
    model.save_pretrained(tmp_path / "vit")
    settings = {
        "size": {"shortest_edge": 16},
        "crop_size": {"height": 12, "width": 12},
        "image_mean": [0, 0, 0],
        "image_std": [1, 1, 1],
    }
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(settings))
    cropped = read_image(at.checkpoint(tmp_path / "vit"), tmp_path / "a.png")["pixel_values"]
    whole = np.asarray(Image.fromarray(values).resize((24, 16), 2), dtype=float)[2:14, 6:18] / 255
    np.testing.assert_allclose(cropped[0], whole.transpose(2, 0, 1), atol=1e-6)
    (tmp_path / "b.png").write_bytes(b"no picture")
    for path, message in (
        (tmp_path / "b.png", "no image that can be read"),
        (tmp_path / "c.png", "there is no image"),
    ):
        with pytest.raises(InputError, match=message):
            read_image(vit, path)
    with pytest.raises(UnsupportedError, match="reads no images"):
        read_image(at.checkpoint(random_model("GPT-2")), tmp_path / "a.png")
    assert torch.isfinite(pixels).all()
