"""``attractor simulate --noise`` and ``attractor gaussian --noise``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attractor as at
from attractor.cli.main import run

RUN = ["simulate", "-n", "6", "--space", "sphere", "--beta", "2", "--step", "0.1", "--until", "1", "--quiet"]


def test_the_command_has_the_path_of_the_function(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zarr")
    cases = {
        "independent": (["--noise", "0.1", "--noise-seed", "3"], at.Noise(0.1, seed=3)),
        "common": (["--noise", "0.1", "--common-noise", "0.2"], at.Noise(0.1, 0.2)),
        "layer": (["--noise", "0.1", "--noise-kind", "layer"], at.Noise(0.1, kind="layer")),
        "redrawn": (["--redrawn", "0.5", "--noise-seed", "3"], at.Redrawn(0.5, seed=3)),
    }
    law, tokens = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(6, 3, seed=0)
    for name, (words, noise) in cases.items():
        assert run([*RUN, *words, "--out", str(tmp_path / name), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["arguments"]["noise_seed"] == noise.seed
        assert "do not come to rest" in document["outcome"]["message"]
        expected = at.flow(law, tokens, space="sphere", noise=noise, step=0.1, until=1.0)
        assert torch.equal(at.load(tmp_path / name).final.points, expected.final.points)
        assert run(["simulate", "--resume", str(tmp_path / name), "--quiet"]) == 0
        capsys.readouterr()


def test_a_page_of_a_run_with_noise_names_no_theorem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "run.html"
    assert run([*RUN, "--noise", "0.1", "--report", str(page)]) == 0
    assert "tatements about motion without noise are left out" in page.read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--noise", "-0.1", "--step", "0.1"], "greater than or equal to 0"),
        (["--noise", "nan", "--step", "0.1"], "--noise"),
        (["--noise", "0.1"], "give --step H"),
        (["--noise", "0.1", "--step", "0.1", "--method", "dop853"], "which adapts its steps"),
        (["--noise", "0.1", "--step", "0.1", "--merge", "1e-3"], "independent noise moves them apart again"),
        (["--noise", "0.1", "--step", "0.1", "--stop", "consensus"], "do not come to rest"),
        (["--noise", "0.1", "--redrawn", "1", "--step", "0.1"], "exclude each other"),
        (["--noise-seed", "3"], "belong to --noise"),
        (["--noise", "0.1", "--step", "0.1", "--noise-kind", "pink"], "'space' or 'layer', got 'pink'"),
    ],
)
def test_what_does_not_fit_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "-n", "4", "--space", "sphere", "--until", "1", "--quiet", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error


def test_noise_brings_the_blow_up_of_a_gaussian_forward(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gaussian", "--dim", "1", "--until", "1", "--noise", "0.1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["outcome"]["time"] == pytest.approx(0.48426704, abs=1e-8)
    assert document["bounds"] is None  # they are those without noise
    assert run(["gaussian", "--phase", "--noise", "0.1", "--quiet"]) == 2
