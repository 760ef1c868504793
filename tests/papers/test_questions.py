"""Open questions: the experiments run, small, and say what theory says where it speaks; the command lists and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from attractor.cli.main import run
from attractor.papers import divergence, layers, mixed, placement
from attractor.papers.figure import question, questions
from attractor.solvers.trajectory import read_bibliography
from attractor.theory import Rng


def test_each_says_what_it_asks() -> None:
    assert {entry.key for entry in questions()} >= {"placement", "mixed", "layers", "divergence"}
    for entry in questions():
        assert entry.question.endswith("?")
        assert entry.source in read_bibliography()


def test_layers_have_the_exponents_of_the_theorems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "STEPS", (1.0, 0.5))
    rows = question("layers").run(0).rows
    for row in rows:
        assert float(row["exponent of a layer"] or 0) == pytest.approx(float(row["predicted"] or 0), rel=0.01)
    times = {row["mask"]: row["time of a layer"] for row in rows if row["step"] == 1.0}
    assert times["full"] == pytest.approx(math.log(2), rel=1e-3)
    assert times["causal"] == pytest.approx(2 * math.log(4 / 3), rel=0.01)


def test_one_positive_eigenvalue_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DIM", 3), ("SYSTEMS", 3), ("TOKENS", 4)):
        monkeypatch.setattr(mixed, name, value)
    counts = [row["beyond 100 times the start"] for row in question("mixed").run(0).rows]
    assert counts == [0, 3, 3, 3]


def test_placements_have_their_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "SAVED", [0, *range(1, 61, 3)])
    rows = {(row["mask"], row["layer"]): row for row in question("placement").run(0).rows}
    assert rows["full", "post"]["decay"] == "exponential"
    assert rows["full", "post"]["slope"] == pytest.approx(-2 * math.log(2), rel=0.02)
    assert rows["full", "pre"]["decay"] == "power"
    assert rows["full", "pre"]["slope"] == pytest.approx(-2, abs=0.1)


def test_the_shift_by_the_value_moves_the_metric() -> None:
    rng = Rng.from_seed(0)
    law = rng.metric_law(rng.definite(3, -1.0), rng.definite(3))
    moved = divergence.changed("W + lambda V", law, 1.5)
    torch.testing.assert_close(moved.metric, law.metric + 1.5 * torch.eye(3, dtype=torch.float64))
    cooled = divergence.changed("spectral normalisation of V", law, 1.0)
    assert float(torch.linalg.matrix_norm(cooled.value, 2)) == pytest.approx(1.0)


def test_fits_tell_powers_from_exponentials() -> None:
    k = np.arange(1.0, 60.0)
    assert placement.fitted(k, 3 * k**-2.0) == ("power", pytest.approx(-2))
    assert placement.fitted(k, 3 * np.exp(-0.3 * k)) == ("exponential", pytest.approx(-0.3))


def test_the_command_answers_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("SYSTEMS", 2), ("STRENGTHS", (0.0, 4.0)), ("UNTIL", 5.0)):
        monkeypatch.setattr(divergence, name, value)
    assert run(["questions", "divergence", "--json", "--plot", str(tmp_path / "a.png")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "attractor.questions/1"
    assert len(document["rows"]) == 2 * len(divergence.KINDS)
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert run(["questions", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["questions"]) == len(questions())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["placements"], "did you mean 'placement'"),
        (["mixed", "--plot", "a.gif"], "written as .png, .pdf, .svg"),
        (["--plot", "a.png"], "give its key"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["questions", *arguments]) == 2
    assert words in capsys.readouterr().err
