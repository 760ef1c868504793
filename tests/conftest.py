"""What all tests share: the oracles on the path, hypothesis without clocks or chance, and a browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; its 3-D runs in software, and it calls nobody by itself."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed")
    flags = [
        "--no-sandbox",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
        "--disable-background-networking",
    ]
    with driver.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=[*flags, "--no-first-run"])
        yield opened
        opened.close()
