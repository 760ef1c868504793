"""What all tests share: the oracles on the path, hypothesis without clocks or chance, and a browser."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from attractor.engines import fused

sys.path.insert(0, str(Path(__file__).parent))  # `from oracles import ...` under --import-mode=importlib

settings.register_profile("attractor", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("attractor")


FUZZ_SEED = 20261118


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the fuzz programs in tests/fuzz."""
    group = parser.getgroup("fuzz")
    group.addoption("--fuzz", action="store_true", help="run the long setting of the fuzz programs")
    group.addoption("--fuzz-seed", type=int, default=FUZZ_SEED, help="seed of the first case")
    group.addoption("--fuzz-cases", type=int, default=None, help="number of cases of each program")
    parser.getgroup("package").addoption(
        "--wheel", help="install this wheel into empty environments, with and without extras"
    )


@dataclass(frozen=True)
class Fuzz:
    """Setting of the fuzz programs: small in the test suite, long by ``make fuzz``."""

    long: bool
    seed: int
    cases: int | None

    def seeds(self, small: int, long: int) -> range:
        """Seeds of the cases: ``small`` many in the test suite, ``long`` many with ``--fuzz``; ``--fuzz-cases`` overrides."""
        count = self.cases if self.cases is not None else long if self.long else small
        return range(self.seed, self.seed + count)


@pytest.fixture
def fuzz(request: pytest.FixtureRequest) -> Fuzz:
    """The seeds that a fuzz program runs through; a failure names the seed of its case."""
    option = request.config.getoption
    return Fuzz(option("--fuzz"), option("--fuzz-seed"), option("--fuzz-cases"))


@pytest.fixture(autouse=True)
def unlimited_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """No width of a terminal from the environment, so that no sentence is wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)


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
