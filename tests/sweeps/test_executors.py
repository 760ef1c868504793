"""Ray and submitit compute the same tables as processes of this machine, also where a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import attractor as at
from attractor.errors import AttractorError, InputError, UnsupportedError
from attractor.sweeps import Local, Ray, Slurm, sweep

OVER = {"beta": at.grid(0.5, 9.0, 8), "dim": [2, 3]}


def isotropic(beta: float, dim: int, seed: int, starts: int) -> Any:
    return at.Attention.isotropic(dim, beta), at.Tokens.uniform(16, dim, seed=seed, ensemble=starts), at.Sphere()


def table(folder: Path, executor: Any) -> bytes:
    found = sweep(
        isotropic, OVER, starts=8, observe=["clusters", "first_merge"], until=10.0, folder=folder, executor=executor
    )
    assert not found.failed
    return (folder / "table.parquet").read_bytes()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return table(tmp_path_factory.mktemp("local") / "cells", Local(1))


@pytest.mark.slow
def test_submitit(expected: bytes, tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    assert table(tmp_path / "cells", Slurm(concurrency=2, jobs=2, cluster="local")) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray
def test_ray_with_a_killed_worker(expected: bytes, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")

    def kill() -> None:
        limit, killed = time.monotonic() + 120, False
        while time.monotonic() < limit and not killed:
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    words = (process / "cmdline").read_bytes()
                    owner = (process / "environ").read_bytes()
                except OSError:
                    continue
                if words.startswith(b"ray::_run_remote") and f"SWEEP_TEST={os.getpid()}".encode() in owner:
                    os.kill(int(process.name), signal.SIGKILL)
                    killed = True
                    break
            time.sleep(0.01)

    os.environ["SWEEP_TEST"] = str(os.getpid())
    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        assert table(tmp_path / "cells", Ray(processes=2)) == expected
    finally:
        del os.environ["SWEEP_TEST"]
        ray.shutdown()


def test_places_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="no command sbatch"):
        table(tmp_path / "a", Slurm())
    assert not (tmp_path / "a").exists()
    with pytest.raises(AttractorError, match=r"no Ray cluster answers at 127\.0\.0\.1:1|needs ray"):
        table(tmp_path / "a", Ray("127.0.0.1:1"))
    with pytest.raises(InputError, match="executor is"):
        table(tmp_path / "a", 3)
