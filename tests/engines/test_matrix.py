"""Engines that run anywhere against the reference, over a random matrix of calls; the Triton engine has a test of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attractor.engines import dispatch


@pytest.mark.parametrize(
    ("engine", "count", "largest"), [("fused", 200, 5000), ("blockwise", 60, 1000), ("spectral", 120, 5000)]
)
def test_agreement_with_the_reference(engine: str, count: int, largest: int) -> None:
    if not dispatch._engines[engine].works:
        pytest.skip(f"the engine {engine} does not work here: {dispatch._engines[engine].reason}")
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(Path(__file__).parent / "matrix.py"),
        engine,
        str(count),
        "7",
        str(largest),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"{count} calls, 0 not for this engine, 0 failures" in done.stdout
