"""Hidden states that were computed elsewhere: arrays, or .npy, .npz, .safetensors and Zarr files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.errors import InputError, missing
from attractor.files import check_target, write_atomic
from attractor.models.hooks import BlockStates

STATES = ("states", "hidden_states")
ATTENTIONS = ("attentions", "attention_weights")
ROW_SUM = {torch.float64: 1e-6, torch.float32: 1e-4}  # largest deviation of a row of weights from 1
HALF_ROW_SUM = 2e-2
FORMATS = ".npy, .npz, .safetensors or a Zarr folder"


@dataclass(frozen=True)
class HiddenStates:
    """Hidden states of one text.

    Attributes
    ----------
    states : residual stream before the first block and after every block, (blocks + 1, n, d).
    attentions : attention weights of each block, (h, n, n), or None for all.
    words : the tokens as strings; empty if unknown.
    name : where they come from.
    """

    states: Tensor
    attentions: tuple[Tensor, ...] | None
    words: tuple[str, ...]
    name: str

    def blocks(self) -> list[BlockStates]:
        """The states of every block."""
        weights = self.attentions or (None,) * (len(self.states) - 1)
        return [
            BlockStates(index, before, after, weights=one)
            for index, (before, after, one) in enumerate(zip(self.states, self.states[1:], weights, strict=False))
        ]


def open_hidden_states(source: Any, attentions: Any = None, words: Sequence[str] | None = None) -> HiddenStates:
    """Check hidden states and attention weights, given as arrays or as a file.

    Parameters
    ----------
    source : array (blocks + 1, n, d), a sequence of arrays (n, d) or (1, n, d), a mapping with the keys "states" and optionally
        "attentions" and "words", or a file with arrays of these names.
    attentions : attention weights (blocks, h, n, n), or a sequence of arrays (h, n, n) or (1, h, n, n).
    words : the tokens as strings.
    """
    name = str(source) if isinstance(source, (str, Path)) else "hidden states"
    parts: Mapping[str, Any] = _read_file(Path(source)) if isinstance(source, (str, Path)) else {}
    if isinstance(source, Mapping):
        parts = source
    if parts:
        source, found, listed = _choose(parts, name)
        attentions = found if attentions is None else attentions
        words = listed if words is None else words
    states = _stack_states(source, name)
    weights = None if attentions is None else _check_attentions(attentions, states)
    listed_words = tuple(map(str, words if words is not None else ()))
    if listed_words and len(listed_words) != states.shape[1]:
        raise InputError(f"{len(listed_words)} words were given for {states.shape[1]} tokens of the hidden states")
    return HiddenStates(states, weights, listed_words, name)


def _choose(parts: Mapping[str, Any], name: str) -> tuple[Any, Any, Any]:
    states = [key for key in STATES if key in parts]
    if not states and len(parts) == 1:
        states = list(parts)
    if len(states) != 1:
        raise InputError(
            f"{name} has the arrays {', '.join(map(repr, parts))}; the hidden states must be called 'states'"
        )
    weights = next((parts[key] for key in ATTENTIONS if key in parts), None)
    return parts[states[0]], weights, parts.get("words")


def _read_file(path: Path) -> dict[str, Any]:
    path = path.expanduser()
    if not path.exists():
        raise InputError(f"there is no file or folder {path}")
    try:
        if path.is_dir():
            return _read_zarr(path)
        if path.suffix in (".npy", ".npz"):
            with path.open("rb") as file:  # NumPy leaves a damaged file open
                found = np.load(file, allow_pickle=False)
                return {"states": found} if isinstance(found, np.ndarray) else {key: found[key] for key in found.files}
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as hidden states: {' '.join(str(error).split())}") from None
    raise InputError(f"{path} is not a file of hidden states; it must be {FORMATS}")


def _read_safetensors(path: Path) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise missing("safetensors", "checkpoints") from None
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _read_zarr(path: Path) -> dict[str, Any]:
    try:
        import zarr
    except ImportError:
        raise missing("zarr", "store") from None
    try:
        found = zarr.open(str(path), mode="r")
        if isinstance(found, zarr.Array):
            return {"states": np.asarray(found[...])}
        return {name: np.asarray(array[...]) for name, array in found.arrays()}
    except Exception as error:  # Zarr and its codecs have no common error
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _to_tensor(value: Any, what: str) -> Tensor:
    try:
        tensor = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be an array of numbers: {error}") from None
    if not (tensor.is_floating_point() or tensor.dtype in (torch.int32, torch.int64)):
        raise InputError(f"{what} must be an array of real numbers, not of {tensor.dtype}")
    return tensor


def _stack_states(source: Any, name: str) -> Tensor:
    """Residual stream (blocks + 1, n, d)."""
    if isinstance(source, (list, tuple)):
        rows = [_to_tensor(row, f"state {index} of {name}") for index, row in enumerate(source)]
        rows = [row[0] if row.ndim == 3 and len(row) == 1 else row for row in rows]
        shapes = list(dict.fromkeys(tuple(row.shape) for row in rows))
        if len(shapes) > 1:
            raise InputError(
                f"the states of {name} have different shapes, {shapes[0]} and {shapes[1]}; a trace needs layers of one width"
            )
        if not rows:
            raise InputError(f"{name} has no states")
        states = torch.stack(rows)
    else:
        states = _to_tensor(source, name)
    if states.ndim == 4 and states.shape[1] == 1:
        states = states[:, 0]
    if states.ndim != 3:
        raise InputError(f"{name} must have the shape (blocks + 1, tokens, d), got {tuple(states.shape)}")
    count, n, d = states.shape
    if count < 2:
        raise InputError(
            f"{name} has {count} state{'s' * (count != 1)}; a trace needs those before and after at least one block"
        )
    if n < 2 or d < 1:
        raise InputError(f"{name} has {n} token{'s' * (n != 1)} of dimension {d}; a trace needs at least two tokens")
    bad = ~torch.isfinite(states)
    if bool(bad.any()):
        layer, token, _ = (int(part) for part in bad.nonzero()[0])
        raise InputError(f"{name} is not finite at {int(bad.sum())} places, the first at state {layer}, token {token}")
    return states.double()


def _check_attentions(source: Any, states: Tensor) -> tuple[Tensor, ...]:
    """Attention weights (h, n, n) of every block."""
    count, n = len(states) - 1, states.shape[1]
    rows = source if isinstance(source, (list, tuple)) else _to_tensor(source, "the attention weights")
    if len(rows) != count:
        raise InputError(f"there are attention weights of {len(rows)} blocks, but hidden states of {count}")
    found = []
    for index, row in enumerate(rows):
        weights = _to_tensor(row, f"the attention weights of block {index}")
        weights = weights[0] if weights.ndim == 4 and len(weights) == 1 else weights
        if weights.ndim != 3 or weights.shape[-2:] != (n, n):
            raise InputError(
                f"the attention weights of block {index} must have the shape (heads, {n}, {n}), got {tuple(weights.shape)}"
            )
        tolerance, weights = ROW_SUM.get(weights.dtype, HALF_ROW_SUM), weights.double()
        if not bool((weights >= 0).all()):  # also where a weight is NaN
            raise InputError(f"the attention weights of block {index} are not all non-negative numbers")
        error = (weights.sum(-1) - 1).abs()
        if float(error.max()) > tolerance:
            head, token = divmod(int(error.argmax()), n)
            total = float(weights[head, token].sum())
            raise InputError(
                f"attention weights must sum to 1 over the keys; those of block {index}, head {head}, token {token} sum to {total:.6g}"
            )
        found.append(weights)
    return tuple(found)


def write_hidden_states(path: str | Path, states: Tensor, words: Sequence[str]) -> None:
    """Write hidden states and words to an .npz file, which ``open_hidden_states`` reads."""
    place = check_target(path)
    if place.suffix != ".npz":
        raise InputError(f"a trace is saved as an .npz file, not as {place.name}")
    with write_atomic(place) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, states=states.numpy(), words=np.array(list(words), dtype=np.str_))
