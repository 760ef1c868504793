"""The gallery of counter-examples: well formed, reproduced, and the page of claims is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import attractor as at
from attractor.cli.main import run
from attractor.solvers.trajectory import read_bibliography
from attractor.theory import list_theorems
from attractor.theory.claims import (
    BASES,
    VERDICTS,
    CounterExample,
    find_counterexample,
    list_counterexamples,
    render_claims,
)

ROOT = Path(__file__).parents[2]
QUICK = "regimes.definite-heads"


def every(test):
    return pytest.mark.parametrize("example", list_counterexamples(), ids=lambda example: example.key)(test)


@every
def test_it_says_what_it_is(example: CounterExample) -> None:
    known = {theorem.key for theorem in list_theorems()}
    papers = {key.split(".")[0] for key in known}
    assert example.title
    assert example.claim.endswith(".")
    assert example.truth.endswith(".")
    assert example.source == "code" or example.source in read_bibliography()
    # statements of a paper whose files are not there yet cannot be looked up
    assert all(key in known for key in example.theorems if key.split(".")[0] in papers)


@every
def test_it_reproduces(example: CounterExample) -> None:
    evidence = example.run()
    assert evidence.reproduced, evidence.sentence
    assert evidence.facts
    assert evidence.panels
    assert all(len(curve.x) == len(curve.y) for panel in evidence.panels for curve in panel.curves)


def test_the_page_of_claims_is_what_the_command_writes() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == render_claims(), "docs/claims.md is out of date: run attractor claims --write docs/claims.md"


def test_the_command_draws_and_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--only", QUICK, "--json", "--plot", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "attractor.claims/2"
    assert [row["key"] for row in document["claims"]] == [QUICK]
    assert document["claims"][0]["reproduced"] is True
    assert (tmp_path / f"{QUICK}.png").stat().st_size > 1000


def test_the_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["claims"]
    assert len(rows) == len(list_counterexamples())
    assert {row["verdict"] for row in rows} <= set(VERDICTS.values())
    assert {row["basis"] for row in rows} == set(BASES.values())
    assert not any("reproduced" in row for row in rows)


def test_a_claim_that_is_not_reproduced_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import dataclasses

    example = find_counterexample(QUICK)
    broken = dataclasses.replace(example, run=lambda: dataclasses.replace(example.run(), reproduced=False))
    monkeypatch.setattr("attractor.theory.list_counterexamples", lambda: (broken,))
    assert run(["claims"]) == 1
    assert "not reproduced: regimes.definite-heads" in capsys.readouterr().err


def test_an_unknown_claim_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["claims", "--only", "regimes.rk5"]) == 2
    assert "did you mean 'regimes.rk4'" in capsys.readouterr().err
    with pytest.raises(at.errors.InputError, match="is not one of"):
        CounterExample("a", "b", "c.", "code", "", "code", "wrong", "d.", lambda: None)  # type: ignore[arg-type, return-value]


def test_a_file_is_no_folder_for_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["claims", "--only", QUICK, "--plot", str(tmp_path / "file")]) == 2
    assert "written as .png, .pdf, .svg" in capsys.readouterr().err
