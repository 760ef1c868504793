"""Entries of ``attractor reproduce``: small settings, stored data, figures from data alone, and the command."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attractor.cli.main import run
from attractor.errors import FetchError, InputError, StoreError
from attractor.papers import (
    Comparison,
    Figure,
    Work,
    find_figure,
    list_figures,
    read_data,
    reproduce_all,
    reproduce_into,
    write_gallery,
)
from attractor.papers.divergence import CHANGES, change_law
from attractor.papers.placement import fit_decay
from attractor.solvers.trajectory import read_bibliography
from attractor.theory import Rng

QUESTIONS = {"placement", "mixed", "layers", "divergence"}


def test_entries_are_described() -> None:
    assert {entry.key for entry in list_figures()} >= QUESTIONS | {"positions", "practice", "gaussian-line"}
    for entry in list_figures():
        assert entry.question.endswith("?")
        assert entry.source in read_bibliography()
        assert entry.cost > 0
        assert entry.settings(entry.small).keys() == {parameter.name for parameter in entry.parameters}


@pytest.mark.parametrize(
    "entry",
    [entry for entry in list_figures() if entry.key not in ("positions", "practice")],
    ids=lambda entry: entry.key,
)
def test_figures_are_drawn_from_stored_data(entry: Figure, tmp_path: Path) -> None:
    try:
        entry.check_needs(entry.settings(entry.small))
    except FetchError as error:
        pytest.skip(str(error))
    done = reproduce_into(entry, tmp_path, entry.small)
    folder = tmp_path / entry.key
    stored = read_data(folder / "data.json", entry)
    assert stored == done.data
    assert stored["settings"] == entry.settings(entry.small)
    document = json.loads((folder / "data.json").read_text())
    verdict = entry.verdict(stored)
    assert document["verdict"] == {"outcome": verdict.outcome, "reason": verdict.reason}
    assert verdict.reason.endswith(".")
    assert (folder / "figure.png").stat().st_size > 1000
    assert verdict.outcome in (folder / "index.html").read_text()
    assert all(len(row) == max(2, len(table.columns)) for table in entry.summarise(stored) for row in table.rows)
    if verdict.outcome != "differs" and not entry.has_published_settings(stored):
        assert all(row.agrees for row in entry.compare(stored))


def test_what_is_stored_is_not_computed_again(tmp_path: Path) -> None:
    calls: list[str] = []

    def compute(settings: Any, work: Work) -> dict[str, Any]:
        calls.append("compute")
        first = work.keep("first", lambda: (calls.append("first"), 3)[1])
        if calls.count("compute") == 1:
            raise KeyboardInterrupt
        return {**find_figure("mixed").reproduce(find_figure("mixed").small), "first": first}

    entry = dataclasses.replace(find_figure("mixed"), compute=compute)
    with pytest.raises(KeyboardInterrupt):
        reproduce_into(entry, tmp_path, entry.small)
    assert reproduce_into(entry, tmp_path, entry.small).state == "computed"
    assert calls == ["compute", "first", "compute"]
    assert reproduce_into(entry, tmp_path, entry.small).state == "stored"
    assert calls == ["compute", "first", "compute"]
    changed = reproduce_into(entry, tmp_path, {**entry.small, "systems": 2})
    assert (changed.state, calls[3:]) == ("computed", ["compute", "first"])


def test_one_failed_entry_costs_one_entry(tmp_path: Path) -> None:
    def fail(settings: Any, work: Work) -> dict[str, Any]:
        raise ZeroDivisionError("no systems")

    @contextlib.contextmanager
    def progress(figure: Figure) -> Iterator[Any]:
        yield lambda done, total: None

    broken = dataclasses.replace(find_figure("mixed"), compute=fail)
    absent = dataclasses.replace(find_figure("divergence"), weights=lambda settings: ("tinyllama",))
    rows = reproduce_all(tmp_path, [broken, absent, find_figure("layers")], small=True, progress=progress)
    assert [row.state for row in rows] == ["failed", "missing" if rows[1].data is None else "computed", "computed"]
    assert "ZeroDivisionError" in (tmp_path / "mixed" / "failed.txt").read_text()
    page = (tmp_path / "index.html").read_text()
    assert "ZeroDivisionError: no systems" in page
    assert "data:image/png;base64," in page
    assert "layers/index.html" in page


def test_data_that_cannot_be_used_are_rejected(tmp_path: Path) -> None:
    entry = find_figure("layers")
    reproduce_into(entry, tmp_path, entry.small)
    path = tmp_path / "layers" / "data.json"
    document = json.loads(path.read_text())
    for change, message in (
        ({"version": 99}, "version 99 of the data of layers, this release of attractor reads version 1"),
        ({"schema": "attractor.reproduce/1"}, "expected 'attractor.reproduce/2'"),
        ({"key": "mixed"}, "not of 'layers'"),
    ):
        path.write_text(json.dumps(document | change))
        with pytest.raises(StoreError, match=message):
            read_data(path, entry)
    path.write_text("{")
    with pytest.raises(StoreError, match="no JSON document"):
        read_data(path, entry)
    write_gallery(tmp_path)
    assert "not run in this folder" in (tmp_path / "index.html").read_text()


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("attractor.papers.figure.find_local", lambda name: None)
    with pytest.raises(FetchError, match=r"needs the weights of stories15M.*attractor fetch stories15M"):
        find_figure("practice").reproduce({"models": "stories15M"})


def test_comparisons_agree_within_their_tolerance() -> None:
    assert Comparison("x", 1.0, 1.05, 0.1, "code").agrees
    assert not Comparison("x", 1.0, 1.2, 0.1, "code").agrees
    assert Comparison("x", 100.0, 101.0, 0.02, "code", relative=True).agrees
    assert not Comparison("x", math.nan, 1.0, 0.1, "code").agrees


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
    assert find_figure("gaussian-line").settings({"emulate": "no"})["emulate"] is False
    with pytest.raises(InputError, match="systems must be at least 1, got 0"):
        entry.settings({"systems": 0})
    with pytest.raises(InputError, match="systems must be a whole number"):
        entry.settings({"systems": "many"})
    with pytest.raises(InputError, match="emulate must be true or false"):
        find_figure("gaussian-line").settings({"emulate": "maybe"})


def test_the_command_computes_stores_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "systems=2", "--set", "strengths=0,4", "--set", "until=5", "--seed", "1"]
    files = ["--plot", str(tmp_path / "a.png"), "--out", str(tmp_path / "all")]
    assert run(["reproduce", "divergence", "--json", *small, *files]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "attractor.reproduce/2"
    assert document["settings"]["strengths"] == [0.0, 4.0]
    assert document["settings"]["seed"] == 1
    assert len(document["data"]["rows"]) == 2 * len(CHANGES)
    assert document["outputs"]["figures"] == [str(tmp_path / "a.png")]
    assert (tmp_path / "a.png").stat().st_size > 1000
    stored = tmp_path / "all" / "divergence" / "data.json"
    assert json.loads(stored.read_text())["data"] == document["data"]
    assert run(["reproduce", "divergence", "--data", str(stored), "--plot", str(tmp_path / "b.svg")]) == 0
    printed = capsys.readouterr().out
    assert document["data"]["answer"] in printed
    assert "no published result" in printed
    assert (tmp_path / "b.svg").stat().st_size > 1000


def test_the_list_has_only_verdicts_that_were_computed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", "layers", "--small", "--out", str(tmp_path), "--quiet"]) == 0
    assert run(["reproduce", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["figures"]
    assert len(listed) == len(list_figures())
    assert {row["verdict"] for row in listed} == {None}
    assert run(["reproduce", "--out", str(tmp_path), "--json"]) == 0
    found = {row["key"]: row["verdict"] for row in json.loads(capsys.readouterr().out)["figures"]}
    assert found.pop("layers") == "no published result"
    assert set(found.values()) == {None}
    assert run(["reproduce"]) == 0
    assert "verdict" not in capsys.readouterr().out
    assert run(["reproduce", "layers", "--describe"]) == 0
    assert "step sizes of the layers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["placements"], "did you mean 'placement'"),
        (["mixed", "--plot", "a.gif"], "written as .png, .pdf, .svg"),
        (["mixed", "--set", "system=3"], "did you mean 'systems'"),
        (["mixed", "--set", "systems"], "NAME=VALUE"),
        (["mixed", "--width", "one"], "--width belongs to --plot"),
        (["mixed", "--out", __file__], "is a file; give a folder"),
        (["mixed", "--data", "no.json", "--seed", "1"], "--seed has no effect on stored data"),
        (["mixed", "--again"], "--again belongs to --out"),
        (["--all"], "give --out FOLDER"),
        (["mixed", "--all", "--out", "all"], "leave out --all"),
        (["positions", "--set", "until=1"], "until must be at least 10"),
        (["positions", "--set", "encodings=none;absolute"], "encoding 'absolute' is not known"),
        (["gaussian-line", "--seed", "1"], "--seed"),
        (["--plot", "a.png"], "give its KEY"),
    ],
)
def test_bad_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["reproduce", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
