"""A mean and a covariance: numbers on the command line, or a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attractor.cli.files import read_array
from attractor.cli.groups import numbers
from attractor.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

FILES = (".npy", ".csv", ".txt", ".safetensors")


def read_vector(text: str, option: str) -> Tensor:
    """Numbers separated by commas, or those in a file: (d)."""
    import torch

    if Path(text).suffix.lower() in FILES:
        array = read_array(Path(text), option)
        return array.reshape(-1) if array.ndim == 2 and 1 in array.shape else array
    return torch.tensor(numbers(text, option), dtype=torch.float64)


def read_matrix(text: str, option: str) -> Tensor:
    """Rows separated by semicolons, or the matrix in a file: (d, d)."""
    import torch

    if Path(text).suffix.lower() in FILES:
        return read_array(Path(text), option)
    rows = [numbers(row, option) for row in text.split(";")]
    if len({len(row) for row in rows}) != 1:
        raise InputError(f"{option} must have rows of one length, such as 1,0.5;0.5,2; got {text!r}")
    return torch.tensor(rows, dtype=torch.float64)
