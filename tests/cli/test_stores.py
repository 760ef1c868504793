"""Runs that are stored, interrupted and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at

pytest.importorskip("zarr")
Command = Callable[[str], Any]
RUN = "simulate --tokens 16 --beta 4 --space sphere --until 100 --merge 1e-3"


def test_a_run_streams_into_a_store(command: Command, folder: Path) -> None:
    done = command(f"{RUN} --out deep/run.zarr")
    assert done.code == 0, done.err
    assert "store    deep/run.zarr" in done.out
    assert "--out" not in done.out  # the same command again could not make the store anew
    run = at.load("deep/run.zarr")
    direct = at.flow(
        at.Attention.isotropic(3, 4.0), at.Tokens.uniform(16, 3), space=at.Sphere(), until=100.0, merge=1e-3
    )
    assert torch.equal(run.points, direct.points)


def test_a_store_is_never_overwritten(command: Command, folder: Path) -> None:
    assert command(f"{RUN} --out run.zarr -q").code == 0
    again = command(f"{RUN} --out run.zarr")
    assert again.code == 2
    assert again.err.count("\n") == 1
    assert "--resume run.zarr" in again.err


def test_a_budget_is_resumed_to_the_same_end(command: Command, folder: Path) -> None:
    whole = command(f"{RUN} --json").json
    part = command(f"{RUN} --out run.zarr --max-evaluations 60")
    assert part.out.startswith("Budget at t = ")
    assert "continue  attractor simulate --resume run.zarr" in part.out
    rest = command("simulate --resume run.zarr --json --observe diameter --plot run.png").json
    assert rest["outcome"] == whole["outcome"]
    assert rest["events"] == whole["events"]
    assert rest["observables"]["clusters"] == whole["observables"]["clusters"]
    assert rest["arguments"]["resume"] == "run.zarr"
    assert rest["arguments"]["until"] == 100.0
    assert rest["outputs"] == {"store": "run.zarr", "figures": ["run.png"], "report": None, "files": []}
    assert Path("run.png").exists()


def test_a_resumed_run_may_have_a_budget_again(command: Command, folder: Path) -> None:
    command(f"{RUN} --out run.zarr --max-evaluations 60")
    more = command("simulate --resume run.zarr --max-evaluations 30 --max-seconds 100 --no-progress --json").json
    assert more["outcome"]["name"] == "budget"


def test_what_is_no_store_cannot_be_resumed(command: Command, folder: Path) -> None:
    for path, code in (("absent.zarr", 2), (".", 2), ("tokens.npy", 2)):
        done = command(f"simulate --resume {path}")
        assert done.code == code
        assert done.out == ""
        assert done.err.count("\n") == 1


def test_an_interrupted_run_without_a_store(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*anything: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["attractor.solvers"], "flow", stopped)
    done = command("simulate")
    assert done.code == 130
    assert done.err.count("\n") == 1
    assert "nothing was kept (a run with --out PATH can be resumed)" in done.err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_an_interrupted_run_says_how_to_go_on(command: Command, folder: Path) -> None:
    line = "simulate --tokens 200 --beta 81 --mask causal --space sphere --until 1e12 --out run.zarr"
    process = subprocess.Popen(
        [sys.executable, "-m", "attractor", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # where the tests run in the background of a shell the signal is ignored, and a child would ignore it too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    first = Path("run.zarr/checkpoint.npz")  # a store is created with an empty one
    while (
        not (first.exists() and first.stat().st_size > 200) and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err == "attractor simulate: error: interrupted; continue with: attractor simulate --resume run.zarr\n"
    assert command("simulate --resume run.zarr --max-evaluations 20 --json").json["stats"]["evaluations"] > 20
