"""What all tests share: the oracles on the path, and hypothesis without clocks or chance."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from attractor.engines import fused

sys.path.insert(0, str(Path(__file__).parent))  # `from oracles import ...` under --import-mode=importlib

settings.register_profile("attractor", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("attractor")


@pytest.fixture
def rng() -> np.random.Generator:
    """One seed for every test, so that a failure can be met again."""
    return np.random.default_rng(20260101)


@pytest.fixture(params=["reference", "blockwise", "fused"])
def engine(request: pytest.FixtureRequest) -> str:
    """Every engine of the CPU."""
    if request.param == "fused" and fused.reason:
        pytest.skip(fused.reason)
    return request.param
