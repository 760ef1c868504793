"""Spaces, and a law without special structure on them, for the tests of the flow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import attractor as at

sys.path.insert(0, str(Path(__file__).parent))  # `from emulated_device import ...` under --import-mode=importlib

MATRIX = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]])
SPACES: dict[str, at.Space] = {"euclidean": at.Euclidean(), "sphere": at.Sphere(), "ellipsoid": at.Ellipsoid(MATRIX)}


@pytest.fixture(params=list(SPACES))
def space(request: pytest.FixtureRequest) -> at.Space:
    """Every space, in three dimensions."""
    return SPACES[request.param]


@pytest.fixture
def law() -> at.Attention:
    """Two heads in three dimensions: nothing is symmetric, nothing commutes; the values turn more than they stretch."""
    query, key, value = np.random.default_rng(1).standard_normal((3, 2, 3, 3))
    return at.Attention(query, key, 0.5 * (value - value.swapaxes(1, 2)) - 0.3 * np.eye(3), scale=0.5)
