"""Sweeps: the same numbers in any order and process, folders that survive, extensions, failures, bad input."""

from __future__ import annotations

import errno
import linecache
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError, StoreError
from attractor.sweeps import Local, System, load, summarise, sweep
from attractor.sweeps.cells import derive_seed, list_cells, make_cell, read_axes
from attractor.sweeps.systems import Experiment, Request, compute, read_observables, reduce_dimension

OVER = {"beta": [0.5, 4.0, 9.0], "dim": [2, 3]}
OBSERVE = ["clusters", "pair_fraction", "consensus_time", "first_merge"]


def isotropic(beta: float, dim: int, seed: int, starts: int) -> Any:
    """Tokens on the sphere under isotropic attention."""
    return at.Attention.isotropic(dim, beta), at.Tokens.uniform(8, dim, seed=seed, ensemble=starts), at.Sphere()


def small_sweep(folder: Path | None = None, **options: Any) -> at.sweeps.Sweep:
    settings: dict[str, Any] = {"starts": 6, "observe": OBSERVE, "until": 5.0, "save": 2, "workers": 1, **options}
    return sweep(settings.pop("make", isotropic), settings.pop("over", OVER), folder=folder, **settings)


def assert_same(first: at.sweeps.Sweep, second: at.sweeps.Sweep, names: list[str] | None = None) -> None:
    for cell in first.cells:
        for name in names or first.observables:
            ours, theirs = first.values(name, **cell.arguments), second.values(name, **cell.arguments)
            assert np.array_equal(ours, theirs, equal_nan=True), (cell, name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> at.sweeps.Sweep:
    return small_sweep(tmp_path_factory.mktemp("sweep") / "whole")


def test_a_cell_is_the_flow_of_its_starts(whole: at.sweeps.Sweep) -> None:
    cell = whole.cell(beta=4.0, dim=3)
    law, tokens, space = isotropic(4.0, 3, whole.seed(cell), 6)
    run = at.flow(law, tokens, space=space, until=5.0, save=[0.0, 2.5, 5.0])
    assert np.array_equal(whole.values("pair_fraction", beta=4.0, dim=3), run.observe("pair_fraction").numpy())
    assert np.array_equal(whole.values("clusters", beta=4.0, dim=3), run.observe("clusters").double().numpy())
    ends = [outcome.time if outcome.name == "consensus" else np.inf for outcome in run.outcomes]
    assert whole.values("consensus_time", beta=4.0, dim=3)[0].tolist() == ends


@pytest.mark.parametrize("dim", [3, 40])
def test_bits_do_not_depend_on_the_other_cells(dim: int) -> None:
    """Also above the dimensions of the native loop, where rounding depends on the size of an ensemble."""
    experiment = Experiment(isotropic, read_observables(["pair_fraction", "mean"]), {"until": 3.0, "save": [1.0, 3.0]})
    cells = list(list_cells(read_axes({"beta": [1.0, 7.0, 9.0], "dim": [dim]}), "base"))
    together = compute(experiment, [Request(cell, 0, 70) for cell in cells])
    for row in together:
        alone, first, rest = (
            compute(experiment, [Request(row.request.cell, *part)])[0] for part in ((0, 70), (0, 64), (64, 6))
        )
        assert not row.reason
        for name, values in row.observed.items():
            assert np.array_equal(values, alone.observed[name])
            assert np.array_equal(values, np.concatenate([first.observed[name], rest.observed[name]], axis=1))


def test_processes_give_the_same_bits(whole: at.sweeps.Sweep, tmp_path: Path) -> None:
    assert_same(whole, small_sweep(tmp_path / "two", workers=2, over={"dim": [3, 2], "beta": [9.0, 0.5, 4.0]}))


def test_shards_fill_one_folder(whole: at.sweeps.Sweep, tmp_path: Path) -> None:
    for shard in ("2/3", (1, 3), "3/3"):
        small_sweep(tmp_path / "shards", shard=shard)
    found = small_sweep(tmp_path / "shards")
    assert len(found.cells) == 6
    assert_same(whole, found)
    assert whole.frame("all").equals(found.frame("all"))
    assert (whole.path / "table.parquet").read_bytes() == (found.path / "table.parquet").read_bytes()


def test_a_folder_grows_by_values_starts_and_observables(whole: at.sweeps.Sweep, tmp_path: Path) -> None:
    folder, costs = tmp_path / "grown", []

    def note(cost: Any) -> bool:
        costs.append((cost.cells, cost.members, cost.known))
        return True

    small_sweep(folder, over={"beta": [4.0], "dim": [2]}, starts=2, observe="clusters", confirm=note)
    small_sweep(folder, over={"beta": [4.0, 9], "dim": [2]}, starts=2, observe="clusters", confirm=note)
    small_sweep(folder, over={"beta": [4, 9.0], "dim": [2]}, starts=5, observe="clusters", confirm=note)
    small_sweep(folder, confirm=note)
    found = small_sweep(folder, confirm=note)
    # clusters of two cells lack one start, and their other observables six
    assert costs == [(1, 2, 0), (1, 2, 1), (2, 6, 0), (6, 38, 0), (0, 0, 6)]
    assert_same(whole, found)
    assert whole.frame().equals(found.frame())


def test_the_isotropic_reduction_keeps_observables() -> None:
    law, tokens, space = isotropic(6.0, 50, 3, 4)
    functions = [at.pair_fraction, partial(at.clusters, radius=0.3), at.energy]
    small = reduce_dimension(System(law, tokens, space), functions)
    assert small.state.dim == 8
    ours = at.flow(small.law, small.state, space=space, until=4.0, save=[1.0, 4.0])
    theirs = at.flow(law, tokens, space=space, until=4.0, save=[1.0, 4.0])
    for function in (at.energy, at.diameter, at.cosine_min):
        assert torch.allclose(ours.observe(function), theirs.observe(function), rtol=1e-6, atol=1e-8)
    assert reduce_dimension(System(law, tokens, space), [at.mean]).state.dim == 50


def test_a_system_may_be_made_for_each_seed(tmp_path: Path) -> None:
    def make(beta: float, seed: int) -> Any:
        return at.Attention.random(3, seed=seed), at.Tokens.uniform(5, 3, seed=seed), at.Sphere()

    found = sweep(make, {"beta": [1.0]}, starts=3, observe="cosine", until=2.0, folder=tmp_path / "a", workers=1)
    cell = found.cell()
    for start in range(3):
        law, tokens, space = make(1.0, found.seed(cell, start))
        alone = at.flow(law, tokens, space=space, until=2.0, save=[2.0]).observe("cosine")
        assert found.values("cosine")[0, start] == float(alone[0])


def fails_at_nine(beta: float, dim: int, seed: int, starts: int) -> Any:
    if beta == 9.0 and dim == 3:
        raise ValueError("no such system")
    return isotropic(beta, dim, seed, starts)


def test_a_cell_that_fails_costs_one_cell(whole: at.sweeps.Sweep, tmp_path: Path) -> None:
    found = small_sweep(tmp_path / "a", make=fails_at_nine)
    assert [(failure.cell.arguments, failure.reason) for failure in found.failed] == [
        ({"beta": 9.0, "dim": 3}, "ValueError: no such system")
    ]
    frame = found.frame()
    assert len(frame) == 6
    assert frame["clusters"].isna().sum() == 1
    with pytest.raises(InputError, match="no such system"):
        found.values("clusters", beta=9.0, dim=3)
    costs: list[Any] = []
    small_sweep(tmp_path / "a", make=fails_at_nine, confirm=lambda cost: bool(costs.append(cost)))
    assert costs[0].cells == 0
    fails_at_nine_no_more = isotropic
    fails_at_nine_no_more.identity = "fails_at_nine"  # type: ignore[attr-defined]
    try:
        healed = small_sweep(tmp_path / "a", make=fails_at_nine_no_more, retry=True)
    finally:
        del fails_at_nine_no_more.identity  # type: ignore[attr-defined]
    assert not healed.failed
    assert_same(whole, healed)


def dies_at_nine(beta: float, dim: int, seed: int, starts: int) -> Any:
    if beta == 9.0 and dim == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return isotropic(beta, dim, seed, starts)


def test_a_cell_that_kills_its_process_costs_one_cell(whole: at.sweeps.Sweep, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    program = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_sweep import *
        from attractor.sweeps.driver import _Driver
        _Driver.measure = lambda self, todo: []
        found = small_sweep(Path({str(folder)!r}), make=dies_at_nine, workers=2)
    """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = load(folder)
    assert [failure.cell.arguments for failure in found.failed] == [{"beta": 9.0, "dim": 3}]
    assert "died" in found.failed[0].reason
    good = [cell for cell in found.cells if cell.arguments != {"beta": 9.0, "dim": 3}]
    assert all(
        np.array_equal(found.values("clusters", **cell.arguments), whole.values("clusters", **cell.arguments))
        for cell in good
    )


def test_killed_and_resumed(tmp_path: Path) -> None:
    over = {"beta": at.grid(0.1, 9, 40), "dim": [2, 3, 4]}
    settings: dict[str, Any] = {"over": over, "starts": 40, "until": 20.0, "workers": 2}
    program = textwrap.dedent(f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_sweep import *
        small_sweep(Path(sys.argv[1]), over={over!r}, starts=40, until=20.0, workers=2)
    """)
    folder, partly = tmp_path / "killed", 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)], env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        before = len(list((folder / "parts").glob("*.parquet"))) if folder.exists() else 0
        limit = time.monotonic() + 60
        while time.monotonic() < limit and process.poll() is None:
            if (folder / "parts").is_dir() and len(list((folder / "parts").glob("*.parquet"))) > before + 1:
                break
            time.sleep(0.01)
        process.kill()
        partly += process.wait() == -signal.SIGKILL
    assert partly
    limit = time.monotonic() + 20
    while True:  # processes of a killed driver end by themselves
        try:
            found = small_sweep(folder, **settings)
            break
        except StoreError:
            assert time.monotonic() < limit
            time.sleep(0.1)
    assert found.frame("all").equals(small_sweep(tmp_path / "whole", **settings).frame("all"))


def test_two_drivers_on_one_folder(tmp_path: Path) -> None:
    def again(cost: Any) -> bool:
        with pytest.raises(StoreError, match="being written by another run"):
            small_sweep(tmp_path / "a")
        return False

    small_sweep(tmp_path / "a", confirm=again)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": {"bata": [1.0], "dim": [2]}}, "did you mean 'beta'"),
        ({"over": {"beta": [], "dim": [2]}}, "no values"),
        ({"over": {"beta": [1.0]}}, "needs dim too"),
        ({"over": {"beta": [float("nan")], "dim": [2]}}, "finite"),
        ({"over": {"beta": [1.0], "dim": [2], "seed": [1]}}, "no axis"),
        ({"observe": "clutsers"}, "did you mean 'clusters'"),
        ({"observe": "clusters(radios=0.1)"}, "did you mean 'radius'"),
        ({"observe": "trace"}, "Gaussian"),
        ({"observe": []}, "empty"),
        ({"starts": 0}, "starts must be"),
        ({"rtoll": 1e-3}, "did you mean 'rtol'"),
        ({"executor": "locl"}, "did you mean 'local'"),
        ({"shard": "0/3"}, "numbered from 1"),
        ({"shard": "auto"}, "SLURM_ARRAY_TASK_ID"),
        ({"device": "tpu"}, "device is"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small_sweep(**options)


def test_a_folder_of_another_sweep(tmp_path: Path, whole: at.sweeps.Sweep) -> None:
    for change, message in (
        ({"until": 6.0}, "its until is 5.0, not 6.0"),
        ({"seed": 3}, "its seed is 0, not 3"),
        ({"make": fails_at_nine}, "its system is isotropic"),
        ({"over": {"beta": [1.0], "dim": [2], "n": [3]}, "make": lambda beta, dim, n: None}, "its axes are beta, dim"),
    ):
        with pytest.raises(InputError, match=message):
            small_sweep(whole.path, **change)

    def changed(beta: float, dim: int, seed: int, starts: int) -> Any:
        return isotropic(beta + 1.0, dim, seed, starts)

    changed.__qualname__ = "isotropic"
    with pytest.raises(InputError, match="has the function changed"):
        small_sweep(whole.path, make=changed)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt is in it"):
        small_sweep(tmp_path / "other")
    with pytest.raises(StoreError, match="no folder"):
        load(tmp_path / "nowhere")


def test_a_changed_function_of_numbers_is_noticed(tmp_path: Path) -> None:
    """Comments and other cells that fail do not matter; other numbers do."""

    def numbers(text: str) -> Any:
        path = tmp_path / "numbers.py"
        path.write_text(text)
        linecache.checkcache()
        module: dict[str, Any] = {"__name__": "numbers"}
        exec(compile(text, str(path), "exec"), module)
        return module["make"]

    first = "FACTOR = 2\n\ndef double(a):\n    return FACTOR * a\n\ndef make(a):\n    return {'double': double(a)}\n"
    settings: dict[str, Any] = {"observe": None, "folder": tmp_path / "cells", "workers": 1}
    sweep(numbers(first), {"a": [1, 2]}, **settings)
    same = first.replace("    return FACTOR", "    # twice\n    return FACTOR")
    sweep(numbers(same), {"a": [3]}, **settings)
    sweep(numbers(same.replace("FACTOR * a", "a * FACTOR")), {"a": [4]}, **settings)
    for changed in (first.replace("FACTOR = 2", "FACTOR = 3"), first.replace("* a", "* a * a")):
        with pytest.raises(InputError, match="returns another double"):
            sweep(numbers(changed), {"a": [5]}, **settings)
    assert load(tmp_path / "cells").frame()["double"].tolist() == [2.0, 4.0, 6.0, 8.0]


def test_cells_with_their_own_times(tmp_path: Path) -> None:
    def make(until: float, seed: int, starts: int) -> Any:
        law, tokens, space = isotropic(2.0, 3, seed, starts)
        return System(law, tokens, space, options={"until": until})

    found = sweep(make, {"until": [1.0, 3.0]}, save=2, observe="cosine", folder=tmp_path / "a", workers=1)
    assert found.times(until=3.0).tolist() == [0.0, 1.5, 3.0]
    assert found.frame("all")["time"].tolist() == [0.0, 0.5, 1.0, 0.0, 1.5, 3.0]
    with pytest.raises(InputError, match="2 different lists of saved times"):
        found.times()
    with pytest.raises(InputError, match="different saved times"):
        found.to_xarray()
    ends = sweep(make, {"until": [1.0, 3.0]}, observe="cosine", folder=tmp_path / "b", workers=1)
    assert ends.to_xarray()["cosine"].dims == ("until",)


def test_densities() -> None:
    """Starts of a density are moved as one of them is, and counted by its own measures."""

    def make(beta: float, noise: float, seed: int) -> Any:
        phases = np.exp(2j * np.pi * np.random.default_rng(seed).random(4))
        law, state = at.Attention.isotropic(2, beta), at.Density.from_modes(0.05 * phases, size=512)
        return System(law, state, noise=at.Noise(noise) if noise else None)

    over = {"beta": [4.0], "noise": [0.0, 0.3]}
    found = sweep(
        make,
        over,
        starts=2,
        observe=["density_order", "density_peaks", "density_entropy"],
        until=2.0,
        save=1,
        workers=1,
    )
    assert not found.failed
    cell = found.cell(beta=4.0, noise=0.0)
    alone = make(4.0, 0.0, found.seed(cell, 1))
    run = at.flow(alone.law, alone.state, until=2.0, save=[2.0])
    assert run.outcome.name == "reached"
    assert isinstance(run.final, at.Density)
    values = found.values("density_order", beta=4.0, noise=0.0)
    assert values.shape == (2, 2)
    assert values[-1, 1] == pytest.approx(abs(complex(run.final.modes[1])), rel=1e-9)
    peaks = found.values("density_peaks", beta=4.0, noise=0.0)
    assert peaks[-1, 1] == run.final.peaks()
    assert (found.values("density_entropy", beta=4.0, noise=0.3)[-1] > 1.83).all()  # nearly uniform: log 2 pi = 1.8379
    with pytest.raises(InputError, match="measured on tokens, and the system moves a density"):
        sweep(make, over, observe="clusters", until=2.0)


def test_starts_must_be_drawn_in_order(tmp_path: Path) -> None:
    def make(beta: float, seed: int, starts: int) -> Any:
        points = at.Tokens.uniform(4, 2, seed=seed, ensemble=starts).points.flip(0)
        return at.Attention.isotropic(2, beta), at.Tokens(points), at.Sphere()

    sweep(make, {"beta": [1.0]}, starts=2, until=1.0, folder=tmp_path / "a", workers=1)
    found = sweep(make, {"beta": [1.0]}, starts=3, until=1.0, folder=tmp_path / "a", workers=1)
    assert "one after the other" in found.failed[0].reason


def test_seeds_depend_on_the_content_of_a_cell() -> None:
    first, same = make_cell([("a", 1), ("b", 2.0)], "x"), make_cell([("b", 2), ("a", 1.0)], "x")
    assert first.key == same.key
    assert derive_seed(0, first) == derive_seed(0, same)
    others = [make_cell([("a", 1), ("b", value)], "x") for value in (3, "2", None, True)]
    assert len({derive_seed(0, cell) for cell in (first, *others)}) == 5
    assert derive_seed(0, first) != derive_seed(1, first)
    assert derive_seed(0, first, 0) != derive_seed(0, first, 1)


def test_gaussians_and_measured_numbers() -> None:
    def gaussian(beta: float) -> Any:
        return at.Attention.isotropic(2, beta), at.Gaussian(torch.zeros(2), 0.25 * torch.eye(2))

    found = sweep(
        gaussian, {"beta": [0.5, 2.0]}, observe=["trace", "blow_up_time"], until=1.0, save=[0.0, 1.0], workers=1
    )
    run = at.flow(*gaussian(0.5), until=1.0, save=[0.0, 1.0])
    assert np.allclose(found.values("trace", beta=0.5)[:, 0], run.covariances.diagonal(dim1=-2, dim2=-1).sum(-1))
    assert np.isfinite(found.values("blow_up_time", beta=2.0)).all() == (
        at.flow(*gaussian(2.0), until=1.0).outcome.name == "blow_up"
    )
    measured = sweep(
        lambda a, seed: {"double": 2 * a, "seed": seed % 7}, {"a": [1, 2]}, starts=2, observe=None, workers=1
    )
    assert measured.frame()["double"].tolist() == [2.0, 4.0]
    assert measured.observables == ["double", "seed"]


def test_intervals_cover() -> None:
    """Of 95 % intervals about 95 in 100 hold the truth: frequencies, means and medians."""
    generator = np.random.default_rng(1)
    coins = (generator.random((400, 1, 50)) < 0.3).astype(float)
    found = summarise(coins, binary=True)
    assert 0.9 < ((found.low <= 0.3) & (found.high >= 0.3)).mean() <= 1.0
    draws = generator.exponential(size=(400, 1, 50))
    found = summarise(draws)
    assert 0.88 < ((found.low <= 1.0) & (found.high >= 1.0)).mean() < 0.99
    draws[:, :, 0] = np.inf
    found = summarise(draws)
    truth = np.log(2.0) + 0.02  # one in fifty is infinite
    assert 0.88 < ((found.low <= truth) & (found.high >= truth)).mean() <= 1.0
    large = generator.exponential(size=(400, 1, 300))
    found = summarise(large)
    assert 0.9 < ((found.low <= 1.0) & (found.high >= 1.0)).mean() < 0.99


def test_xarray_and_starts(whole: at.sweeps.Sweep) -> None:
    frame = whole.starts_frame("all")
    assert len(frame) == 6 * 6 * 3
    pytest.importorskip("xarray")
    data = whole.to_xarray()
    assert data["clusters"].dims == ("beta", "dim", "time")
    assert (
        float(data["clusters"].sel(beta=4.0, dim=3, time=5.0)) == whole.values("clusters", beta=4.0, dim=3)[-1].mean()
    )


def test_the_local_executor_needs_a_process() -> None:
    with pytest.raises(InputError, match="at least one process"):
        Local(0)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, nothing half-written, and the same call computes what is missing once there is room."""
    pq = pytest.importorskip("pyarrow.parquet")
    write, written = pq.write_table, []

    def full(table: Any, path: Any, **options: Any) -> None:
        if len(written) == 1:
            Path(path).write_bytes(b"PAR1")  # a part of it was written
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        written.append(path)
        write(table, path, **options)

    monkeypatch.setattr("attractor.sweeps.driver.TASK_CELLS", 2)
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(StoreError, match=r"(?i)no space left on device") as caught:
        small_sweep(tmp_path / "a")
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(pq, "write_table", write)
    assert len(load(tmp_path / "a").cells) == 2
    costs: list[Any] = []
    found = small_sweep(tmp_path / "a", confirm=lambda cost: not costs.append(cost))
    assert costs[0].cells == 4
    assert not [path for path in (tmp_path / "a" / "parts").iterdir() if path.name.startswith(".")]
    assert_same(found, small_sweep(tmp_path / "b"))
