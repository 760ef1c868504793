"""``attractor sweep``: axes on the command line, tables, one system of a cell, and any command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attractor.cli.sweep import parse_values, split_names
from attractor.sweeps import diagram, load, rerun_command

Command = Callable[[str], Any]
SMALL = "sweep simulate --tokens 6 --space sphere --until 4 --starts 3 --workers 1 --out cells"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_sweep_is_continued_by_its_own_command(command: Command) -> None:
    line = f"{SMALL} --over beta=1:9:3 --over dim=2,3 --observe clusters,pair_fraction(threshold=0.9)"
    done = command(f"{line} --json").json
    assert done["schema"] == "attractor.sweep/1"
    assert done["cells"] == 6
    assert done["computed"] == {"cells": 6, "runs": 18}
    assert done["observables"] == ["clusters", "pair_fraction(threshold=0.9)"]
    again = command(f"{line} --json").json
    assert again["computed"] == {"cells": 0, "runs": 0}
    assert again["table"] == done["table"]
    shown = command("sweep table cells --times all --json").json
    assert shown["table"]["clusters"] == done["table"]["clusters"]
    assert command("sweep table cells --out cells.csv --quiet").code == 0
    assert Path("cells.csv").read_text().startswith("beta,dim,time,starts,clusters,clusters_low")


def test_every_start_is_a_system_of_simulate(command: Command) -> None:
    command(f"{SMALL} --over beta=4 --over start=uniform,mixture:3 --dim 3 --observe cosine,clusters --save 2")
    found = load("cells")
    cell = found.cell(beta=4.0, start="mixture:3")
    assert found.manifest["rerun"] == "attractor simulate --tokens 6 --dim 3 --space sphere --until 4"
    seed = found.seed(cell, 2)
    alone = command(
        f"{found.manifest['rerun'][10:]} --beta 4 --start mixture:3 --seed {seed} --observe cosine --save 2 --json"
    ).json
    expected = alone["observables"]["cosine"]["values"]
    assert found.values("cosine", beta=4.0, start="mixture:3")[:, 2].tolist() == expected


def test_numbers_of_any_command(command: Command) -> None:
    line = "sweep command --over beta=0.5,2 --observe outcome.time --workers 1 --out cells -- gaussian --until 1"
    done = command(line)
    assert done.code == 0
    assert load("cells").frame()["outcome.time"].tolist() == pytest.approx([1.0, 0.25])
    assert "-- gaussian --until 1" in done.out
    failed = command("sweep command --over beta=1,2 --observe outcome.tim --workers 1 --out more -- gaussian --until 1")
    assert failed.code == 1
    assert "did you mean 'time'" in failed.err


def test_noise_is_an_axis(command: Command) -> None:
    """A cell's command gives the same path, and the critical noise is drawn for the dimension of the options."""
    line = "sweep simulate --tokens 5 --dim 2 --space sphere --until 1 --step 0.1 --workers 1 --starts 3 --out cells"
    done = command(f"{line} --over noise=0,0.5,1 --over beta=1,2,4 --observe cosine --json")
    assert done.code == 0
    found = load("cells")
    words = rerun_command(found, found.cell(noise=0.5, beta=4.0), 2)
    alone = command(f"{words.removeprefix('attractor ')} --observe cosine --save 1 --json").json
    assert alone["observables"]["cosine"]["values"][-1][2] == found.values("cosine", noise=0.5, beta=4.0)[-1, 2]
    drawn = diagram(found, "cosine", "beta", "noise", theory="critical_noise").maps[0]
    assert drawn.curve is not None
    assert drawn.curve[1][[0, -1]] == pytest.approx([0.4463899659, 0.2158806528], rel=1e-8)  # softmax, circle
    assert command(f"{line} --noise-seed 3 --over noise=0,1").code == 2
    assert "--step" in command("sweep simulate --over noise=0,1 --out more").err
    done = command(f"{line.replace('cells', 'balls')} --over noise=0,1 --start ball")
    assert done.code == 1
    assert "depend on how many starts are drawn" in done.err


def test_files_of_a_command_are_compared(command: Command) -> None:
    """Numbers of a file that has changed are not added to those of the old one."""
    Path("mean.csv").write_text("0.5,0\n")
    line = "sweep command --over beta=0.5 --observe outcome.time --workers 1 --out cells -- gaussian --until 1 --mean mean.csv"
    assert command(line).code == 0
    assert command(line.replace("0.5 --obs", "0.5,0.7 --obs")).code == 0
    Path("mean.csv").write_text("0.25,0\n")
    done = command(line.replace("0.5 --obs", "0.5,0.9 --obs"))
    assert done.code == 2
    assert "mean.csv has changed" in done.err


def test_starts_of_a_command_without_a_seed(command: Command) -> None:
    done = command("sweep command --over until=1,2 --starts 2 --observe outcome.time --workers 1 --out a -- gaussian")
    assert done.code == 0
    assert "gave the same numbers" in done.err
    done = command("sweep command --over layers=1 --starts 2 --observe layers --workers 1 --out b -- trace x")
    assert done.code == 2
    assert "trace has no --seed" in done.err
    done = command("sweep command --over beta=1 --observe x --workers 1 --out b -- meanfield --seed 3")
    assert done.code == 2
    assert "leave it out" in done.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SMALL} --over bta=1,2", "did you mean 'beta'"),
        (f"{SMALL} --over beta=", "has no values"),
        (f"{SMALL} --over beta", "has no values"),
        (f"{SMALL} --over beta=1:2:x", "FIRST:LAST:COUNT"),
        (f"{SMALL} --over dim=2.5", "whole numbers"),
        (f"{SMALL} --over beta=1 --over beta=2", "given twice"),
        (f"{SMALL} --beta 3 --over beta=1,2", "given and swept over"),
        (f"{SMALL} --over beta=1:2:0", "at least one"),
        (f"{SMALL} --over beta=1,2 --ensemble 3", "--starts"),
        (f"{SMALL} --over beta=1,2 --address 1.2.3.4:5", "does not belong to --executor local"),
        (f"{SMALL} --over beta=1,2 --shard 4/3", "numbered from 1"),
        (f"{SMALL} --over beta=1,2 --observe clutsers", "did you mean 'clusters'"),
        ("sweep command --over beta=1 --observe outcome.time --out cells -- gausian", "did you mean 'gaussian'"),
        ("sweep command --over beta=1 --out cells -- gaussian", "--observe outcome.time"),
    ],
)
def test_bad_arguments(command: Command, line: str, message: str) -> None:
    done = command(line)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not Path("cells/manifest.json").exists()


def test_a_cell_that_fails_is_named(command: Command) -> None:
    done = command(f"{SMALL} --over scale=1,nan_ --over dim=2")
    assert done.code == 2
    done = command(f"{SMALL} --over kernel=softmax,sofmax --dim 2 --json")
    assert done.code == 1
    assert "did you mean 'softmax'" in done.err
    assert [row["cell"] for row in json.loads(done.out)["failed"]] == [{"kernel": "sofmax"}]


def test_values_of_axes() -> None:
    assert parse_values("1:100:3:log", "beta", float) == pytest.approx([1.0, 10.0, 100.0])
    assert parse_values("2:10:5", "tokens", int) == [2, 4, 6, 8, 10]
    assert parse_values("shell:0.8,uniform", "start", str) == ["shell:0.8", "uniform"]
    assert parse_values("1:3:3", "x", None) == [1, 2, 3]
    assert split_names(["a(b=1,c=2),d", "e"]) == ["a(b=1,c=2)", "d", "e"]
