"""Entries of ``attractor reproduce``: small settings, stored data, figures from data alone, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attractor.cli.main import run
from attractor.errors import InputError
from attractor.papers import Figure, find_figure, list_figures
from attractor.papers.divergence import CHANGES, change_law
from attractor.papers.placement import fit_decay
from attractor.solvers.trajectory import read_bibliography
from attractor.theory import Rng

QUESTIONS = {"placement", "mixed", "layers", "divergence"}


def test_entries_are_described() -> None:
    assert {entry.key for entry in list_figures()} >= QUESTIONS | {"positions", "practice", "gaussian-cases"}
    for entry in list_figures():
        assert entry.question.endswith("?")
        assert entry.source in read_bibliography()
        assert entry.cost
        assert entry.settings(entry.small).keys() == {parameter.name for parameter in entry.parameters}


@pytest.mark.parametrize(
    "entry",
    [entry for entry in list_figures() if entry.key not in ("positions", "practice")],
    ids=lambda entry: entry.key,
)
def test_figures_are_drawn_from_stored_data(entry: Figure, tmp_path: Path) -> None:
    data = entry.reproduce(entry.small)
    stored = json.loads(json.dumps(data, allow_nan=False))
    assert stored == data
    assert stored["settings"] == entry.settings(entry.small)
    for path in entry.draw(stored, tmp_path / "figure.png"):
        assert path.stat().st_size > 1000
    assert all(len(row) == max(2, len(table.columns)) for table in entry.summarise(stored) for row in table.rows)


def test_layers_have_the_exponents_of_the_theorems() -> None:
    rows = find_figure("layers").reproduce({"steps": (1.0, 0.5)})["rows"]
    for row in rows:
        assert row["exponent of a layer"] == pytest.approx(row["predicted"], rel=0.01)
    times = {row["mask"]: row["time of a layer"] for row in rows if row["step"] == 1.0}
    assert times["full"] == pytest.approx(math.log(2), rel=1e-3)
    assert times["causal"] == pytest.approx(2 * math.log(4 / 3), rel=0.01)


def test_one_positive_eigenvalue_is_enough() -> None:
    rows = find_figure("mixed").reproduce({"dim": 3, "systems": 3, "tokens": 4})["rows"]
    assert [row["beyond 100 times the start"] for row in rows] == [0, 3, 3, 3]


def test_placements_have_their_decay() -> None:
    found = find_figure("placement").reproduce({"layers": 60, "saved": 60})["rows"]
    rows = {(row["mask"], row["layer"]): row for row in found}
    assert rows["full", "post"]["decay"] == "exponential"
    assert rows["full", "post"]["slope"] == pytest.approx(-2 * math.log(2), rel=0.02)
    assert rows["full", "pre"]["decay"] == "power"
    assert rows["full", "pre"]["slope"] == pytest.approx(-2, abs=0.1)


def test_the_shift_by_the_value_moves_the_metric() -> None:
    rng = Rng.from_seed(0)
    law = rng.metric_law(rng.definite(3, -1.0), rng.definite(3))
    moved = change_law("W + lambda V", law, 1.5)
    torch.testing.assert_close(moved.metric, law.metric + 1.5 * torch.eye(3, dtype=torch.float64))
    cooled = change_law("spectral normalisation of V", law, 1.0)
    assert float(torch.linalg.matrix_norm(cooled.value, 2)) == pytest.approx(1.0)


def test_fits_tell_powers_from_exponentials() -> None:
    k = np.arange(1.0, 60.0)
    assert fit_decay(k, 3 * k**-2.0) == ("power", pytest.approx(-2))
    assert fit_decay(k, 3 * np.exp(-0.3 * k)) == ("exponential", pytest.approx(-0.3))


def test_settings_are_converted_and_checked() -> None:
    entry = find_figure("divergence")
    assert entry.settings({"strengths": "0, 2.5", "systems": "3"})["strengths"] == [0.0, 2.5]
    assert entry.settings({"strengths": "0;4"}) == entry.settings({"strengths": (0.0, 4.0)})
    assert find_figure("gaussian-cases").settings({"emulate": "no"})["emulate"] is False
    with pytest.raises(InputError, match="systems must be at least 1, got 0"):
        entry.settings({"systems": 0})
    with pytest.raises(InputError, match="systems must be a whole number"):
        entry.settings({"systems": "many"})
    with pytest.raises(InputError, match="emulate must be true or false"):
        find_figure("gaussian-cases").settings({"emulate": "maybe"})


def test_the_command_computes_stores_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "systems=2", "--set", "strengths=0,4", "--set", "until=5", "--seed", "1"]
    files = ["--plot", str(tmp_path / "a.png"), "--out", str(tmp_path / "a.json")]
    assert run(["reproduce", "divergence", "--json", *small, *files]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "attractor.reproduce/1"
    assert document["settings"]["strengths"] == [0.0, 4.0]
    assert document["settings"]["seed"] == 1
    assert len(document["data"]["rows"]) == 2 * len(CHANGES)
    assert document["outputs"]["figures"] == [str(tmp_path / "a.png")]
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert json.loads((tmp_path / "a.json").read_text()) == document
    assert run(["reproduce", "divergence", *small]) == 0
    assert document["data"]["answer"] in capsys.readouterr().out
    assert run(["reproduce", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["figures"]) == len(list_figures())
    assert run(["reproduce"]) == 0
    assert "divergence: Ways to enforce divergence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["placements"], "did you mean 'placement'"),
        (["mixed", "--plot", "a.gif"], "written as .png, .pdf, .svg"),
        (["mixed", "--set", "system=3"], "did you mean 'systems'"),
        (["mixed", "--set", "systems"], "NAME=VALUE"),
        (["mixed", "--width", "one"], "--width belongs to --plot"),
        (["mixed", "--out", "no/such/folder/a.json"], "does not exist"),
        (["positions", "--set", "until=1"], "until must be at least 10"),
        (["positions", "--set", "encodings=none;absolute"], "encoding 'absolute' is not known"),
        (["gaussian-cases", "--seed", "1"], "--seed"),
        (["--plot", "a.png"], "give its KEY"),
    ],
)
def test_bad_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
