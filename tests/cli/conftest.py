"""The command line inside this process, in a folder with files to read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attractor.cli.main import run


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1  # one object on one line, nothing else
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


Command = Callable[[str], Done]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run ``attractor ...``, one word for each part between spaces."""

    def call(line: str) -> Done:
        code = run(line.split())
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return call


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with arrays in it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(7)
    arrays = {
        "tokens": rng.standard_normal((6, 4)),
        "ensemble": rng.standard_normal((2, 6, 4)),
        "query": rng.standard_normal((2, 3, 4)) / 2,
        "key": rng.standard_normal((2, 3, 4)) / 2,
        "value": rng.standard_normal((2, 4, 4)) / 4,
        "narrow": rng.standard_normal((2, 2, 4)) / 4,
        "projection": rng.standard_normal((2, 4, 2)) / 4,
        "head_bias": rng.standard_normal((2, 3)) / 4,
        "value_bias": rng.standard_normal((2, 2)) / 4,
        "output_bias": rng.standard_normal(4) / 4,
        "masses": rng.random(6),
        "places": np.arange(6.0)[::-1].copy(),
        "table": rng.standard_normal((6, 4)) / 4,
        "mask": np.tril(np.ones((6, 6), dtype=bool)),
        "W": np.diag([1.0, 2.0, 3.0, 4.0]),
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.savetxt("tokens.csv", arrays["tokens"], delimiter=",")
    torch.manual_seed(0)
    return tmp_path
