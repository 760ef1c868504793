"""``attractor meanfield``: the same numbers as in Python, one object, one line for a bad argument."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attractor as at
from attractor.meanfield import measure_rates, measure_stability, perturb

Command = Callable[[str], Any]
SMALL = "--sizes 10,20 --repeats 2"


def test_rates_are_those_of_python(command: Command) -> None:
    report = command(f"meanfield {SMALL} --until 0.5 --start box --spread 0.5 --random-law 3 --json").json
    law = at.Attention.random(2, seed=3)
    wanted = measure_rates(
        law,
        lambda n, seed, ensemble: at.Tokens.sample("box", n, 2, seed, 0.5, ensemble),
        until=0.5,
        sizes=(10, 20),
        repeats=2,
        against="pair",
    )
    assert report["schema"] == "attractor.meanfield/2"
    assert report["against"] == "pair"
    for name, errors in wanted.errors.items():
        np.testing.assert_array_equal(report["errors"][name], errors)
        assert report["slopes"][name]["value"] == wanted.slopes[name].value
    assert "repeats are few" in report["notes"][0]


def test_the_closure_of_files(command: Command, folder: Path) -> None:
    np.save("mean.npy", [0.3, -0.1])
    np.save("shape.npy", np.diag([0.2, 0.1]))
    line = f"meanfield {SMALL} --mean mean.npy --covariance shape.npy --measures mean,covariance --until 0.2 --json"
    report = command(line).json
    assert report["against"] == "closure"
    assert set(report["errors"]) == {"mean", "covariance"}
    assert command(f"{line} --raw").json["rms"]["mean"][0] > report["rms"]["mean"][0]


def test_a_table_and_a_picture(command: Command, folder: Path) -> None:
    done = command(f"meanfield {SMALL} --until 0.2 --plot rates.png --against 40")
    assert done.code == 0, done.err
    assert "Slopes in n" in done.out
    assert "against 40 tokens" in done.out
    assert "command  attractor meanfield --until 0.2 --sizes 10,20" in done.out
    assert (folder / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert command(f"meanfield {SMALL} --until 0.2 --quiet").out == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--study speed", "rates, stability, blow-up"),
        ("--order 1", "--order belongs to --study stability"),
        ("--study blow-up --against pair", "belongs to --study rates"),
        ("--study blow-up --start ball", "starts from --start gaussian"),
        ("--study blow-up --kernel sinkhorn", "does not blow up"),
        ("--study stability --kernel linear", "infinity in finite time"),
        ("--study stability --sizes 10,20", "one number of tokens"),
        ("--study stability --mask causal --order 1", "orders p > 1"),
        ("--sizes 20,10", "increasing"),
        ("--sizes many", "numbers separated by commas"),
        ("--against closure", "belongs to a Gaussian start"),
        ("--against nothing", "closure, pair or a number of tokens"),
        ("--measures length", "'length' is not known"),
        ("--start gaussian --until 3", "the Gaussian does not reach t = 3"),
        ("--start nowhere", "is not known"),
        ("--plot rates.gif", ".png, .pdf, .svg"),
        ("--until -1", "positive time"),
        ("--start gaussian --kernel sigmoid --against closure", "stay"),
        ("--mean mean.npy --start ball", "does not exist"),
    ],
)
def test_a_bad_argument_is_one_line(line: str, message: str, command: Command, folder: Path) -> None:
    done = command(f"meanfield --repeats 1 {line}")
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


def test_stability_is_that_of_python(command: Command, folder: Path) -> None:
    line = (
        "meanfield --study stability --sizes 10 --repeats 2 --random-law 1 --until 0.5 --apart 0.2 --order 1.5 --seed 4"
    )
    report = command(f"{line} --json").json
    first = at.Tokens.sample("ball", 10, 2, 4, ensemble=2)
    law = at.Attention.random(2, seed=1)
    wanted = measure_stability(law, first, perturb(first, 0.2, 4), until=0.5, p=1.5, rtol=1e-6)
    np.testing.assert_array_equal(report["ratio"], wanted.ratio)
    np.testing.assert_array_equal(report["log_bound"], wanted.log_bound)
    assert report["holds"] is True
    assert report["constants"]["point"] == wanted.constants.point
    done = command(f"{line} --plot stability.svg")
    assert "below its bound" in done.out
    assert "L_mu =" in done.out
    assert (folder / "stability.svg").stat().st_size > 5000
    causal = command(f"{line.replace('1.5', '2')} --mask causal")
    assert "(Hardy)" in causal.out


def test_past_the_blow_up(command: Command, folder: Path) -> None:
    line = "meanfield --study blow-up --sizes 20,40 --repeats 2"
    report = command(f"{line} --json").json
    assert report["blow_up"] == pytest.approx(1.0, rel=1e-7)
    assert np.shape(report["variance"]) == (2, 2, len(report["times"]))
    assert report["gaussian"][-1] is None
    done = command(f"{line} --plot past.png --until 1.05")
    assert "blows up at T* = 1" in done.out
    assert "inf" in done.out
    assert (folder / "past.png").read_bytes().startswith(b"\x89PNG")


def test_densities_of_a_simulation(command: Command, folder: Path) -> None:
    line = "simulate --tokens 30 --dim 1 --start mixture:2 --until 1 --ensemble 2 --member 1"
    done = command(f"{line} --density density.png --json")
    assert done.json["outputs"]["figures"] == ["density.png"]
    assert (folder / "density.png").read_bytes().startswith(b"\x89PNG")
    assert command("simulate --density density.png").code == 2
    assert ".png, .pdf, .svg" in command(f"{line} --density density.html").err


def test_without_pot(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    done = command(f"meanfield {SMALL} --against 40")
    assert done.code == 1
    assert "pip install 'attractor[meanfield]'" in done.err


def test_help_names_the_studies(command: Command) -> None:
    assert "blow-up" in command("meanfield --help").out
