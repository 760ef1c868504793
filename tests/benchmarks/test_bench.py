"""``python -m benchmarks`` from the command line to the report, at sizes that take no time."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import main as run

import attractor
from attractor.errors import InputError
from benchmarks import CPU, GPU, GROUPS, Contender, Contest, Settings, choose_rows, processes, program

KEYS = {
    "schema",
    "command",
    "finished",
    "began",
    "ended",
    "settings",
    "machine",
    "versions",
    "commit",
    "ceilings",
    "contests",
    "growth",
    "summary",
}
ENTRY = {
    "name",
    "ours",
    "status",
    "reason",
    "error",
    "tolerance",
    "note",
    "seconds",
    "median",
    "rate",
    "percent_of_limit",
    "ratio",
    "target",
    "met",
}
QUICK = ["--quick", "--rounds", "2", "--threads", "1"]


def no_number(name: str) -> Any:
    pytest.fail(f"{name} is no JSON")


def test_rows_are_chosen_by_name() -> None:
    assert choose_rows(["growth", "evaluation"]) == ("evaluation", "growth")
    assert set(CPU) | set(GPU) == set(GROUPS)
    with pytest.raises(InputError, match="'speed' is not known; the rows are evaluation"):
        choose_rows(["speed"])
    with pytest.raises(InputError, match="no rows are named"):
        choose_rows([])


def test_the_table_of_targets_is_all_there() -> None:
    """Every ratio of the target table for engines and solves has its row (audits and training steps have scripts of their own)."""
    planned = [contest for name in program.CONTESTS for contest in program.CONTESTS[name](Settings())]
    ratios: dict[str, list[float]] = {}
    for contest in planned:
        ratios.setdefault(contest.group, []).extend(one.target for one in contest.peers if one.target is not None)
    assert ratios == {
        "evaluation": [8.0, 25.0, 4.0, 4.5, 15.0, 3.5, 1.2, 1.4],
        "solves": [10.0, 15.0, 2.5] * 4,
        "small": [1.0, 2.0, 2.0],
        "gradients": [3.0, 3.0],
        "phase": [],
        "merging": [8.0],
        "stiff": [],
        "noise": [20.0, 20.0],
        "spectral": [15.0],
        "ensembles": [5.0, 5.0],
        "processes": [1.9],
        "gpu": [15.0, 27.0, 6.0, 2.0],
        "gpu_solves": [8.0, 20.0, 8.0, 20.0, 8.0, 20.0, 3.0, 3.0, 5.0, 5.0],
        "gpu_gradients": [2.0, 2.0],
        "gpu_noise": [],
        "gpu_phase": [],
    }
    assert [contest.rate for contest in planned if contest.rate is not None] == [2.5e12]
    assert [contest.tolerance for contest in planned if contest.group == "gpu"] == [2e-6, 1e-12, 5e-6]


@pytest.mark.usefixtures("no_peers")
def test_a_quick_run_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    line = [*QUICK, "--rows", "evaluation,ensembles,merging", "--out", str(file), "--plot", str(picture)]
    assert run(line) == 0
    printed = capfd.readouterr()
    assert "attractor fused" in printed.out
    assert "SDPA flash" in printed.out
    assert "JAX blockwise" in printed.out
    assert "skipped: jax" in printed.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(file.read_text(), parse_constant=no_number)
    assert set(report) == KEYS
    assert report["schema"] == "benchmarks/1"
    assert report["finished"] is True
    assert report["command"].startswith("python -m benchmarks --rows evaluation,ensembles,merging")
    assert report["settings"] | {"rounds": 2, "threads": 1, "quick": True, "seed": 0} == report["settings"]
    assert {contest["group"] for contest in report["contests"]} == {"evaluation", "ensembles", "merging"}
    assert report["versions"]["torch"]
    assert report["machine"]["cores"] >= 1
    assert report["growth"] == []
    entries = {entry["name"]: entry for entry in report["contests"][0]["contenders"]}
    assert all(set(entry) == ENTRY for entry in entries.values())
    assert entries["torch naive"]["status"] == "timed"
    assert len(entries["torch naive"]["seconds"]) == 2
    assert entries["torch naive"]["target"] == {"what": "ratio", "least": 25.0}
    assert entries["JAX blockwise"]["status"] == "skipped"
    assert "attractor[peers]" in entries["JAX blockwise"]["reason"]
    if entries["attractor fused"]["status"] == "timed":
        assert entries["attractor fused"]["error"] <= 2e-6
        assert entries["attractor fused"]["percent_of_limit"] > 0


def test_stiff_rows_agree_with_scipy(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--rows", "stiff", "--json"]) == 0
    report = json.loads(capfd.readouterr().out, parse_constant=no_number)
    for contest in report["contests"]:
        assert contest["truth"]["scipy_differs_by"] < 1e-7
        assert {entry["status"] for entry in contest["contenders"]} == {"timed"}


@pytest.mark.usefixtures("no_peers")
def test_solves_growth_and_absent_parts(capfd: pytest.CaptureFixture[str]) -> None:
    line = [*QUICK, "--rows", "solves,small,spectral,growth,gpu,gpu_solves,gpu_gradients,gpu_noise,gpu_phase", "--json"]
    assert run(line) == 0
    printed = capfd.readouterr()
    assert printed.out.count("\n") == 1
    report = json.loads(printed.out, parse_constant=no_number)
    found = {
        (contest["group"], entry["name"]): entry for contest in report["contests"] for entry in contest["contenders"]
    }
    ours, scipy = found["solves", "attractor flow"], found["solves", "scipy DOP853, numpy"]
    assert ours["status"] == scipy["status"] == "timed"
    assert 0 < ours["error"] <= 1e-6
    assert 0 < scipy["error"] <= 1e-6
    assert scipy["note"]["rtol"] > 0
    assert found["solves", "torchdiffeq dopri5, torch naive"]["status"] == "skipped"
    assert report["contests"][0]["truth"]["scipy_differs_by"] < 1e-7
    assert {curve["variable"] for curve in report["growth"]} == {"n", "d", "beta"}
    assert all(curve["slope"] is not None for curve in report["growth"] if curve["status"] == "timed")
    gpu = [contest for contest in report["contests"] if contest["group"] == "gpu"]
    assert len(gpu) == 3
    assert {entry["status"] for contest in gpu for entry in contest["contenders"]} <= {"skipped", "timed", "wrong"}


def test_check_turns_a_missed_target_into_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The targets are ratios of two sleeps, one of which is ten times as long."""

    def sleeping(name: str, seconds: float, target: float | None = None) -> Contender:
        def call() -> float:
            time.sleep(seconds)
            return 0.0

        return Contender(name, lambda: call, target)

    targets, line = {"sleeper": 2.0}, ["--rounds", "2", "--threads", "1"]

    def contests(settings: Settings) -> list[Contest]:
        peers = tuple(sleeping(name, 0.02, target) for name, target in targets.items())
        return [Contest("merging", "sleeps", sleeping("ours", 0.002), peers, error=float, tolerance=1.0)]

    monkeypatch.setitem(program.CONTESTS, "merging", contests)
    assert run([*line, "--rows", "merging", "--check"]) == 0
    targets |= {"second": 1e6, "third": 1e6}
    assert run([*line, "--rows", "merging"]) == 0
    capsys.readouterr()
    assert run([*line, "--rows", "merging", "--check"]) == 1
    assert capsys.readouterr().err == "python -m benchmarks: error: 2 of the measured targets missed\n"


def test_what_is_measured_is_kept_when_the_run_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds what was done so far, and says that it is not all."""
    file, run_contest = tmp_path / "bench.json", program.run_contest

    def stop_at_the_second(contest: Any, *arguments: Any) -> Any:
        if "float32" in contest.name:
            raise KeyboardInterrupt
        return run_contest(contest, *arguments)

    monkeypatch.setattr(program, "run_contest", stop_at_the_second)
    assert run([*QUICK, "--rows", "ensembles", "--out", str(file)]) == 130
    report = json.loads(file.read_text())
    assert report["finished"] is False
    assert len(report["contests"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "speed"], "row 'speed' is not known; the rows are evaluation, solves"),
        (["--rows", ","], "no rows are named"),
        (["--plot", "bench.gif"], "this figure is written as .png, .pdf, .svg"),
        (["--out", "no/such/folder/bench.json"], "the folder no/such/folder does not exist"),
        (["--threads", "100000"], "--threads 100000 is more than the"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_a_bad_argument_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--quick", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_the_library_imports_no_peer() -> None:
    """Every module of attractor can be imported where the peers would fail to import."""
    names = [
        module.name
        for module in pkgutil.walk_packages(attractor.__path__, "attractor.")
        if not module.name.endswith(("__main__", "_kernels"))
    ]
    names += ["benchmarks.evaluations", "benchmarks.gpu", "benchmarks.program", "benchmarks.solves"]
    probe = (
        "import importlib, sys\n"
        "peers = ('jax', 'diffrax', 'torchdiffeq', 'pykeops')\n"
        "sys.modules.update(dict.fromkeys(peers))\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:  # another package may be missing, such as triton where there is no GPU\n"
        "        if error.name is None or error.name.split('.')[0] in (*peers, 'attractor'): raise\n"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_worker_alone(tmp_path: Path) -> None:
    """The program of the row of two processes, in one."""
    options = ["--tokens", "16", "--beta", "4.0", "--until", "0.5", "--seed", "0"]
    result = processes.one(options)()
    assert result["seconds"] > 0
    assert result["points"].shape == (16, 3)
    with pytest.raises(RuntimeError, match="the worker ended with code"):
        processes.one([*options, "--no-such-option"])()


def test_noise_rows_agree_with_a_loop_in_pytorch(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, "--rows", "noise", "--json"]) == 0
    report = json.loads(capfd.readouterr().out, parse_constant=no_number)
    for contest in report["contests"]:
        assert {entry["status"] for entry in contest["contenders"]} == {"timed"}
