"""``--report`` of the commands: a page with what was found, the command that made it, and a refusal before the work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import attractor as at
from accessible import faults
from attractor.report import Report
from attractor.report.pages.gaussian import add_gaussian
from attractor.report.pages.simulate import simulation_report


def text_of(path: Path) -> str:
    """The words of a page, without scripts, styles and tags."""
    page = re.sub(r"<(script|style).*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_a_simulation(command, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    line = f"simulate -n 12 --space sphere --beta 4 --until 30 --report {page}"
    done = command(f"{line} --json")
    assert done.json["outputs"]["report"] == str(page)
    assert faults(page.read_text(encoding="utf-8")) == []
    words = text_of(page)
    assert f"{done.json['outcome']['name'].capitalize()} at t =" in words
    assert "theorems apply to this start" in words
    assert "not contradicted" in words
    assert "attractor simulate --tokens 12" in words


def test_an_ensemble(command, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert command(f"simulate -n 6 --ensemble 3 --until 1 --report {page} --member 2").code == 0
    assert "Member 2 of the ensemble" in text_of(page)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--covariance 2,0.5;0.5,1", "up to the blow-up at t = 0.226541"),
        ("--phase --grid 2 --kernel l2", "starts of trace one"),
        ("--blow-up-map --grid 2", "Blow-up times of covariances"),
        ("--ranks --draws 2 --dims 2", "ranks of limits"),
    ],
)
def test_gaussians(command, tmp_path: Path, line: str, words: str) -> None:
    page = tmp_path / "gaussian.html"
    done = command(f"gaussian {line} --report {page} --json")
    assert done.json["outputs"]["report"] == str(page)
    assert words in text_of(page)
    assert faults(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line", ["predict --beta 1 --tokens 4", "check --theorem regimes.T5 --instances 2 --violated 0 --processes 1"]
)
def test_theory(command, tmp_path: Path, line: str) -> None:
    page = tmp_path / "theory.html"
    assert command(f"{line} --report {page}").code == 0
    assert faults(page.read_text(encoding="utf-8")) == []


def test_runs_without_saved_states_say_so() -> None:
    law = at.Attention.isotropic(dim=2, beta=1.0)
    run = at.flow(law, at.Tokens.uniform(4, 2, seed=0), until=0.1)
    bare = at.Trajectory(
        run.times[:0], run.points[:0], run.final, run.outcomes, run.stats, run.law, run.space, run.initial
    )
    assert "The run saved no states" in simulation_report(bare, "attractor simulate").html()
    moved = at.flow(law, at.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]]), until=0.1)  # type: ignore[arg-type]
    empty = at.Trajectory(
        moved.times[:0], moved.points[:0], moved.final, moved.outcomes, moved.stats, law, moved.space, moved.initial
    )
    report = Report("Gaussian")
    add_gaussian(report, empty)
    assert "The run saved no states" in report.html()


@pytest.mark.parametrize(
    "line", ["simulate --until 1e9 -n 2000", "gaussian", "check", "predict", "simulate --resume x"]
)
@pytest.mark.parametrize(("place", "message"), [("page.pdf", "ends in .html"), ("nowhere/page.html", "does not exist")])
def test_a_page_that_cannot_be_written_is_refused_first(command, line: str, place: str, message: str) -> None:
    done = command(f"{line} --report {place}")
    assert done.code == 2
    assert message in done.err or "no such store" in done.err


def test_a_folder_that_takes_no_files(command) -> None:
    done = command("simulate -n 2000 --until 1e9 --report /proc/page.html")  # refused before it runs
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "cannot be written" in done.err
