"""A scene refuses what cannot be drawn, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.plotting import Scene
from attractor.plotting.preparation import prepare

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


def test_bands_of_an_ensemble(tmp_path: Path) -> None:
    """The middle 90% of the members around the curves of one, in the figure and in the page."""
    law, tokens = at.Attention.isotropic(3, 4.0), at.Tokens.uniform(8, 3, seed=2, ensemble=12)
    run = at.flow(law, tokens, space="sphere", until=5.0, save=20)
    scene = run.scene(member=3, curves=("consensus_gap", "clusters"))
    values = run.observe("consensus_gap").double()
    assert np.allclose(scene.bands["consensus gap"], np.quantile(values.numpy(), [0.05, 0.95], axis=1))
    assert np.allclose(scene.curves["consensus gap"], values[:, 3])
    assert "middle 90% of 12" in scene.caption
    figure = run.plot(member=3, curves=("consensus_gap",))
    assert sum(len(axes.collections) > 0 for axes in figure.axes)
    page = run.plot(tmp_path / "run.html", member=3)
    assert "members of consensus gap" in Path(page).read_text(encoding="utf-8")
    assert not run.member(3).scene().bands
    assert not run.scene(clock="arc_length").bands
    with pytest.raises(InputError, match="lower and upper ends"):
        replace(scene, bands={"clusters": np.zeros(3)})


def test_bands_follow_the_times_that_are_drawn() -> None:
    """Times after a blow-up are left out of curves and bands alike."""
    points = np.ones((3, 2, 2))
    points[2] = np.inf
    bands = {"a": np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]])}
    scene = Scene(np.arange(3.0), points, np.ones(2), curves={"a": np.arange(3.0)}, bands=bands)
    drawn = prepare(scene, tokens=2).scene
    assert drawn.bands["a"].tolist() == [[0.0, 1.0], [1.0, 2.0]]
