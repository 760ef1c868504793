"""Runs survive: what is stored can be read back, and a run that was stopped anywhere ends as if it had not been."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import StoreError, UnsupportedError

pytest.importorskip("zarr")
store_module = importlib.import_module("attractor.solvers.store")


class Stopped(Exception):
    """Raised by the tests in the middle of a run."""


@pytest.fixture
def eager(monkeypatch):
    """A checkpoint after every step."""
    monkeypatch.setattr(store_module, "INTERVAL", 0.0)
    monkeypatch.setattr(store_module, "SHARE", 1e9)


def affine_pair() -> at.Stack:
    generator = torch.Generator().manual_seed(3)
    matrices = [0.5 * torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    return at.Stack(tuple(at.Attention(torch.eye(3), torch.eye(3), matrix) for matrix in matrices))


RUNS = {
    "merging on the sphere": lambda: (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(12, 3, seed=1),
        dict(space=at.Sphere(), until=200.0, merge=1e-3),
    ),
    "ensemble with its own ends": lambda: (
        at.Attention.isotropic(3, 1.0),
        at.Tokens.uniform(5, 3, seed=2, ensemble=(2, 2)),
        dict(space=at.Sphere(), until=60.0),
    ),
    "causal with named times": lambda: (
        at.Attention.isotropic(3, 2.0, mask="causal"),
        at.Tokens.uniform(6, 3, seed=3),
        dict(space=at.Sphere(), save=[0.0, 0.5, 1.0, 7.5], method="dopri5"),
    ),
    "stack with breaks": lambda: (affine_pair(), at.Tokens.gaussian(4, 3, seed=4), dict(save=30)),
    "discrete layers": lambda: (
        at.Attention.isotropic(3, 2.0),
        at.Tokens.uniform(6, 3, seed=5),
        dict(space=at.Sphere(), until=20.0, method="layers"),
    ),
    "ellipsoid, sinkhorn": lambda: (
        at.Attention.isotropic(3, 2.0, kernel=at.Sinkhorn(eps=0.5)),
        at.Tokens.uniform(5, 3, seed=6),
        dict(space=at.Ellipsoid(torch.diag(torch.tensor([1.0, 2.0, 4.0]))), until=3.0, rtol=1e-6),
    ),
    "a Gaussian that blows up": lambda: (
        at.Attention.isotropic(2, 1.0),
        at.Gaussian([0.1, 0.2], [[1.0, 0.2], [0.2, 0.5]]),
        dict(until=5.0),
    ),
}


def same(run: at.Trajectory, other: at.Trajectory) -> bool:
    keys = ("name", "time", "message")
    return (
        torch.equal(run.points, other.points)
        and torch.equal(run.times, other.times)
        and [[getattr(o, k) for k in keys] for o in run.outcomes]
        == [[getattr(o, k) for k in keys] for o in other.outcomes]
        and [(e.time, e.mass, e.members) for e in run.events] == [(e.time, e.mass, e.members) for e in other.events]
        and (run.stats.evaluations, run.stats.accepted) == (other.stats.evaluations, other.stats.accepted)
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_stored_run_reads_back_with_law_state_and_space(name, tmp_path):
    law, state, options = RUNS[name]()
    streamed = at.flow(law, state, store=tmp_path / "streamed", **options)
    plain = at.flow(law, state, **options)
    plain.save(tmp_path / "saved")
    for path in ("streamed", "saved"):
        loaded = at.load(tmp_path / path)
        assert same(loaded, plain)
        assert same(loaded, streamed)
        assert type(loaded.law) is type(law)
        assert loaded.space.name == plain.space.name


@pytest.mark.parametrize("name", RUNS)
def test_a_run_stopped_after_any_step_resumes_to_the_same_bits(name, tmp_path, eager):
    law, state, options = RUNS[name]()
    whole = at.flow(law, state, **options)
    steps = whole.stats.accepted + whole.stats.rejected
    for stop in sorted({1, 3, steps // 2, steps - 1} - {0}):
        path, seen = tmp_path / f"stop{stop}", []

        def raise_at(run, seen=seen, stop=stop):
            seen.append(run)
            if len(seen) > stop:
                raise Stopped

        try:
            at.flow(law, state, store=path, progress=raise_at, **options)
        except Stopped:
            assert at.load(path).outcome.name in ("unfinished", "mixed") or len(whole.outcomes) > 1
        assert same(at.resume(path), whole), f"stopped after {stop} of {steps} steps"


KILLED = """
    import importlib, sys, time
    import attractor as at
    importlib.import_module("attractor.solvers.store").INTERVAL = 0.05
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(96, 3, seed=0)
    at.flow(law, tokens, space=at.Sphere(), until=1e6, store=sys.argv[1], progress=lambda run: time.sleep(0.02))
"""


@pytest.mark.slow
def test_kill_minus_nine_in_the_middle_then_resume_gives_the_identical_final_state(tmp_path):
    whole = at.flow(at.Attention.isotropic(3, 9.0), at.Tokens.uniform(96, 3, seed=0), space=at.Sphere(), until=1e6)
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED), str(path)])
    deadline = time.monotonic() + 60
    while not (path / "checkpoint.npz").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert at.load(path).outcome.name == "unfinished"
    resumed = at.resume(path)
    assert torch.equal(resumed.final.points, whole.final.points)
    assert same(resumed, whole)


def test_a_spent_budget_leaves_a_run_that_goes_on(tmp_path):
    law, state, options = RUNS["merging on the sphere"]()
    first = at.flow(law, state, store=tmp_path / "run", max_evaluations=100, **options)
    assert first.outcome.name == "budget"
    assert same(at.resume(tmp_path / "run"), at.flow(law, state, **options))


def test_resuming_a_finished_run_returns_it(tmp_path):
    law, state, options = RUNS["causal with named times"]()
    done = at.flow(law, state, store=tmp_path / "run", **options)
    assert same(at.resume(tmp_path / "run"), done)


def test_a_law_that_is_a_function_must_be_given_again(tmp_path):
    law = at.Schedule(lambda t: at.Attention.isotropic(3, 1.0 + t))
    run = at.flow(law, at.Tokens.uniform(4, 3), space=at.Sphere(), until=1.0, store=tmp_path / "run")
    assert at.load(tmp_path / "run").law is None
    with pytest.raises(StoreError, match="give law="):
        at.resume(tmp_path / "run")
    assert torch.equal(at.resume(tmp_path / "run", law=law).points, run.points)


def run_short(path, seed=0, **options):
    return at.flow(
        at.Attention.isotropic(3, 1.0),
        at.Tokens.uniform(4, 3, seed=seed),
        space=at.Sphere(),
        until=1.0,
        store=path,
        **options,
    )


def test_a_store_is_not_overwritten(tmp_path):
    run_short(tmp_path / "run")
    with pytest.raises(StoreError, match="holds a run already"):
        run_short(tmp_path / "run")


def test_the_store_of_another_run_is_refused(tmp_path):
    run_short(tmp_path / "run")
    with pytest.raises(StoreError, match="store of another run: its state"):
        run_short(tmp_path / "run", seed=1, resume=True)
    with pytest.raises(StoreError, match="store of another run: its options"):
        run_short(tmp_path / "run", rtol=1e-6, resume=True)


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(StoreError, match="is not a store"):
        run_short(tmp_path / "notes")
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    with pytest.raises(StoreError, match=r"not a run of attractor"):
        at.load(tmp_path / "notes")
    with pytest.raises(StoreError, match=r"not a run of attractor"):
        at.load(tmp_path / "nothing")


def test_an_unwritable_place_is_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created") as error:
        run_short(tmp_path / "file" / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("victim", ["checkpoint.npz", "zarr.json"])
def test_a_truncated_file_is_one_clear_sentence(tmp_path, victim):
    run_short(tmp_path / "run")
    path = tmp_path / "run" / victim
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(StoreError) as error:
        at.load(tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_store_of_another_schema_is_refused(tmp_path):
    run_short(tmp_path / "run")
    path = tmp_path / "run" / "zarr.json"
    words = json.loads(path.read_text())
    words["attributes"]["schema"] = "attractor.run/99"
    path.write_text(json.dumps(words))
    with pytest.raises(StoreError, match=r"attractor\.run/99"):
        at.load(tmp_path / "run")


def test_an_unknown_record_in_a_store_is_refused(tmp_path):
    run_short(tmp_path / "run")
    path = tmp_path / "run" / "zarr.json"
    path.write_text(path.read_text().replace('"Attention"', '"Backdoor"'))
    with pytest.raises(StoreError, match="Backdoor"):
        at.load(tmp_path / "run")


def test_a_disk_that_fills_up_keeps_what_was_stored(tmp_path, eager, monkeypatch):
    law, state, options = RUNS["merging on the sphere"]()
    whole = at.flow(law, state, **options)
    real, count = os.fsync, []

    def full(descriptor):
        count.append(1)
        if len(count) > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full") as error:
        at.flow(law, state, store=tmp_path / "run", **options)
    assert "resume" in str(error.value)
    monkeypatch.setattr(os, "fsync", real)
    assert not list(Path(tmp_path / "run").glob(".*partial"))
    assert same(at.resume(tmp_path / "run"), whole)


FULL = """
    import importlib, resource, signal, sys
    import attractor as at
    importlib.import_module("attractor.solvers.store").INTERVAL = 0.0
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    law, state = at.Attention.isotropic(3, 2.0), at.Tokens.uniform(400, 3, seed=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
    try:
        at.flow(law, state, space=at.Sphere(), until=5.0, store=sys.argv[1])
    except at.AttractorError as error:
        print(error)
"""


def test_a_real_limit_on_file_size_is_one_clear_sentence(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout.count("\n") == 1
    assert "the disk is full" in process.stdout
    assert process.stderr == ""


def test_gradients_and_stores_do_not_mix(tmp_path):
    points = at.Tokens.uniform(4, 3).points.clone().requires_grad_()
    with pytest.raises(UnsupportedError, match="gradients"):
        at.flow(at.Attention.isotropic(3, 1.0), at.Tokens(points), until=1.0, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", [None, "reference"])
def test_an_ensemble_goes_on_after_some_of_its_members_have_ended(tmp_path, engine):
    draw = np.random.default_rng(0)
    query, key = draw.standard_normal((2, 5, 1, 3, 3))
    law = at.Attention(query, key, np.tile(np.eye(3), (5, 1, 1, 1)))
    tokens = at.Tokens(at.Tokens.uniform(6, 3, seed=1, ensemble=5).points, masses=draw.random((5, 6)) + 0.1)
    options = {"space": at.Sphere(), "until": 2e3, "engine": engine, "save": 3}
    whole = at.flow(law, tokens, **options)
    for share in (0.5, 0.95):
        path = tmp_path / f"run {share}"
        first = at.flow(law, tokens, store=path, max_evaluations=int(share * whole.stats.evaluations), **options)
        assert "budget" in [outcome.name for outcome in first.outcomes]
        resumed = at.resume(path)
        assert [outcome.name for outcome in resumed.outcomes] == [outcome.name for outcome in whole.outcomes]
        torch.testing.assert_close(resumed.final.points, whole.final.points, rtol=0, atol=1e-7)
    assert {outcome.name for outcome in first.outcomes} != {"budget"}  # some had ended


def test_checkpoints_of_attractor_0_1_are_read(tmp_path: Path) -> None:
    """Checkpoint arrays had other names in 0.1; the states are the same."""
    law, tokens = at.Attention.isotropic(dim=3, beta=4.0), at.Tokens.uniform(12, 3, seed=0)
    run = at.flow(law, tokens, space=at.Sphere(), until=20.0, merge=1e-3, store=tmp_path / "run.zarr")
    path = tmp_path / "run.zarr" / "checkpoint.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    words = json.loads(str(arrays["json"]))
    words |= {"log": words.pop("events"), "noted": {}, "values": []}
    del arrays["complete_rows"]
    old = {name.replace("tree", "forest"): array for name, array in arrays.items()}
    np.savez(path, **{**old, "who": np.zeros(0, dtype=np.int64), "json": np.array(json.dumps(words))})
    loaded = at.load(tmp_path / "run.zarr")
    assert torch.equal(loaded.points, run.points)
    assert loaded.outcome == run.outcome
    assert loaded.events == run.events
    assert torch.equal(at.resume(tmp_path / "run.zarr").points, run.points)
