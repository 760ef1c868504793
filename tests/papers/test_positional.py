"""Positional encodings and collapse: absolute, rotary, and causal masks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import attractor as at
from attractor.papers import Data, find_figure
from attractor.papers.positions import replace_query


@pytest.fixture(scope="module")
def study() -> Data:
    names = ("none", "absolute, once", "absolute, every layer", "rotary, orthogonal query", "causal", "causal, rotary")
    return find_figure("positions").reproduce({"systems": 4, "until": 60.0, "phase": 0, "encodings": names})


@pytest.mark.theorem
def test_what_the_theorems_promise(study: Data) -> None:
    """T1 without positions, once, and at every layer (to -p); T8 under a causal mask."""
    found = {row["name"]: row["counts"] for row in study["encodings"]}
    for name in ("none", "absolute, once", "absolute, every layer", "causal", "causal, rotary"):
        assert found[name]["collapse"] == 4, name


def test_rotary_positions_stop_the_collapse(study: Data) -> None:
    found = {row["name"]: row["counts"] for row in study["encodings"]}
    assert found["rotary, orthogonal query"]["collapse"] < 4


@pytest.mark.theorem
def test_the_rotary_equilibrium() -> None:
    """D = 2, W = I, V = -I, half a turn per position: (a, -a) rests with rotary positions and moves without."""
    eye, points = torch.eye(2, dtype=torch.float64), torch.tensor([[1.2, 0.5], [-1.2, -0.5]], dtype=torch.float64)
    tokens = at.Tokens(points, positions=torch.tensor([0.0, math.pi], dtype=torch.float64))
    turned = at.Attention(eye, eye, -eye, positions=at.Rotary())
    assert float(at.velocity(turned, tokens).norm()) < 1e-12
    assert float(at.velocity(at.Attention(eye, eye, -eye), tokens).norm()) > 0.5


def test_another_split_has_the_same_interaction(rng) -> None:
    law = at.Attention.random(4, 1)
    query = torch.from_numpy(rng.standard_normal((1, 4, 4)))
    torch.testing.assert_close(replace_query(law, query).interaction, law.interaction)


def test_the_figure(study: Data, tmp_path: Path) -> None:
    (path,) = find_figure("positions").draw(study, tmp_path / "study.png")
    assert path.stat().st_size > 10_000
    with pytest.raises(at.errors.InputError, match="written as"):
        find_figure("positions").draw(study, tmp_path / "study.gif")
