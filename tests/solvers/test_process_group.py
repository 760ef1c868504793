"""Several processes share a run: the same result on each as in one alone, and one clear end when a process is lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import attractor as at
from attractor.engines import distributed, fused
from attractor.errors import InputError, UnsupportedError
from attractor.solvers import shared_memory

pytest.importorskip("zarr")
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed"),
    pytest.mark.skipif(sys.platform == "win32", reason="torchrun and gloo are tried on Unix only"),
]
HERE = Path(__file__).parent
SECONDS = 250
MEMORY = hasattr(os, "posix_fallocate") and shared_memory.MEMORY.is_dir()  # whether processes can share any


def torchrun(script: str, *arguments: Any, **more: str) -> subprocess.CompletedProcess[str]:
    """Two processes of one thread each."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", **more}
    return subprocess.run(
        [*launcher, str(HERE / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        check=False,
    )


def shared_files() -> set[Path]:
    """Files of shared memory that still have a name."""
    return set(shared_memory.MEMORY.glob("attractor-*"))


def nothing_left(before: set[Path]) -> None:
    end = time.monotonic() + 10.0  # another test may be about to take the name off its own
    while not shared_files() <= before:
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared")
    before = shared_files()
    done = torchrun("shared_runs.py", folder)
    assert done.returncode == 0, done.stderr
    nothing_left(before)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What the ranks wrote down."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_every_shared_run_is_the_run_of_one_process(found: list[dict[str, Any]]) -> None:
    for name, case in found[0]["cases"].items():
        alone, shared = case["outcomes"]
        assert shared == alone, name
        assert case["steps"][0] == case["steps"][1], name
        assert case["processes"] == [1, 2], name
        assert case["difference"] <= (1e-6 if name == "float32" else 2e-14), name
        assert (case["exchanges"] + case["shared"] > 0) == (name not in ("kernel linear", "a Gaussian")), name


def test_all_ranks_return_the_same(found: list[dict[str, Any]]) -> None:
    for name, case in found[0]["cases"].items():
        other = found[1]["cases"][name]
        assert [case["digest"], case["seconds"]] == [other["digest"], other["seconds"]], name


def test_large_runs_have_the_bits_of_one_process(found: list[dict[str, Any]]) -> None:
    if fused.reason:
        pytest.skip(fused.reason)
    apart = not MEMORY
    for name, exchanged in {"large": apart, "larger": apart, "large, apart": True, "large, causal": True}.items():
        case = found[0]["cases"][name]
        assert case["difference"] == 0.0, name
        assert (case["exchanges"] > 0, case["shared"] > 0) == (exchanged, not exchanged), name


def test_stores(found: list[dict[str, Any]], folder: Path) -> None:
    for rank in found:
        assert rank["stopped"] == ["budget", "unfinished"]
        assert rank["resumed"] == ["reached", True, 2]
        assert rank["budget"] == "the budget of 1e-09 seconds was spent"
    alone = at.resume(folder / "part")
    whole = torch.tensor(found[0]["whole"], dtype=torch.float64)
    torch.testing.assert_close(alone.points, whole, rtol=0, atol=2e-14)


def test_a_failure_on_one_rank_ends_all(found: list[dict[str, Any]]) -> None:
    first, second = found
    assert first["raise on 0"] == second["raise on 1"] == ["ValueError", "out of cheese"]
    assert first["raise on 1"] == ["RankError", "rank 1 failed: out of cheese"]
    assert second["raise on 0"] == ["RankError", "rank 0 failed: out of cheese"]
    for name in ("raise at shared memory", "raise before shared memory"):
        assert second[name] == ["ValueError", "out of cheese"]
        assert first[name] == ["RankError", "rank 1 failed: out of cheese"]
    assert first["store exists"][0] == "StoreError"
    assert second["store exists"] == ["RankError", f"rank 0 failed: {first['store exists'][1]}"]
    assert second["bad on 1"][0] == "InputError"
    assert first["bad on 1"] == ["RankError", f"rank 1 failed: {second['bad on 1'][1]}"]
    lost = "a process of this run was lost: {}; there is no store to resume it from"
    assert first["asleep"] == ["RankError", lost.format("no answer in 1 seconds (ATTRACTOR_TIMEOUT)")]
    assert second["asleep"] == ["RankError", lost.format("the connection was closed")]
    assert first["asleep at shared memory"] == ["RankError", lost.format("no answer in 1 seconds (ATTRACTOR_TIMEOUT)")]
    assert second["asleep at shared memory"] == ["RankError", lost.format("the connection was closed")]


def test_after_a_failure_the_ranks_meet_again(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["afterwards"]["processes"] == [1, 2]
        assert rank["afterwards"]["difference"] <= 2e-14


@pytest.mark.parametrize(
    ("what", "part"), [("other tokens", "state"), ("other size", "state"), ("other options", "options")]
)
def test_ranks_must_be_given_the_same(found: list[dict[str, Any]], what: str, part: str) -> None:
    for rank in found:
        name, words = rank[what]
        assert name == "InputError"
        assert f"the {part} of rank 1 and of rank 0 differ" in words


def test_what_else_is_refused(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["other law"][0] == "RankError"
        assert "no longer hold the same state" in rank["other law"][1]
        assert rank["bad everywhere"] == ["InputError", "until = -1 is not after the start at t = 0"]
        assert rank["gradient"][0] == "UnsupportedError"
        assert rank["variable"] == ["InputError", "ATTRACTOR_TIMEOUT must be a positive number of seconds, got 'soon'"]


def test_gradients_stay_with_their_process(found: list[dict[str, Any]]) -> None:
    assert [rank["own gradient"] for rank in found] == [[1, 4, True], [1, 5, True]]


@pytest.mark.parametrize("when", ["before the pairs", "among the pairs"])
def test_a_rank_killed_at_the_shared_memory(tmp_path: Path, when: str) -> None:
    if fused.reason or not MEMORY:
        pytest.skip(fused.reason or "there is no memory for processes to share")
    path = tmp_path / "run"
    options = ["--tokens", "6000", "--dim", "3", "--beta", "9", "--space", "sphere", "--until", "1", "--merge", "off"]
    before = shared_files()
    done = torchrun("killed_run.py", "simulate", *options, "--engine", "fused", "--out", path, WHEN=when)
    assert done.returncode == 1
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("attractor")]
    assert sentence.startswith("attractor simulate: error: ")
    assert sentence.endswith(f"; resume it from the store {path}")
    assert "lost" in sentence
    assert at.load(path).outcome.name == "unfinished"
    nothing_left(before)


def test_a_killed_rank_leaves_one_sentence_and_a_store(tmp_path: Path) -> None:
    path = tmp_path / "run"
    options = ["--tokens", "24", "--dim", "3", "--beta", "4", "--space", "sphere", "--until", "5", "--save", "20"]
    done = torchrun("killed_run.py", "simulate", *options, "--out", path)
    assert done.returncode == 1
    assert done.stdout == ""
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("attractor")]
    assert sentence.startswith("attractor simulate: error: ")
    assert sentence.endswith(f"; resume it from the store {path}")
    assert "lost" in sentence
    assert at.load(path).outcome.name == "unfinished"
    assert at.load(path).stats.accepted > 0
    resumed = at.resume(path)
    whole = at.flow(
        at.Attention.isotropic(3, 4.0), at.Tokens.uniform(24, 3, seed=0), space=at.Sphere(), until=5.0, save=20
    )
    assert resumed.stats.evaluations == whole.stats.evaluations
    torch.testing.assert_close(resumed.points, whole.points, rtol=0, atol=1e-13)


STOP = """
import os, signal, sys
from attractor.cli import main
from attractor.solvers.steppers.stepper import Field

velocity, calls = Field.velocity, []

def stopping(self, t, x):
    calls.append(1)
    if os.environ["RANK"] == os.environ["STOP"] and len(calls) == 100:
        os.kill(os.getpid(), signal.SIGSTOP)
    return velocity(self, t, x)

Field.velocity = stopping
main.main(sys.argv[1:])
"""


@pytest.mark.parametrize("stop", [0, 1])  # rank 0 has the key-value store too
def test_a_stopped_rank_is_given_up(tmp_path: Path, stop: int) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = str(door.getsockname()[1])
    told = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ATTRACTOR_TIMEOUT": "3"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STOP": str(stop), **told}
    options = ["--tokens", "24", "--space", "sphere", "--until", "5", "--merge", "off", "--out", str(tmp_path / "run")]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", STOP, "simulate", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    try:
        _, stderr = ranks[1 - stop].communicate(timeout=90)
    finally:
        for rank in ranks:
            rank.kill()
        ranks[stop].communicate()
    assert ranks[1 - stop].returncode == 1
    (sentence,) = [line for line in stderr.splitlines() if line.startswith("attractor")]
    assert "a process of this run was lost: no answer in 3 seconds (ATTRACTOR_TIMEOUT); resume it from" in sentence


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
print("held", flush=True)
time.sleep(100)
"""


@pytest.mark.skipif(not MEMORY, reason="there is no memory for processes to share")
def test_a_killed_process_is_seen_by_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(bytes(8))
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    file = os.open(path, os.O_RDWR)
    monitor = shared_memory.ProcessMonitor(file, 0, 2, 50.0)
    try:
        monitor.lock()
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert monitor(0.1)
        with pytest.raises(TimeoutError):
            monitor(51.0)
        other.kill()
        end = time.monotonic() + 10.0
        while monitor(0.1):  # before the process is waited for, as under torchrun
            assert time.monotonic() < end
    finally:
        other.kill()
        other.communicate()
        monitor.close()
    assert not monitor(0.1)
    monitor.close()


def test_the_command_line_prints_once(tmp_path: Path) -> None:
    done = torchrun("printed_once.py", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert json.loads(first)["stats"]["processes"] == 2
    assert [line for line in rest if line.startswith("Reached at t = 1")] == rest[:1]
    assert sum("on 2 processes" in line for line in rest) == 1
    complaints = [line for line in done.stderr.splitlines() if line.startswith("attractor")]
    assert len(complaints) == 3, complaints
    codes = sorted(line for line in done.stderr.splitlines() if line.startswith("exit code"))
    assert codes == ["exit code 0"] * 4 + ["exit code 2"] * 6


def test_one_process_alone() -> None:
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3, seed=0)
    assert at.flow(law, tokens, until=0.1, distributed=True).stats.processes == 1
    with pytest.raises(InputError, match="distributed must be True, False or None, got 2"):
        at.flow(law, tokens, until=0.1, distributed=2)  # type: ignore[arg-type]
    leaf = at.Attention(torch.eye(3), torch.eye(3), torch.eye(3).requires_grad_())
    with pytest.raises(UnsupportedError, match="gradients do not flow between processes"):
        at.flow(leaf, tokens, until=0.1, distributed=True)
    assert not distributed.is_active()
