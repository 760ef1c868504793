"""``attractor density`` and ``attractor meanfield --study bifurcation``."""

from __future__ import annotations

import json

import pytest

from attractor.cli.main import run


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_fokker_planck_equation(tmp_path, capsys):
    figure = tmp_path / "density.png"
    options = ["--modes", "0.15,0.05", "--angles", "96", "--noise", "0.1", "--beta", "4", "--until", "2"]
    found = result(capsys, "density", *options, "--save", "1,2", "--plot", str(figure))
    assert found["schema"] == "attractor.density/1"
    assert found["final"]["modes"][:2] == pytest.approx([0.18745647, 0.07323714], abs=1e-7)
    assert found["prediction"]["critical_noise"] == pytest.approx(0.2158806528)
    assert [state["time"] for state in found["states"]] == [1.0, 2.0]
    assert figure.stat().st_size > 10_000


def test_the_end_of_the_resolution_is_reported(capsys):
    assert run(["density", "--beta", "9", "--angles", "96", "--until", "50"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Unresolved at t = ")
    assert "mode 4 grows fastest" in out


def test_runs_are_stored_and_continued(tmp_path, capsys):
    options = ["density", "--concentration", "1", "--angles", "48", "--noise", "0.1", "--until", "1", "--save", "1"]
    first = result(capsys, *options, "--out", str(tmp_path / "run"))
    again = result(capsys, "density", "--resume", str(tmp_path / "run"))
    assert first["final"] == again["final"]


def test_a_bifurcation_diagram(tmp_path, capsys):
    options = ["meanfield", "--study", "bifurcation", "--beta", "4", "--kernel", "exponential"]
    found = result(capsys, *options, "--plot", str(tmp_path / "branch.png"))
    assert found["folds"][0]["noise"] / found["critical"] == pytest.approx(1.05887718, abs=1e-6)
    assert (tmp_path / "branch.png").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["density", "--modes", "0.9"], "must not be negative"),
        (["density", "--modes", "0.1", "--concentration", "1"], "exclude each other"),
        (["density", "--noise", "-1"], "must not be negative"),
        (["density", "--mask", "causal"], "a mask"),
        (["density", "--resume", "x", "--until", "3"], "leave out --until"),
        (["density", "--resume", "nowhere"], "not a run of attractor"),
        (["meanfield", "--study", "bifurcation", "--until", "3"], "leave out --until"),
        (["meanfield", "--study", "bifurcation", "--kernel", "l2"], "softmax and exponential"),
    ],
)
def test_bad_arguments(options, words, capsys):
    assert run(options) == 2
    assert words in capsys.readouterr().err
