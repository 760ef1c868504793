"""An iteration in a file, so that a long one can be interrupted and continued; arrays and JSON, nothing that runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, StoreError
from attractor.pictures.writing import atomic


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


def save(path: Path, saved: Saved) -> None:
    """Write the state, whole or not at all."""
    head = {"definition": saved.definition, "done": saved.done, "texts": list(saved.texts.items())}
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
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        head = json.loads(str(arrays.pop("head")))
        states = [torch.from_numpy(arrays[f"state_{index}"]) for index in range(len(head["definition"]["prompts"]))]
        curves = {name.removeprefix("curve_"): rows for name, rows in arrays.items() if name.startswith("curve_")}
        found = Saved(
            head["definition"], int(head["done"]), states, curves, arrays["normed"].tolist(), arrays["layers"].tolist(),
            {int(k): tuple(texts) for k, texts in head["texts"]},
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is no stored iteration that can be read: {error}") from None
    other = sorted(name for name in definition if found.definition.get(name) != definition[name])
    if other:
        raise InputError(f"{path} holds another run: its {', '.join(other)} differ from what is asked for")
    return found
