"""Two processes under ``torchrun`` against one, each with one thread."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.racing import Call, Contender, Contest, Settings, Skip

BETA, TARGET = 9.0, 1.9
REPEATS = 3  # of a program once it has started, which takes longer than a run
SECONDS = 600


def contests(settings: Settings) -> list[Contest]:
    n, until = settings.size(16384, 64), settings.size(2.0, 0.5)
    options = ["--tokens", str(n), "--beta", str(BETA), "--until", str(until), "--seed", str(settings.seed)]
    options += ["--repeats", str(settings.size(REPEATS, 1))]
    alone = cache(lambda: launch_worker([sys.executable, "-m", "benchmarks.worker"], options)["points"])
    return [
        Contest(
            group="processes",
            name=f"flow in two processes, n={n}, d=3, beta={BETA:g}, T={until:g}, one thread each",
            ours=Contender("two processes", lambda: two(options)),
            peers=(Contender("one process", lambda: one(options), TARGET),),
            error=lambda result: float(np.abs(result["points"] - alone()).max()),
            tolerance=1e-12,
            timer=reported_time,
        )
    ]


def reported_time(call: Call) -> tuple[float, Any]:
    """Seconds of the flow alone (the median of its repeats), as the process that ran it took them; starting it is not counted."""
    result = call()
    return float(result["seconds"]), result


def one(options: list[str]) -> Call:
    return lambda: launch_worker([sys.executable, "-m", "benchmarks.worker"], options)


def two(options: list[str], supported: Callable[[], bool] | None = None) -> Call:
    import torch

    if not (supported or can_shard)():
        raise Skip("this version of attractor does not shard a flow over processes")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise Skip("this PyTorch has no gloo")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        raise Skip("two processes need two cores, and this one may use one (--threads 1 asks for that)")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return lambda: launch_worker([*launch, "-m", "benchmarks.worker"], options)


def can_shard() -> bool:
    """Whether flow knows how to share its tokens out."""
    from importlib.util import find_spec

    return find_spec("attractor.engines.distributed") is not None


def launch_worker(command: list[str], options: list[str]) -> dict[str, Any]:
    """What the worker wrote."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.npz"
        line = [*command, str(file), *options]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode or not file.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RuntimeError(f"the worker ended with code {done.returncode}: {last}")
        with np.load(file, allow_pickle=False) as written:
            return {"seconds": float(written["seconds"]), "points": written["points"], "engine": str(written["engine"])}
