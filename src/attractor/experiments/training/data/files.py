"""Pictures that are read when they are needed: class folders (ImageNet-1K), or the ``datasets`` library."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attractor.errors import InputError, StoreError
from attractor.experiments.training.config import Config
from attractor.experiments.training.data import Batch
from attractor.experiments.training.data.corpus import load_named
from attractor.experiments.training.data.images import image_scores
from attractor.experiments.training.data.names import LIBRARY, paths_of
from attractor.experiments.training.data.order import samples
from attractor.experiments.training.data.sources import import_pillow

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet's channels, the usual constants
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm")
AROUND = 256 / 224  # the shorter side of a validation picture, before its middle is cut out
Open = Callable[[int], Any]  # the picture of a number, of the Pillow library


@dataclass(frozen=True)
class PictureFiles:
    """A function that opens pictures and the labels of all, by part."""

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

    def parts(self) -> tuple[str, ...]:
        return tuple(self.labels)

    def batch(self, size: int, seed: int, number: int, rank: int = 0, world: int = 1) -> Batch:
        """(pictures, labels): random parts of pictures, each drawn from the seed, the batch and its place there."""
        chosen = samples(len(self.labels["train"]), size, seed, number, rank, world)
        draws = [np.random.default_rng((seed, number, rank, place)) for place in range(size)]
        return self._read("train", chosen, draws)

    def evaluation(self, part: str, size: int, count: int) -> Iterator[Batch]:
        """All of a part, or ``count`` batches spread over it: the middle of every picture."""
        total = len(self.labels[part])
        chosen = np.arange(total)
        if count and count * size < total:
            chosen = np.linspace(0, total - 1, count * size).astype(np.int64)
        for start in range(0, len(chosen), size):
            yield self._read(part, chosen[start : start + size], None)

    def scores(self, part: str, totals: dict[str, float]) -> dict[str, float]:
        return image_scores(totals)

    def _read(self, part: str, chosen: np.ndarray, draws: list[np.random.Generator] | None) -> Batch:
        def one(place: int) -> np.ndarray:
            picture = self.open[part](int(chosen[place])).convert("RGB")
            drawn = None if draws is None or self.augment == "none" else draws[place]
            cut = middle(picture, self.size) if drawn is None else random_part(picture, self.size, self.augment, drawn)
            return np.asarray(cut)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding lets go of the interpreter
            pictures = np.stack(list(pool.map(one, range(len(chosen)))))
        return torch.from_numpy(pictures), torch.from_numpy(self.labels[part][chosen].astype(np.int64))


def middle(picture: Any, size: int) -> Any:
    """The middle ``size`` by ``size`` pixels of a picture whose shorter side was brought to a little more."""
    shorter = round(size * AROUND)
    scale = shorter / min(picture.size)
    wide = picture.resize([max(size, round(side * scale)) for side in picture.size], 3)
    left, top = ((side - size) // 2 for side in wide.size)
    return wide.crop((left, top, left + size, top + size))


def random_part(picture: Any, size: int, kind: str, draw: np.random.Generator) -> Any:
    """A rectangle of 8 to 100 percent of the area and of a shape between 3:4 and 4:3, brought to size; mirrored half of the time."""
    if kind == "flip":
        cut = middle(picture, size)
    else:
        width, height = picture.size
        area = width * height * draw.uniform(0.08, 1.0)
        shape = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide = min(width, max(1, round(math.sqrt(area * shape))))
        high = min(height, max(1, round(math.sqrt(area / shape))))
        left, top = int(draw.integers(0, width - wide + 1)), int(draw.integers(0, height - high + 1))
        cut = picture.resize((size, size), 3, box=(left, top, left + wide, top + high))
    return cut.transpose(0) if draw.random() < 0.5 else cut


def open_files(config: Config) -> PictureFiles:
    """Class folders under train and val (or validation, test), or a dataset of the ``datasets`` library."""
    import_pillow()
    found = _library(config.data) if config.data.startswith(LIBRARY) else _folders(paths_of(config.data)[0])
    opened, labels, classes = found
    if not config.size:
        raise InputError(
            "pictures from files differ in size: give the size that they are brought to, such as size = 224"
        )
    return PictureFiles(opened, labels, classes, config.size, config.augment)


def _folders(root: Path) -> tuple[dict[str, Open], dict[str, np.ndarray], int]:
    train = root / "train"
    held = next((root / name for name in ("val", "validation", "test") if (root / name).is_dir()), None)
    if not train.is_dir() or held is None:
        raise InputError(
            f"{root} holds no pictures that are known: neither CIFAR-10, nor MNIST, nor the folders train and val with one folder "
            "for each class"
        )
    names = sorted(folder.name for folder in train.iterdir() if folder.is_dir())
    opened, labels = {}, {}
    for part, folder in (("train", train), ("validation", held)):
        files = [(file, index) for index, name in enumerate(names) for file in _pictures(folder / name)]
        if not files:
            raise InputError(f"{folder} has no pictures in folders of the classes: it is empty")
        opened[part] = _opener([file for file, _ in files])
        labels[part] = np.array([index for _, index in files])
    return opened, labels, len(names)


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*") if file.suffix.lower() in SUFFIXES)


def _opener(files: list[Path]) -> Open:
    from PIL import Image, UnidentifiedImageError

    def opened(number: int) -> Any:
        try:
            return Image.open(files[number])
        except (OSError, UnidentifiedImageError):
            raise StoreError(f"{files[number]} is not a picture that can be read") from None

    return opened


def _library(data: str) -> tuple[dict[str, Open], dict[str, np.ndarray], int]:
    loaded = load_named(data.removeprefix(LIBRARY))
    held = next((name for name in ("validation", "test") if name in loaded), None)
    if "train" not in loaded or held is None:
        raise InputError(f"the dataset {data} needs the parts train and validation (or test); it has {list(loaded)}")
    opened, labels = {}, {}
    for part, name in (("train", "train"), ("validation", held)):
        columns = loaded[name].column_names
        picture = next((column for column in ("image", "img") if column in columns), None)
        label = next((column for column in ("label", "labels", "fine_label") if column in columns), None)
        if picture is None or label is None:
            raise InputError(f"the dataset {data} needs columns image and label; it has {', '.join(columns)}")
        opened[part] = lambda number, rows=loaded[name], column=picture: rows[number][column]
        labels[part] = np.asarray(loaded[name][label])
    return opened, labels, int(labels["train"].max()) + 1
