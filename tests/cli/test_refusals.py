"""A bad argument is one clear line and exit code 2; nothing is written and nothing runs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Command = Callable[[str], Any]


BAD = {
    "--tokens-file nan.npy": "holds NaN at index (1, 0)",
    "--tokens-file infinite.npy": "an infinite value",
    "--tokens-file tokens.npy --dim 3": "--dim 3 does not fit tokens.npy, which holds 6 tokens of dimension 4",
    "--tokens-file tokens.npy --tokens 7": "--tokens 7 does not fit",
    "--tokens-file tokens.npy --ensemble 2": "--ensemble is for random starts",
    "--tokens-file tokens.npy --masses short.npy": "one entry a token",
    "--tokens-file zero.npy --space sphere": "zero vector",
    "--tokens-file empty.npy": "at least one token",
    "--tokens-file pickled.npy": "pickled objects, which are never read",
    "--tokens-file object.npy": "pickled objects, which are never read",
    "--tokens-file tokens.pkl": "pickles are never read",
    "--tokens-file truncated.npy": "not a whole .npy file",
    "--tokens-file header.npy": "not a whole .npy file",
    "--tokens-file nothing.npy": "not a whole .npy file",
    "--tokens-file words.npy": "array of real numbers",
    "--tokens-file complex.npy": "array of real numbers",
    "--tokens-file words.csv": "rows of numbers separated by commas",
    "--tokens-file ragged.csv": "rows of numbers separated by commas",
    "--tokens-file nothing.csv": "is empty",
    "--tokens-file absent.npy": "does not exist",
    "--tokens-file folder.npy": "is a folder",
    "--tokens-file line.npy": "(..., n, d)",
    "--tokens 0": "at least one token",
    "--tokens -3": "at least one token",
    "--tokens many": "--tokens",
    "--dim 0": "at least one dimension",
    "--start nowhere": "uniform, hemisphere, polygon, clusters, gaussian, ball, box, shell, ellipse, mixture, student, laplace",
    "--start student:few": "such as student:5",
    "--start orthonormal --tokens 9": "at most dim orthonormal tokens",
    "--start orthonormal --dim 9 --ensemble 2": "leave out --ensemble",
    "--ensemble 0": "--ensemble",
    "--seed -1": "--seed",
    "--tokens-file three.npy --query query.npy --key key.npy --value value.npy": "dimension 4, the state has dimension 3",
    "--dim 3 --query query.npy --key key.npy --value value.npy": "dimension 4, the state has dimension 3",
    "--query query.npy --key query.npy": "give --value too",
    "--query-bias head_bias.npy": "give --query and --key and --value too",
    "--query query.npy --key key.npy --value three.npy": "value must be (2, 4, 4)",
    "--beta 2 --query query.npy --key key.npy --value value.npy": "different laws",
    "--beta 2 --random-law 1": "different laws",
    "--heads 2": "give --random-law SEED too",
    "--random-law 1 --heads 2": "give --head-dim too",
    "--beta nan": "--beta must be a finite number",
    "--kernel cosine": "the kernels are capped, exponential",
    "--eps 0.5": "--eps belongs to --kernel sinkhorn",
    "--bias 0.5": "--bias belongs to --kernel sigmoid",
    "--kernel sinkhorn --eps 0": "eps > 0",
    "--mask diagonal": "causal, window:W",
    "--mask window:0": "at least 1",
    "--mask tokens.npy": "boolean and square",
    "--positions rotary": "head dimension must be even, got 3",
    "--dim 4 --positions rotary --rotary-dim 3": "must be even",
    "--dim 4 --positions rotary --theta -1": "theta > 0",
    "--dim 4 --positions absolute --theta -1": "need theta > 0",
    "--dim 4 --positions absolute --when never": "every",
    "--positions learned": "absolute,rotary or alibi",
    "--positions rotary,rotary": "absolute,rotary or alibi",
    "--rotary-dim 2": "belongs to --positions rotary",
    "--position-table table.npy": "belongs to --positions absolute",
    "--dim 3 --positions absolute --position-table table.npy": "dimension 4, the law has 3",
    "--space torus": "euclidean, sphere, ellipsoid",
    "--space ellipsoid": "--ellipsoid FILE",
    "--space ellipsoid --ellipsoid indefinite.npy": "positive definite matrix; the smallest eigenvalue is -1",
    "--space ellipsoid --ellipsoid skew.npy": "symmetric",
    "--space ellipsoid --axes 1,0,2": "positive lengths",
    "--space ellipsoid --axes 1,two": "'two' is not a number",
    "--space ellipsoid --axes 1,2 --dim 3": "dimension 2, the tokens in dimension 3",
    "--axes 1,2,3": "give --space ellipsoid too",
    "--radius 2": "belongs to --space sphere",
    "--space sphere --radius -1": "positive radius",
    "--until -1": "--until -1 is not after the start at t = 0: give a positive time",
    "--until 0": "give a positive time",
    "--until inf": "--until must be a finite number",
    "--until soon": "--until",
    "--save 0": "at least one interval",
    "--save 1.5": "whole number of intervals or a list of times",
    "--save 3,2,1": "increasing",
    "--save 0,100 --until 10": "between the start 0 and until 10",
    "--method magic": "the methods are",
    "--method rk4": "give --step",
    "--fixed-step": "give --step",
    "--step 0": "step must be positive",
    "--rtol 2": "rtol must be between",
    "--rtol 1e-20": "rtol must be between",
    "--atol -1": "atol must be positive",
    "--merge near": "a distance such as 1e-3, or off",
    "--merge -1": "a positive distance",
    "--merge 1e-3 --mask causal": "tokens cannot be merged here",
    "--stop never": "the stops are consensus, collapsed, steady",
    "--engine magic": "the engines are",
    "--max-seconds -1": "--max-seconds",
    "--max-evaluations 0": "--max-evaluations",
    "--observe diametre": "did you mean 'diameter'?",
    "--kernel l2 --observe energy": "energy",
    "--out tokens.npy": "--out tokens.npy exists already",
    "--out tokens.npy/run.zarr": "tokens.npy is a file, not a folder",
    "--out /proc/run.zarr": "--out /proc/run.zarr cannot be written",
    "--plot absent/tokens.png": "the folder absent does not exist",
    "--plot tokens.docx": "give one of .html, .png",
    "--plot /proc/tokens.png": "--plot /proc/tokens.png cannot be written",
    "--plot folder.npy": "is a folder",
    "--plot tokens.png --member 1": "--member 1 does not exist",
    "--resume run.zarr --beta 2 --out other.zarr": "leave out --beta, --out",
    "--speed 3": "No such option",
    "--tokens": "requires an argument",
    "tokens.npy": "unexpected extra argument",
}


@pytest.fixture
def bad_files(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "nan": np.array([[1.0, 2.0], [np.nan, 0.0]]),
        "infinite": np.array([[1.0, np.inf]]),
        "three": rng.standard_normal((5, 3)),
        "zero": np.zeros((2, 3)),
        "empty": np.zeros((0, 3)),
        "line": np.zeros(3),
        "short": np.ones(2),
        "words": np.array(["a", "b"]),
        "complex": np.array([[1j, 2.0]]),
        "indefinite": np.diag([1.0, 2.0, -1.0]),
        "skew": np.array([[1.0, 2.0], [0.0, 1.0]]),
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    np.save("object.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    whole = Path("tokens.npy").read_bytes()
    files = {"pickled.npy": pickle.dumps([1, 2]), "tokens.pkl": pickle.dumps([1, 2]), "truncated.npy": whole[:150]}
    files |= {"header.npy": whole[:40], "nothing.npy": b"", "nothing.csv": b"", "words.csv": b"x,y\n1,2\n"}
    for name, content in {**files, "ragged.csv": b"1,2\n3\n"}.items():
        Path(name).write_bytes(content)
    Path("folder.npy").mkdir()
    return folder


@pytest.mark.parametrize("line", BAD)
def test_a_bad_argument_is_one_line(line: str, command: Command, bad_files: Path) -> None:
    if "/proc" in line and not Path("/proc").is_dir():
        pytest.skip("no folder here that nobody may write to")
    before = sorted(bad_files.rglob("*"))
    done = command(f"simulate {line}")
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert done.err.startswith("attractor")
    assert BAD[line] in done.err
    assert "Traceback" not in done.err
    assert sorted(bad_files.rglob("*")) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("simulat", "Did you mean 'simulate'? See attractor --help"),
        ("simulate --resume .", "is not a run of attractor"),
        ("claims --plot tokens.npy/pictures", "tokens.npy is a file, not a folder"),
        ("study run bytes --data tokens.npy --out tokens.npy", "tokens.npy is a file, not a folder"),
        ("train tiny --data tokens.npy --out tokens.npy", "tokens.npy is a file, not a folder"),
        ("train --out run", "give a CONFIG"),
        ("train --resume . --seed 1 --seeds 1,2", "--seed is for one run"),
        ("tour --out tokens.npy", "tokens.npy is a file, not a folder"),
        ("check --systems 3 --theorem regimes.T1", "--systems does not go with --theorem"),
        ("check --theorem gravity", "'gravity' is not known"),
        ("audit", "Missing argument"),
        ("trace", "give a model, or hidden states with --states FILE"),
        ("doctor x", "extra"),
    ],
)
def test_a_bad_command_is_one_line(line: str, words: str, command: Command, folder: Path) -> None:
    done = command(line)
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert words in done.err


def test_debug_shows_the_traceback(command: Command) -> None:
    done = command("simulate --tokens 0 --debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert done.err.splitlines()[-1].startswith("attractor simulate: error: there must be at least one token")


def test_a_surprise_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*anything: object, **more: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(sys.modules["attractor.solvers"], "flow", broken)  # at.flow is the function
    done = command("simulate --tokens 3")
    assert done.code == 1
    assert done.err == "attractor simulate: error: ZeroDivisionError: two lines (give --debug for the traceback)\n"


def test_too_much_memory_is_one_line(command: Command) -> None:
    done = command("simulate --tokens 1000000000000")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "not enough memory" in done.err


def test_a_stalled_run_fails_and_still_reports(command: Command) -> None:
    done = command("simulate --kernel exponential --method euler --step 100 --until 1000")
    assert done.code == 1
    assert done.out.startswith("Stalled")
    assert "use a smaller one" in done.err


def test_a_blow_up_is_an_answer(command: Command) -> None:
    report = command("simulate --tokens 5 --kernel exponential --until 100 --json").json
    assert report["outcome"]["name"] == "blow_up"
