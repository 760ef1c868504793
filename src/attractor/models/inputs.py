"""Inputs of models: texts, data sets, images and prompts."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor import assets
from attractor.errors import AttractorError, CheckpointError, InputError, UnsupportedError, missing
from attractor.files import check_regular, parse_json, read_json
from attractor.models.checkpoints import Checkpoint
from attractor.models.loading import context_length, load_tokenizer, tokenize, tokenizer_notes

COLUMNS = ("text", "content", "sentence", "article", "document")
SUFFIXES = (".txt", ".md", ".jsonl", ".json", ".csv", ".parquet")
PLAIN = (".txt", ".md")
ENCODING = "utf-8-sig"  # with or without a byte order mark
BREAK = "\f"  # between texts of one file


def read_texts(
    source: str | Path, most: int | None = None, column: str | None = None, split: str = "train"
) -> list[str]:
    """Read texts from a file, an asset or a data set; blank and missing ones are left out.

    Parameters
    ----------
    source : a .txt file, where texts are separated by form feeds or blank lines; a .jsonl, .json, .csv or .parquet file with rows (a
        .json file may also be a list of texts or an object of columns); or the name of an asset or of a data set of the hub.
    most : number of texts; all by default.
    column : column of the rows; by default the first of text, content, sentence, article, document that exists.
    split : split of a data set of the hub.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        raise InputError(f"{source} is a folder; give a file in it that ends in {', '.join(SUFFIXES)}")
    texts = _file(path, column) if path.is_file() else _named(str(source), column, split)
    found = list(islice((text for text in texts if text.strip()), most))
    if not found:
        raise InputError(f"{source} holds no text")
    return found


def has_columns(source: str) -> bool:
    """Whether the texts of a source are in a column."""
    known = _assets().get(source.lower())
    return Path(source if known is None else known.path or "").suffix.lower() not in PLAIN


def has_splits(source: str) -> bool:
    """Whether a source is a name for the datasets library, the only source with splits."""
    here = Path(source).expanduser().exists() or Path(source).suffix.lower() in SUFFIXES
    return not here and source.lower() not in _assets()


def _assets() -> dict[str, assets.Asset]:
    return {one.name.lower(): one for one in assets.list_assets("data") if one.path}


def _file(path: Path, column: str | None) -> Iterator[str]:
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise InputError(f"{path} is not read as texts; give a file that ends in {', '.join(SUFFIXES)}")
    try:
        check_regular(path)
        if kind in PLAIN:
            whole = path.read_text(encoding=ENCODING)
            yield from whole.split(BREAK if BREAK in whole else "\n\n")
        elif kind == ".parquet":
            yield from _column(_parquet(path), column, path)
        elif kind == ".csv":
            with path.open(encoding=ENCODING, newline="") as file, _long_fields():
                yield from _column(csv.DictReader(file), column, path)
        elif kind == ".jsonl":
            with path.open(encoding=ENCODING) as file:
                yield from _column(_lines(file), column, path)
        else:
            yield from _column(_rows(parse_json(path.read_text(encoding=ENCODING)), column, path), column, path)
    except (OSError, ValueError, TypeError, csv.Error) as error:
        if isinstance(error, AttractorError):
            raise
        also = "; rows one a line are a .jsonl file" if kind == ".json" and "Extra data" in str(error) else ""
        raise InputError(f"{path} cannot be read as texts: {error}{also}") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the limit of the csv module for the length of a cell, which is global."""
    usual = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


def _lines(file: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield parse_json(line)
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON ({error})") from None


def _rows(document: Any, column: str | None, path: Path) -> list[Any]:
    """The rows of a JSON document: a list, or an object whose column is a text or a list of texts."""
    if isinstance(document, list):
        return document
    if isinstance(document, dict):
        name = column or _usual(document)
        part = document.get(name) if name is not None else None
        if isinstance(part, str):
            return [part]
        if isinstance(part, list) and all(isinstance(text, str) or text is None for text in part):
            return part
        raise InputError(
            f"{path} holds an object with {_some(document)}, and no texts under {name or ', '.join(COLUMNS)}; give a list of "
            "texts or of rows, or name the key of a list of texts with column=..."
        )
    raise InputError(f"{path} holds {_kind(document)}, not a list of texts or of rows")


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
        yield from batch.to_pylist()


def _column(rows: Iterable[Any], column: str | None, where: str | Path) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, str) or row is None:
            yield row or ""
            continue
        if not isinstance(row, dict):
            raise InputError(f"row {number} of {where} is {_kind(row)}, neither a text nor a row with columns")
        name = column or _usual(row)
        if name is None or name not in row:
            raise InputError(
                f"row {number} of {where} has no column {name or 'of texts'}; its columns are {_some(row)}: choose one with column=..."
            )
        text = row[name]
        if not isinstance(text, str) and text is not None:
            raise InputError(f"row {number} of {where} has {_kind(text)} in its column {name}, not a text")
        yield text or ""


def _usual(row: dict[Any, Any]) -> str | None:
    return next((each for each in COLUMNS if each in row), None)


def _kind(value: Any) -> str:
    words = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return words.get(type(value), f"a {type(value).__name__}")


def _some(row: dict[Any, Any]) -> str:
    """The first names of columns; cells beyond the header have None."""
    return ", ".join(str(name) for name in list(row)[:8] if name is not None) or "none"


def _named(name: str, column: str | None, split: str) -> Iterator[str]:
    if name.lower() in _assets():
        return _file(assets.fetch(name), column)
    if Path(name).suffix.lower() in SUFFIXES or name.startswith((".", "/", "~")):
        raise InputError(f"there is no file {name}")
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise missing("the datasets library", "data") from None
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        return _column(rows, column, name)
    except AttractorError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise CheckpointError(
            f"{name!r} is no file here, no asset of attractor fetch, and the datasets library could not load it: {reason}"
        ) from None


HALF = (0.5, 0.5, 0.5)


def read_image(checkpoint: Checkpoint, path: str | Path) -> dict[str, Tensor]:
    """Read an image as ``pixel_values`` (1, channels, height, width), resized and normalised for the model."""
    size = getattr(checkpoint.config, "image_size", None)
    if size is None:
        raise UnsupportedError(
            f"{checkpoint.name} is a model of text (family {checkpoint.family.name}) and reads no images; give a text"
        )
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise missing("pillow", "plot") from None
    settings = _settings(checkpoint)
    try:
        with Image.open(Path(path).expanduser()) as stored:
            image = _resize(stored.convert("RGB"), settings, size)
    except FileNotFoundError:
        raise InputError(f"there is no image {path}") from None
    except (UnidentifiedImageError, OSError) as error:
        raise InputError(f"{path} is no image that can be read: {error}") from None
    values = np.asarray(image, dtype=np.float64) * settings.get("rescale_factor", 1 / 255)
    mean, spread = (np.array(settings.get(name, HALF)) for name in ("image_mean", "image_std"))
    pixels = torch.from_numpy((values - mean) / spread).permute(2, 0, 1).float()
    if checkpoint.config.num_channels == 1:
        pixels = pixels.mean(0, keepdim=True)
    return {"pixel_values": pixels.unsqueeze(0)}


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    file = Path(checkpoint.tensors.describe()) / "preprocessor_config.json"
    try:
        return read_json(file) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read as JSON: {error}") from None


def _resize(image: Any, settings: dict[str, Any], wanted: int | tuple[int, int]) -> Any:
    """Resize to the model's size, or on the shorter side followed by a crop, as the settings say."""
    high, wide = (wanted, wanted) if isinstance(wanted, int) else wanted
    resample = settings.get("resample", 2)
    size = settings.get("size")
    shorter = size.get("shortest_edge") if isinstance(size, dict) else None
    if shorter is None or "crop_size" not in settings:
        return image.resize((wide, high), resample)
    scale = max(shorter, high, wide) / min(image.size)
    image = image.resize((max(wide, round(image.width * scale)), max(high, round(image.height * scale))), resample)
    left, top = (image.width - wide) // 2, (image.height - high) // 2
    return image.crop((left, top, left + wide, top + high))


@dataclass(frozen=True)
class Prompts:
    """Arguments of the model for every prompt, and a name for each."""

    inputs: tuple[dict[str, Tensor], ...]
    names: tuple[str, ...]
    tokenizer: Any = None
    notes: tuple[str, ...] = ()


def read_prompts(
    checkpoint: Checkpoint,
    given: Sequence[Any],
    random: int,
    tokens: int,
    seed: int,
    tokenizer: Any,
    most: int | None,
    words: bool,
) -> Prompts:
    """Read given prompts and draw random ones; ``words`` loads a tokenizer for decoding too, if there is one."""
    if not given and random < 1:
        raise InputError("there is nothing to iterate: give a prompt, or ask for random_prompts=...")
    if isinstance(given, str):
        given = [given]
    if getattr(checkpoint.config, "image_size", None) is not None and any(not isinstance(one, dict) for one in given):
        raise InputError(f"{checkpoint.name} is a model of images and reads no text: ask for random_prompts=...")
    own = tokenizer is None
    if any(isinstance(text, str) for text in given) and tokenizer is None:
        tokenizer = load_tokenizer(checkpoint)
    elif words and tokenizer is None:
        try:
            tokenizer = load_tokenizer(checkpoint)
        except AttractorError:
            tokenizer = None  # token ids are shown instead
    inputs, names = [], []
    notes = tokenizer_notes(checkpoint) if own and tokenizer is not None else ()
    for number, text in enumerate(given, 1):
        if isinstance(text, dict):
            inputs.append(text)
            names.append("tensors")
            continue
        which = f"prompt {number}: " if len(given) > 1 else ""
        if isinstance(text, str) and not text.strip():
            raise InputError(f"{which}a prompt is empty; give at least two tokens")
        try:
            ids, _ = tokenize(checkpoint, text, tokenizer, most)
        except InputError as error:
            raise InputError(f"{which}{error}") from None
        inputs.append({"input_ids": ids.unsqueeze(0)})
        names.append(text if isinstance(text, str) else " ".join(str(int(index)) for index in ids))
    for index in range(random):
        inputs.append(_draw_prompt(checkpoint, tokens, seed + index))
        names.append(f"random {index}")
    return Prompts(tuple(inputs), tuple(names), tokenizer, notes)


def _draw_prompt(checkpoint: Checkpoint, tokens: int, seed: int) -> dict[str, Tensor]:
    """Uniform token ids, or an image of noise for a vision model."""
    draw, config = torch.Generator().manual_seed(seed), checkpoint.config
    size, words = getattr(config, "image_size", None), getattr(config, "vocab_size", None)
    if size is not None:
        sides = (size, size) if isinstance(size, int) else tuple(size)
        return {"pixel_values": torch.randn(1, config.num_channels, *sides, generator=draw, dtype=torch.float64)}
    if words is None:
        raise UnsupportedError(f"{checkpoint.name} reads neither words nor images; give its own inputs")
    longest = context_length(config)
    if tokens < 2 or (longest is not None and tokens > longest):
        raise InputError(f"prompt_tokens must lie between 2 and the model's context {longest}, got {tokens}")
    return {"input_ids": torch.randint(words, (1, tokens), generator=draw)}
