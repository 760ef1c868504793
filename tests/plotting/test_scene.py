"""A scene refuses what cannot be drawn, in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attractor.errors import InputError
from attractor.plotting import Scene

SOUND: dict[str, Any] = {"times": np.arange(3.0), "points": np.ones((3, 4, 2)), "masses": np.full(4, 0.25)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"points": np.ones((4, 2))}, "points"),
        ({"points": np.ones((2, 4, 2))}, "points"),
        ({"points": np.ones((3, 0, 2))}, "points"),
        ({"points": "tokens"}, "rectangular"),
        ({"times": np.array([0.0, 1.0, np.inf])}, "finite"),
        ({"masses": np.ones(3)}, "one mass per token"),
        ({"masses": np.array([1.0, -1.0, 1.0, 1.0])}, "not negative"),
        ({"masses": np.zeros(4)}, "not all zero"),
        ({"surface": np.eye(3)}, r"\(2, 2\)"),
        ({"surface": -np.eye(2)}, "positive definite"),
        ({"curves": {"energy": np.ones(2)}}, "energy"),
    ],
)
def test_a_bad_scene_is_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        Scene(**{**SOUND, **change})
    assert "\n" not in str(refusal.value)


def test_tensors_are_welcome() -> None:
    scene = Scene(times=torch.arange(3), points=torch.ones(3, 4, 2), masses=torch.ones(4))  # pyright: ignore[reportArgumentType]
    assert scene.points.dtype == np.float64


def test_a_tensor_with_a_gradient_is_refused_clearly() -> None:
    with pytest.raises(InputError, match="points"):
        Scene(**{**SOUND, "points": torch.ones(3, 4, 2, requires_grad=True)})
