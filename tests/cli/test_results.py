"""What a run prints and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attractor as at

Command = Callable[[str], Any]
TINY = "simulate --tokens 8 --space sphere --until 2"


@pytest.mark.slow
def test_a_long_horizon_with_merges(command: Command) -> None:
    line = "simulate --tokens 512 --dim 3 --beta 25 --space sphere --until 1e12 --merge 1e-3 --json"
    report = command(line).json
    assert report["schema"] == "attractor.simulate/2"
    assert report["outcome"]["name"] in ("reached", "steady", "consensus")
    merges = report["events"]
    assert len(merges) == report["stats"]["merges"] > 400
    times = [merge["time"] for merge in merges]
    assert times == sorted(times)
    for merge in merges:
        assert merge["kind"] == "merge"
        assert merge["mass"] == pytest.approx(merge["size"] / 512)
        assert merge["members"] is None if merge["size"] > 64 else len(merge["members"]) == merge["size"]
    assert report["observables"]["clusters"]["end"] <= 512 - len(merges) + 1


def test_the_object_says_all_that_is_needed_to_repeat_it(command: Command) -> None:
    report = command(f"{TINY} --seed 5 --observe diameter --json").json
    parts = "schema command arguments outcome sizes law space stats events events_left_out times observables outputs versions"
    assert set(report) == set(parts.split())
    assert report["arguments"]["seed"] == 5
    assert report["arguments"]["beta"] == 1.0
    assert report["arguments"]["until"] == 2.0
    assert report["arguments"]["kernel"] == "softmax"
    assert report["command"] == "attractor simulate --tokens 8 --seed 5 --space sphere --until 2 --observe diameter"
    assert report["versions"]["attractor"] == at.__version__
    counts = {"evaluations", "accepted", "rejected", "merges", "processes", "switches"}
    assert set(report["stats"]) == {*counts, "seconds", "method", "engine", "fallback", "peak_memory", "reduced_dim"}
    assert report["outputs"] == {"store": None, "figures": [], "report": None, "files": []}


def test_the_command_in_the_object_gives_the_same_numbers(command: Command) -> None:
    first = command(f"{TINY} --seed 5 --ensemble 2 --until 3.0000001 --json").json
    second = command(first["command"].removeprefix("attractor ") + " --json").json
    for report in (first, second):
        del report["stats"]["seconds"], report["stats"]["peak_memory"]
    assert first == second


def test_another_seed_gives_other_numbers(command: Command) -> None:
    first, second = (command(f"{TINY} --seed {seed} --json").json["observables"] for seed in (0, 1))
    assert first["cosine"]["end"] != second["cosine"]["end"]


def test_an_observable_that_is_asked_for_is_given_along_time(command: Command) -> None:
    report = command(f"{TINY} --save 4 --observe diameter --observe covariance --json").json
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(8, 3), space=at.Sphere(), until=2.0, save=4)
    values = report["observables"]["diameter"]["values"]
    np.testing.assert_array_equal(values, run.observe("diameter").numpy())
    assert values[0] == pytest.approx(report["observables"]["diameter"]["start"])
    assert np.shape(report["observables"]["covariance"]["values"]) == (5, 3, 3)
    assert "values" not in report["observables"]["clusters"]


def test_an_ensemble_is_counted(command: Command) -> None:
    report = command("simulate --tokens 6 --space sphere --until 1e4 --ensemble 3 --merge 1e-3 --json").json
    assert report["sizes"]["ensemble"] == [3]
    assert report["outcomes"] == {"consensus": 3}
    assert [member["name"] for member in report["members"]] == ["consensus"] * 3
    assert len(report["observables"]["clusters"]["end"]) == 3
    assert sorted(event["member"] for event in report["events"]) == [0] * 5 + [1] * 5 + [2] * 5


def test_people_read_the_outcome_first(command: Command) -> None:
    done = command("simulate --tokens 6 --space sphere --until 1e4 --observe cluster_sizes")
    assert done.code == 0
    assert done.err == ""  # no terminal, no bar
    lines = done.out.splitlines()
    assert lines[0].startswith("Consensus at t = ")
    assert next(line for line in lines if line.startswith("  clusters ")).split()[1:] == ["6", "1"]
    assert next(line for line in lines if line.startswith("  cluster_sizes ")).count("see --json") == 2
    assert any(line.startswith("  merges ") for line in lines)
    assert lines[-1] == "  command  attractor simulate --tokens 6 --space sphere --until 10000 --observe cluster_sizes"


def test_people_read_about_ensembles(command: Command) -> None:
    out = command(f"{TINY} --ensemble 3").out
    assert "3 x 8 of dimension 3" in out
    assert "outcomes     3 reached" in out
    assert "mean over the ensemble" in out


def test_quiet_and_progress(command: Command) -> None:
    quiet = command(f"{TINY} --quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    loud = command(f"{TINY} --progress --json")
    assert json.loads(loud.out)["outcome"]["name"] == "reached"
    assert loud.err
    assert command(f"{TINY} --no-progress -q").err == ""


@pytest.mark.parametrize("ending", ["html", "png", "pdf", "svg", "gif", "mp4"])
def test_pictures(ending: str, command: Command, folder: Path) -> None:
    magic = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml", "gif": b"GIF8"}
    done = command(f"{TINY} --save 3 --ensemble 2 --member 1 --plot run.{ending} --plot again.{ending}")
    assert done.code == 0, done.err
    assert f"figures  run.{ending} again.{ending}" in done.out
    assert Path(f"run.{ending}").read_bytes().startswith(magic.get(ending, b""))
    assert Path(f"again.{ending}").stat().st_size > 100
    assert not list(folder.glob(".*"))


def test_a_picture_that_fails_does_not_cost_the_report(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: at.Trajectory, path: Path, **options: object) -> None:
        raise at.errors.StoreError(f"{path} cannot be written: no space left on device")

    monkeypatch.setattr(at.Trajectory, "plot", full)
    done = command(f"{TINY} --plot run.png --json")
    assert done.code == 1
    assert json.loads(done.out)["outputs"]["figures"] == []
    assert done.err == "attractor simulate: error: run.png cannot be written: no space left on device\n"


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("--plot run.png", "matplotlib", "plot"),
        ("--plot run.html", "plotly", "plot"),
        ("--plot run.gif", "pillow", "plot"),
        ("--out run.zarr", "zarr", "store"),
        ("--tokens-file tokens.safetensors", "safetensors", "checkpoints"),
    ],
)
def test_a_missing_extra_is_named_before_the_run(
    line: str, package: str, extra: str, command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "PIL" if package == "pillow" else package
    monkeypatch.setattr("attractor.cli.inputs.find_spec", lambda name: None if name == module else name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    Path("tokens.safetensors").touch()
    done = command(f"simulate {line}")
    assert done.code == 1
    assert done.out == ""
    wanted = f"this needs {package}, which is not installed: pip install 'attractor[{extra}]'"
    assert done.err == f"attractor simulate: error: {wanted}\n"


def test_safetensors(command: Command, folder: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    tokens = np.load("tokens.npy")
    safetensors.save_file({"tokens": tokens, "other": tokens[:2]}, "two.safetensors")
    safetensors.save_file({"points": tokens.astype(np.float32)}, "one.safetensors")
    safetensors.save_file({"a": tokens, "b": tokens}, "unclear.safetensors")
    Path("broken.safetensors").write_bytes(b"nonsense")
    assert command("simulate --tokens-file two.safetensors --until 1 --json").json["sizes"]["tokens"] == 6
    assert command("simulate --tokens-file one.safetensors --until 1 --json").json["sizes"]["dim"] == 4
    assert "one called 'tokens'" in command("simulate --tokens-file unclear.safetensors").err
    assert command("simulate --tokens-file broken.safetensors").code == 2


def test_a_run_beyond_floating_point(command: Command, folder: Path) -> None:
    line = "simulate --tokens 4 --dim 2 --beta 1000 --space sphere --log-until 1900"
    report = command(f"{line} --clock exponent --plot run.png --report page.html --json").json
    assert (folder / "run.png").exists()
    assert (folder / "page.html").exists()
    assert report["outcome"]["time"] is None
    assert report["outcome"]["log_time"] == pytest.approx(1729.969272, abs=1e-5)
    assert [event["log_time"] for event in report["events"]] == pytest.approx(
        [100.5446638, 634.967203, 1729.969272], abs=1e-5
    )
    printed = command(line).out
    assert "t = e^1729.9692" in printed
    assert command("simulate --beta 9 --log-until 1000").code == 2
    assert command("simulate --beta 9 --space sphere --log-until 10 --until 5").code == 2
