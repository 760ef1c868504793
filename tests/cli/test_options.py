"""Every option does what its counterpart in Python does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import attractor as at
from attractor.cli.main import app

Command = Callable[[str], Any]


def array(name: str) -> torch.Tensor:
    return torch.from_numpy(np.load(f"{name}.npy"))


def six(**options: Any) -> at.Tokens:
    return at.Tokens(array("tokens"), **options)


def from_files(**options: Any) -> at.Attention:
    return at.Attention(array("query"), array("key"), array("value"), **options)


def isotropic(dim: int = 4, beta: float = 1.0, **options: Any) -> at.Attention:
    return at.Attention.isotropic(dim, beta, **options)


FILES = "--tokens-file tokens.npy"
LAW = "--query query.npy --key key.npy --value value.npy"
Run = Callable[[], at.Trajectory]

SAME: dict[str, Run] = {
    "--tokens 9 --dim 2 --seed 3 --until 1": lambda: at.flow(isotropic(2), at.Tokens.uniform(9, 2, seed=3), until=1.0),
    "-n 9 -d 2 -t 1 --device cpu": lambda: at.flow(isotropic(2), at.Tokens.uniform(9, 2), until=1.0),
    "--tokens 9 --start gaussian --spread 0.5 --until 1": lambda: at.flow(
        isotropic(3), at.Tokens.gaussian(9, 3, scale=0.5), until=1.0
    ),
    "--tokens 9 --start hemisphere --space sphere --until 1": lambda: at.flow(
        isotropic(3), at.Tokens.hemisphere(9, 3), space=at.Sphere(), until=1.0
    ),
    "--start orthonormal --dim 5 --space sphere --radius 2 --until 1": lambda: at.flow(
        isotropic(5), at.Tokens.orthonormal(5, 5), space=at.Sphere(2.0), until=1.0
    ),
    "--tokens 9 --ensemble 3 --until 1": lambda: at.flow(isotropic(3), at.Tokens.uniform(9, 3, ensemble=3), until=1.0),
    "--tokens-file tokens.csv --until 1": lambda: at.flow(isotropic(), six(), until=1.0),
    "--tokens-file ensemble.npy --until 1": lambda: at.flow(isotropic(), at.Tokens(array("ensemble")), until=1.0),
    f"{FILES} --masses masses.npy --until 1": lambda: at.flow(isotropic(), six(masses=array("masses")), until=1.0),
    f"{FILES} --places places.npy --mask causal --until 1": lambda: at.flow(
        isotropic(mask="causal"), six(positions=array("places")), until=1.0
    ),
    f"{FILES} --float32 --until 1": lambda: at.flow(isotropic(), six(dtype=torch.float32), until=1.0),
    f"{FILES} {LAW} --until 1": lambda: at.flow(from_files(), six(), until=1.0),
    f"--tokens 5 {LAW} --scale 0.5 --until 1": lambda: at.flow(
        from_files(scale=0.5), at.Tokens.uniform(5, 4), until=1.0
    ),
    f"{FILES} --query query.npy --key key.npy --value narrow.npy --output-projection projection.npy "
    "--query-bias head_bias.npy --key-bias head_bias.npy --value-bias value_bias.npy "
    "--output-bias output_bias.npy --until 1": lambda: at.flow(
        at.Attention(
            array("query"),
            array("key"),
            array("narrow"),
            output=array("projection"),
            query_bias=array("head_bias"),
            key_bias=array("head_bias"),
            value_bias=array("value_bias"),
            output_bias=array("output_bias"),
        ),
        six(),
        until=1.0,
    ),
    f"{FILES} --random-law 5 --heads 2 --head-dim 3 --until 1": lambda: at.flow(
        at.Attention.random(4, 2, 3, seed=5), six(), until=1.0
    ),
    f"{FILES} --kernel l2 --beta 2 --until 1": lambda: at.flow(isotropic(beta=2.0, kernel="l2"), six(), until=1.0),
    f"{FILES} --kernel sinkhorn --eps 0.5 --until 0.5": lambda: at.flow(
        isotropic(kernel=at.Sinkhorn(eps=0.5)), six(), until=0.5
    ),
    f"{FILES} --kernel capped --cap 2 --until 1": lambda: at.flow(isotropic(kernel=at.Capped(2.0)), six(), until=1.0),
    f"{FILES} --kernel sigmoid --bias -2 --until 1": lambda: at.flow(
        isotropic(kernel=at.Sigmoid(bias=-2.0)), six(), until=1.0
    ),
    f"{FILES} --kernel exponential --until 0.01": lambda: at.flow(isotropic(kernel="exponential"), six(), until=0.01),
    f"{FILES} --kernel linear --until 0.1": lambda: at.flow(isotropic(kernel="linear"), six(), until=0.1),
    f"{FILES} --mask window:2 --until 1": lambda: at.flow(isotropic(mask="window:2"), six(), until=1.0),
    f"{FILES} --mask mask.npy --until 1": lambda: at.flow(isotropic(mask=array("mask")), six(), until=1.0),
    f"{FILES} --positions rotary --theta 100 --rotary-dim 2 --until 1": lambda: at.flow(
        isotropic(positions=at.Rotary(100.0, 2)), six(), until=1.0
    ),
    f"{FILES} --positions absolute --position-table table.npy --on qk --until 1": lambda: at.flow(
        isotropic(positions=at.Absolute(array("table"), on="qk")), six(), until=1.0
    ),
    f"{FILES} --positions absolute,rotary --position-table table.npy --theta 100 --until 1": lambda: at.flow(
        isotropic(positions=[at.Absolute(array("table")), at.Rotary(100.0)]), six(), until=1.0
    ),
    f"{FILES} --positions absolute --theta 10 --when input --until 1": lambda: at.flow(
        isotropic(positions=at.Absolute.sinusoidal(6, 4, 10.0, when="input")), six(), until=1.0
    ),
    f"{FILES} --space ellipsoid --ellipsoid W.npy --until 1": lambda: at.flow(
        isotropic(), six(), space=at.Ellipsoid(array("W")), until=1.0
    ),
    "--tokens 9 --start student:4 --spread 0.5 --until 1": lambda: at.flow(
        isotropic(3), at.Tokens.sample("student:4", 9, 3, scale=0.5), until=1.0
    ),
    "--tokens 5 --space ellipsoid --axes 1,2 --until 1": lambda: at.flow(
        isotropic(2),
        at.Tokens.uniform(5, 2),
        space=at.Ellipsoid(torch.diag(torch.tensor([1.0, 0.25]).double())),
        until=1.0,
    ),
    f"{FILES} --until 1 --save 4": lambda: at.flow(isotropic(), six(), until=1.0, save=4),
    f"{FILES} --save 0,0.5,2": lambda: at.flow(isotropic(), six(), save=[0.0, 0.5, 2.0]),
    f"{FILES} --until 1 --method rk4 --step 0.1": lambda: at.flow(
        isotropic(), six(), until=1.0, method="rk4", step=0.1
    ),
    f"{FILES} --until 1 --method dopri5 --step 0.125 --fixed-step": lambda: at.flow(
        isotropic(), six(), until=1.0, method="dopri5", step=0.125, adaptive=False
    ),
    f"{FILES} --until 4 --method layers": lambda: at.flow(isotropic(), six(), until=4.0, method="layers"),
    f"{FILES} --until 1 --rtol 1e-5 --atol 1e-7": lambda: at.flow(isotropic(), six(), until=1.0, rtol=1e-5, atol=1e-7),
    f"{FILES} --space sphere --until 50 --merge 1e-2": lambda: at.flow(
        isotropic(), six(), space=at.Sphere(), until=50.0, merge=1e-2
    ),
    f"{FILES} --space sphere --until 20 --merge off --stop none": lambda: at.flow(
        isotropic(), six(), space=at.Sphere(), until=20.0, merge=False, stop=()
    ),
    f"{FILES} --space sphere --until 1e3 --stop consensus,steady": lambda: at.flow(
        isotropic(), six(), space=at.Sphere(), until=1e3, stop=["consensus", "steady"]
    ),
    f"{FILES} --space sphere --beta 90 --log-until 800 --save 20": lambda: at.flow(
        isotropic(beta=90.0), six(), space=at.Sphere(), until=at.exp(800), save=20
    ),
    "--tokens 4 --dim 32 --until 1 --full-dimension": lambda: at.flow(
        at.Attention.isotropic(32, 1.0), at.Tokens.uniform(4, 32), until=1.0, reduce=False
    ),
    "--tokens 6 --dim 2 --until 1 --mask causal --positions alibi --slopes 0.25": lambda: at.flow(
        at.Attention.isotropic(2, 1.0, mask="causal", positions=at.Alibi([0.25])), at.Tokens.uniform(6, 2), until=1.0
    ),
    f"{FILES} --until 5 --max-evaluations 30": lambda: at.flow(isotropic(), six(), until=5.0, max_evaluations=30),
    f"{FILES} --until 1 --engine blockwise --max-seconds 1e6": lambda: at.flow(
        isotropic(), six(), until=1.0, engine="blockwise", max_seconds=1e6
    ),
}
ELSEWHERE = {  # tested in the other files of this folder
    "--out", "--resume", "--plot", "--report", "--clock", "--density",
    "--member", "--width", "--observe", "--json", "--quiet", "--progress",
    "--debug", "--help", "--noise", "--common-noise", "--noise-kind", "--noise-seed", "--redrawn",
    "--attention", "--no-caption", "--rescaled", "--snapshots", "--title", "--view",
}  # fmt: skip


@pytest.mark.parametrize("line", SAME)
def test_the_same_run_as_in_python(line: str, command: Command, folder: Path) -> None:
    report, run = command(f"simulate {line} --json").json, SAME[line]()
    assert report["outcome"] == vars(run.outcome)
    assert report["times"] == run.times.tolist()
    assert report["stats"]["evaluations"] == run.stats.evaluations
    assert report["stats"]["engine"] == run.stats.engine
    assert len(report["events"]) == len(run.events)
    for name in ("token_norm", "pairwise_distance"):
        expected = at.observables.find_observable(name)(run.final, space=run.space)
        np.testing.assert_array_equal(np.array(report["observables"][name]["end"]), expected.numpy())


def test_every_option_is_exercised() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {parameter.opts[0] for parameter in commands["simulate"].params}
    words = {word for line in SAME for word in line.split()}
    assert {"--dim", "--tokens", "--until"} <= words
    # options that kernels declare are tested with the kernels
    declared = {f"--{name.replace('_', '-')}" for kernel in at.Kernel.__subclasses__() for name in kernel.options()}
    assert options - words - ELSEWHERE - declared == set()


def test_a_bare_command_runs(command: Command) -> None:
    report = command("simulate --json").json
    assert report["sizes"] == {"tokens": 64, "dim": 3, "ensemble": [], "saved": 201}
    assert report["outcome"]["name"] == "reached"
    assert report["outcome"]["time"] == 10.0


def test_help_names_what_exists(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    text = command("simulate --help").out
    kernels = [kernel.name for kernel in at.Kernel.__subclasses__()]
    for word in [
        *kernels,
        "dop853",
        "dopri5",
        "rk4",
        "euler",
        "layers",
        "consensus",
        "collapsed",
        "steady",
        "hemisphere",
    ]:
        assert word in text
