"""An iteration in a file, so that a long one can be interrupted and continued; arrays and JSON, nothing that runs.

A stored run is known by its weights and by what it was given, not by names: both are kept as digests of all their bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, StoreError
from attractor.pictures.writing import atomic

DIGESTS = ("weights", "inputs")
TOLD = ("model", "prompts", "lengths")  # a digest stands for each of these


@dataclass(frozen=True)
class Saved:
    """The state after ``done`` passes."""

    definition: dict[str, Any]
    done: int
    states: list[Tensor]
    curves: dict[str, np.ndarray]
    normed: list[list[float]]
    by_layer: list[list[float]]
    texts: dict[int, tuple[str, ...]]
    reader: str | None = None
    asked: dict[str, Any] | None = None  # in the words of whoever began the run


def save(path: Path, saved: Saved) -> None:
    """Write the state, whole or not at all."""
    head = {"definition": saved.definition, "done": saved.done, "texts": list(saved.texts.items())}
    head |= {"reader": saved.reader, "asked": saved.asked}
    arrays = {f"state_{index}": x.double().numpy() for index, x in enumerate(saved.states)}
    arrays |= {f"curve_{name}": rows for name, rows in saved.curves.items()}
    arrays |= {"head": np.array(json.dumps(head)), "normed": np.array(saved.normed), "layers": np.array(saved.by_layer)}
    with atomic(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def load_saved(path: Path | None, definition: dict[str, Any]) -> Saved:
    """The state in a file, if it is one of this very run."""
    if path is None or not path.is_file():
        raise InputError(
            f"there is no stored run {path or ''} to go on with; leave resume=... out to begin one".replace("  ", " ")
        )
    with _read(path):
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        head = json.loads(str(arrays.pop("head")))
        states = [torch.from_numpy(arrays[f"state_{index}"]) for index in range(len(head["definition"]["prompts"]))]
        curves = {name.removeprefix("curve_"): rows for name, rows in arrays.items() if name.startswith("curve_")}
        found = Saved(
            head["definition"], int(head["done"]), states, curves, arrays["normed"].tolist(), arrays["layers"].tolist(),
            {int(k): tuple(texts) for k, texts in head["texts"]}, head.get("reader"), head.get("asked"),
        )  # fmt: skip
    _refuse_another(path, found.definition, definition)
    return found


def request(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a stored run was asked for, in the words of whoever began it (nothing if an earlier version did), and its definition."""
    with _read(path), path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
        head = json.loads(str(stored["head"]))
        return dict(head.get("asked") or {}), dict(head["definition"])


@contextmanager
def _read(path: Path) -> Iterator[None]:
    """One sentence about a file that holds no iteration."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
        reason = "it is damaged, or something else" if "pickle" in str(error) else str(error)
        raise StoreError(f"{path} is no stored iteration that can be read: {reason}") from None


def digest(named: Iterable[tuple[str, Tensor]]) -> str:
    """What tells tensors apart: a digest of their names, shapes, dtypes and all bytes."""
    found = hashlib.sha256()
    for name, part in named:
        found.update(f"{name} {tuple(part.shape)} {part.dtype}".encode())
        found.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _refuse_another(path: Path, stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """One sentence where a file holds another run; names of models and prompts are only told, digests decide."""
    differing = [name for name in asked if name not in TOLD and stored.get(name) != asked[name]]
    if not differing:
        return
    words = [f"its {name} is {stored.get(name)!r}, not {asked[name]!r}" for name in differing if name not in DIGESTS]
    if "weights" in differing and (not words or stored.get("model") != asked["model"]):  # a seed draws weights too
        words.append(f"its model is {stored.get('model')!r} with other weights than those of {asked['model']!r} here")
    if "inputs" in differing and not words:
        one, other = (" and ".join(map(str, each.get("lengths", ["other"]))) for each in (stored, asked))
        words.append(f"its prompts have {one} tokens, not {other}" if one != other else "its prompts are others")
    raise InputError(f"{path} holds another run: {'; '.join(words)}; ask for that run, or give another file")
