"""``attractor gaussian``: one run, many runs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attractor.cli.gaussian import format_interval
from attractor.cli.main import run


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert run(["gaussian", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_one_run_past_its_blow_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "run.png"
    words = ["--covariance", "1,0.2;0.2,0.5", "--mean", "0.1,0", "-t", "5", "--plot", str(picture)]
    report = told(capsys, *words)
    top = np.linalg.eigvalsh([[1.0, 0.2], [0.2, 0.5]])[-1]
    assert report["schema"] == "attractor.gaussian/2"
    assert report["outcome"]["name"] == "blow_up"
    assert report["outcome"]["time"] == pytest.approx(1 / (2 * top), rel=1e-9)
    assert report["bounds"]["lower"] <= report["outcome"]["time"] <= report["bounds"]["upper"]
    assert len(report["outcome"]["direction"]) == 2
    assert picture.stat().st_size > 1000
    assert run(["gaussian", *words[:6]]) == 0
    assert "Blow up at t = " in capsys.readouterr().out


def test_eigenvalues_at_a_blow_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Under the isotropic law 1 / s_i(t) = 1 / s_i(0) - 2 t, so that the second eigenvalue stays finite."""
    exact = 1 / (1 / 0.3 - 2 * 0.5)
    report = told(capsys, "--covariance", "1,0;0,0.3", "--mean", "0,0.1")
    for state in (report["final"], report["states"][-1]):
        assert state["eigenvalues"][0] is None
        assert state["eigenvalues"][1] == pytest.approx(exact, rel=1e-10)
        assert abs(state["mean"][1]) < 1
    values = np.array(report["approach"]["eigenvalues"])
    assert values[:, 1] == pytest.approx(1 / (1 / 0.3 - 2 * np.array(report["approach"]["times"])), rel=1e-10)
    page = tmp_path / "page.html"
    assert run(["gaussian", "--covariance", "1,0;0,0.3", "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    assert f"(infinite, {exact:.5g})" in printed
    assert f"infinite, {exact:.5g}" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((0.4, 0.66667), "between 0.4 and 0.66667"),
        ((0.5, 0.5 + 1e-9), "between 0.5 and 0.500000001"),
        ((0.5, 0.5 + 1e-15), "0.5, to 12 digits"),
    ],
)
def test_intervals_have_the_digits_that_they_need(ends: tuple[float, float], words: str) -> None:
    assert format_interval(*ends) == words


def test_a_run_with_a_feed_forward_at_named_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "W.npy", -np.eye(2))
    report = told(capsys, "--beta", "-1", "--affine", str(tmp_path / "W.npy"), "--save", "0,1,2", "-t", "2")
    assert [state["time"] for state in report["states"]] == [0.0, 1.0, 2.0]
    grown = [state["eigenvalues"][0] for state in report["states"]]
    expected = [1 / (2 * np.exp(2 * t) - 1) for t in (0.0, 1.0, 2.0)]  # P' = 2P + 2
    assert grown == pytest.approx(expected, rel=1e-9)


def test_questions_about_many(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = told(capsys, "--phase", "--grid", "2", "--beta", "-1", "--plot", str(tmp_path / "phase.svg"))
    assert report["phase"]["kinds"] == {"collapse": 4}
    report = told(capsys, "--blow-up-map", "--grid", "2", "--plot", str(tmp_path / "map.pdf"))
    tops = [np.linalg.eigvalsh(entry["covariance"])[-1] for entry in report["map"]]
    assert [entry["time"] for entry in report["map"]] == pytest.approx([1 / (2 * top) for top in tops], rel=1e-9)
    report = told(capsys, "--case", "line", "--grid", "1", "--no-emulate", "--plot", str(tmp_path / "line.png"))
    assert {kernel["accurate"]["ranks"]["1"] for kernel in report["case"]["kernels"].values()} == {1}
    report = told(capsys, "--ranks", "--dims", "3", "--draws", "2", "--plot", str(tmp_path / "ranks.png"))
    assert report["ranks"]["accurate"] == {"3": {"2": 2}}
    assert sum(report["ranks"]["emulated_published_procedure"]["3"].values()) == 2
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--covariance", "1,0.3;0.3,-1"], "positive semi-definite"),
        (["--covariance", "1,0.3;0.1,1"], "symmetric"),
        (["--covariance", "1,0.3;0.1"], "rows of one length"),
        (["--mean", "1,2,3", "--covariance", "1,0;0,1"], "like the mean"),
        (["--kernel", "sigmoid"], "not affine"),
        (["--mask", "window:3"], "single tokens"),
        (["--phase", "--ranks"], "exclude each other"),
        (["--case", "circle"], "case 'circle' is not known"),
        (["--case", "line", "--beta", "2"], "defines its own law"),
        (["--phase", "--until", "3"], "its own starts and times"),
        (["--phase", "--dim", "3"], "in the plane"),
        (["--ranks", "--dims", "1"], "dimensions from 2 to 12"),
        (["--plot", "run.gif"], "is written as"),
        (["--covariance", "nan,0;0,1"], "finite"),
        (["--affine-offset", "c.npy"], "belongs to --affine"),
    ],
)
def test_bad_arguments_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gaussian", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
