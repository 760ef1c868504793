"""Runs survive: what is stored can be read back, and a run that was stopped anywhere ends as if it had not been."""

from __future__ import annotations

import errno
import importlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import StoreError, UnsupportedError
from attractor.files import checksum_json, replace_on_success

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
    "noise": lambda: (
        at.Attention.isotropic(3, 2.0),
        at.Tokens.uniform(5, 3, seed=2, ensemble=(2, 2)),
        dict(space=at.Sphere(), noise=at.Noise.interpolate([0.0, 0.7], [0.1, 0.2], seed=3), step=0.1, until=2.0),
    ),
    "common and layer noise": lambda: (
        at.Attention.isotropic(3, 2.0, kernel=at.Sinkhorn(eps=0.5)),
        at.Tokens.uniform(5, 3, seed=6),
        dict(space=at.Sphere(), noise=at.Noise(0.1, common=0.2, kind="layer", seed=3), step=0.1, until=2.0),
    ),
    "redrawn values": lambda: (
        at.Attention.random(3, heads=2, head_dim=2, seed=1),
        at.Tokens.uniform(5, 3, seed=6, ensemble=3),
        dict(space=at.Sphere(), noise=at.Redrawn(0.5, seed=3), step=0.1, until=2.0),
    ),
    "a Gaussian with noise": lambda: (
        at.Attention.isotropic(2, 1.0),
        at.Gaussian([0.1, 0.2], [[1.0, 0.2], [0.2, 0.5]]),
        dict(noise=at.Noise(0.1), until=5.0),
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
    first = path / "checkpoint.npz"  # a store is created with an empty one
    while not (first.exists() and first.stat().st_size > 200) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert at.load(path).outcome.name == "unfinished"
    resumed = at.resume(path)
    assert torch.equal(resumed.final.points, whole.final.points)
    assert same(resumed, whole)


KILLED_WITH_NOISE = """
    import importlib, sys, time
    import attractor as at
    importlib.import_module("attractor.solvers.store").INTERVAL = 0.02
    law, tokens = at.Attention.isotropic(3, 4.0), at.Tokens.uniform(16, 3, seed=0, ensemble=4)
    noise = at.Noise(0.05, seed=8)
    at.flow(law, tokens, space=at.Sphere(), noise=noise, step=0.01, until=2.0, store=sys.argv[1], progress=lambda run: time.sleep(0.02))
"""


def test_a_killed_run_with_noise_resumes_to_the_same_bits(tmp_path):
    law, tokens, noise = (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(16, 3, seed=0, ensemble=4),
        at.Noise(0.05, seed=8),
    )
    whole = at.flow(law, tokens, space=at.Sphere(), noise=noise, step=0.01, until=2.0)
    path = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KILLED_WITH_NOISE), str(path)])
    deadline = time.monotonic() + 60
    first = path / "checkpoint.npz"
    while not (first.exists() and first.stat().st_size > 200) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert at.load(path).outcome.name in ("unfinished", "mixed")
    assert same(at.resume(path), whole)


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
    path.write_text(path.read_text().replace('"Sphere"', '"Backdoor"'))
    with pytest.raises(StoreError, match=r"its zarr\.json does not have its checksum"):
        at.load(tmp_path / "run")


def test_a_disk_that_fills_up_keeps_what_was_stored(tmp_path, eager, monkeypatch):
    law, state, options = RUNS["merging on the sphere"]()
    whole = at.flow(law, state, **options)
    real, count = os.fsync, []

    def full(descriptor):
        count.append(1)
        if len(count) > 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full") as error:
        at.flow(law, state, store=tmp_path / "run", **options)
    assert "resume" in str(error.value)
    monkeypatch.setattr(os, "fsync", real)
    assert {entry.name for entry in (tmp_path / "run").glob(".*")} == {".lock"}
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


OWN = """
    from dataclasses import dataclass
    import torch
    import attractor as at

    @dataclass(frozen=True, eq=False)
    class Spiral(at.Law):
        rate: torch.Tensor
        mergeable = True

        def is_attracting(self):
            return True

        def velocity(self, tokens, time=0.0, *, skip_self=False):
            mean = (tokens.weights[..., None] * tokens.points).sum(-2, keepdim=True)
            return self.rate * mean.expand_as(tokens.points)

    @dataclass(frozen=True, eq=False)
    class Near(at.solvers.Rule):
        name = "near"
        urgent = False
        limit_value: float = 1e-3

        def measure(self, view):
            return at.solvers.Steady().measure(view) * 0 + 2.0

    @dataclass(frozen=True, eq=False)
    class Ball(at.Sphere):
        pass
"""
WRITE_OWN = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import torch, attractor as at
    from spirals_of_test_store import Spiral, Near, Ball
    law, tokens = Spiral(torch.tensor(0.5, dtype=torch.float64)), at.Tokens.uniform(5, 3, seed=1)
    runs = {"ended": {}, "part": {"max_evaluations": 60}, "merged": {"merge": 0.1}, "listed": {"save": [0.0, 0.5, 1.0]}}
    runs |= {"layers": {"method": "layers", "step": 0.5}, "rule": {"stop": [Near()], "until": 1.0}, "space": {"space": Ball()}}
    for name, options in runs.items():
        run = at.flow(law, tokens, store=f"{sys.argv[1]}/{name}", **{"space": at.Sphere(), "until": 30.0} | options)
        torch.save((run.times, run.points, run.outcome.name, len(run.events)), f"{sys.argv[1]}/{name}.pt")
    stack = at.Stack((law, law), duration=1.0)
    run = at.flow(stack, tokens, space=at.Sphere(), store=f"{sys.argv[1]}/stack")
    torch.save((run.times, run.points, run.outcome.name, len(run.events)), f"{sys.argv[1]}/stack.pt")
"""


def test_a_run_of_a_law_of_ones_own_is_read_without_its_class(tmp_path):
    (tmp_path / "spirals_of_test_store.py").write_text(textwrap.dedent(OWN))
    line = [sys.executable, "-c", textwrap.dedent(WRITE_OWN), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = sorted(path.stem for path in tmp_path.glob("*.pt"))
    assert len(names) == 8
    expected = {name: torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in names}

    def is_expected(name, run):
        times, points, outcome, events = expected[name]
        size = min(len(times), len(run.times)) - (name == "part")  # the last state of an unfinished run is where it is
        same_data = torch.equal(run.times[:size], times[:size]) and torch.equal(run.points[:size], points[:size])
        return (
            same_data
            and run.outcome.name == ("unfinished" if name == "part" else outcome)
            and len(run.events) == events
        )

    for name in names:
        with pytest.warns(UserWarning, match="Spiral of the module spirals_of_test_store"):
            run = at.load(tmp_path / name)
        assert run.law is None
        assert is_expected(name, run), name
        assert run.stats.method == ("layers" if name == "layers" else "dop853")
        with pytest.raises(
            StoreError, match=r"import Spiral of the module spirals_of_test_store.* before the run is resumed"
        ):
            at.resume(tmp_path / name)
    sys.path.insert(0, str(tmp_path))
    try:
        module = importlib.import_module("spirals_of_test_store")
    finally:
        sys.path.remove(str(tmp_path))
    for name in names:
        run = at.load(tmp_path / name)
        assert is_expected(name, run), name
        assert isinstance(run.law, module.Spiral if name != "stack" else at.Stack)
    assert same(at.resume(tmp_path / "part"), at.resume(tmp_path / "ended"))


@pytest.mark.parametrize(
    "options", [{}, {"merge": 1e-3}, {"engine": "reference"}, {"method": "dopri5", "save": [0.5, 20.0]}]
)
def test_a_float32_run_has_the_same_bits_with_and_without_a_store(tmp_path, options):
    law = at.Attention.isotropic(3, 4.0)
    tokens = at.Tokens.uniform(8, 3, seed=1, dtype=torch.float32)
    options = {"space": at.Sphere(), "until": 40.0} | options
    plain = at.flow(law, tokens, **options)
    stored = at.flow(law, tokens, store=tmp_path / "run", **options)
    part = at.flow(law, tokens, store=tmp_path / "part", max_evaluations=plain.stats.evaluations // 2, **options)
    assert part.outcome.name == "budget"
    plain.save(tmp_path / "saved")
    assert plain.points.dtype == torch.float32
    for run in (stored, at.load(tmp_path / "run"), at.resume(tmp_path / "part"), at.load(tmp_path / "saved")):
        assert same(run, plain)
        assert torch.equal(run.final.points, plain.final.points)
        assert run.points.dtype == run.final.points.dtype == torch.float32


OLD = Path(__file__).parent / "stores" / "schema_1.zip"  # written by attractor 0.2
OLD_RUNS = {
    "ended": lambda: (at.Attention.isotropic(3, 4.0), at.Tokens.uniform(6, 3, seed=1), dict(merge=1e-3)),
    "unfinished": lambda: (at.Attention.isotropic(3, 4.0), at.Tokens.uniform(6, 3, seed=1), dict(merge=1e-3)),
    "float32": lambda: (
        at.Attention.isotropic(3, 4.0),
        at.Tokens.uniform(6, 3, seed=1, dtype=torch.float32),
        dict(engine="reference"),  # 0.2 integrated a stored run in float32 itself
    ),
    "gaussian": lambda: (
        at.Attention.isotropic(2, 1.0),
        at.Gaussian([0.1, 0.2], [[1.0, 0.2], [0.2, 0.5]]),
        dict(space=None, until=5.0),
    ),
}


@pytest.fixture
def old(tmp_path):
    with zipfile.ZipFile(OLD) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", OLD_RUNS)
def test_stores_of_attractor_0_2_are_read_and_resumed(name, old):
    law, state, options = OLD_RUNS[name]()
    whole = at.flow(law, state, **{"space": at.Sphere(), "until": 50.0, "save": 4} | options)
    loaded, resumed = at.load(old / f"{name}.zarr"), at.resume(old / f"{name}.zarr")
    assert loaded.outcome.name == ("unfinished" if name in ("unfinished", "float32") else whole.outcome.name)
    tolerance = 1e-5 if name == "float32" else 1e-9
    shared = min(len(loaded.times), len(whole.times)) - (name in ("unfinished", "float32"))
    torch.testing.assert_close(loaded.points[:shared], whole.points[:shared], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(resumed.points, whole.points, rtol=tolerance, atol=tolerance)
    assert resumed.outcome.name == whole.outcome.name
    assert same(at.load(old / f"{name}.zarr"), resumed)


def test_a_store_of_attractor_0_2_whose_law_is_a_function_is_read(old):
    assert at.load(old / "function.zarr").law is None
    resumed = at.resume(old / "function.zarr", law=at.Schedule(lambda t: at.Attention.isotropic(3, 1.0 + t)))
    assert resumed.outcome.name == "reached"


def damage(path, name):
    """A store with one kind of damage."""
    rows = path / "points" / "c.0.0.0"
    data = rows.read_bytes()
    place = path / {"checkpoint": "checkpoint.npz", "definition": "definition.npz", "times": "times/c/0"}.get(
        name, "zarr.json"
    )
    if name == "the checkpoint is missing":
        (path / "checkpoint.npz").unlink()
    elif name == "a saved state is missing":
        rows.unlink()
    elif name == "a saved state is empty":
        rows.write_bytes(b"")
    elif name == "a saved state is zero":
        rows.write_bytes(bytes(len(data)))
    elif name == "a bit of a saved state":
        rows.write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    elif name == "shape of the points":
        (path / "points" / "zarr.json").write_text(
            (path / "points" / "zarr.json").read_text().replace("float64", "float32")
        )
    elif name == "a number of the definition":
        place.write_text(place.read_text().replace('"until": 1.0', '"until": 2.0'))
    else:
        data = bytearray(place.read_bytes())
        data[len(data) // 2] ^= 4
        place.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint", "definition", "times", "a saved state is missing", "a saved state is empty", "a saved state is zero",
        "a bit of a saved state", "the checkpoint is missing", "shape of the points", "a number of the definition",
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [at.load, at.resume])
def test_damage_is_one_clear_sentence(tmp_path, name, verb):
    run_short(tmp_path / "run", max_evaluations=30, save=5, engine="reference")
    run = at.resume(tmp_path / "run")
    assert run.outcome.name == "reached"
    damage(tmp_path / "run", name)
    with pytest.raises(StoreError, match="damaged") as error:
        verb(tmp_path / "run")
    assert "\n" not in str(error.value)


def test_a_definition_without_its_fingerprint_is_refused(tmp_path):
    """Fingerprints tell another definition even where all checksums are right."""
    run_short(tmp_path / "run")
    path = tmp_path / "run" / "zarr.json"
    document = json.loads(path.read_text())
    words = {name: value for name, value in document["attributes"].items() if name != "checksum"}
    words["definition"]["options"]["dict"]["rtol"] = 1e-3
    document["attributes"] = {**words, "checksum": checksum_json(words)}
    path.write_text(json.dumps(document))
    with pytest.raises(StoreError, match="its options does not have its fingerprint"):
        at.load(tmp_path / "run")


def test_a_store_has_one_writer_at_a_time(tmp_path, eager):
    law, state, options = RUNS["causal with named times"]()
    seen = []

    def intrude(run):
        if len(seen) < 3:
            with pytest.raises(
                StoreError, match=f"is being written by another run \\(process {os.getpid()}\\)"
            ) as error:
                at.resume(tmp_path / "run")
            seen.append(str(error.value))

    run = at.flow(law, state, store=tmp_path / "run", progress=intrude, engine="reference", **options)
    assert len(seen) == 3
    assert same(at.resume(tmp_path / "run"), run)


WRITER = """
    import sys, time
    import attractor as at
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(32, 3, seed=0)
    while time.time() < float(sys.argv[2]):
        pass
    try:
        at.flow(law, tokens, space=at.Sphere(), until=1e3, store=sys.argv[1], resume=sys.argv[3] == "resume",
                progress=lambda run: time.sleep(0.005))
    except at.AttractorError as error:
        print(error)
    else:
        print("done")
"""


@pytest.mark.parametrize("how", ["create", "resume"])
def test_of_two_processes_one_writes(tmp_path, how):
    law, tokens = at.Attention.isotropic(3, 9.0), at.Tokens.uniform(32, 3, seed=0)
    options = {"space": at.Sphere(), "until": 1e3}
    whole = at.flow(law, tokens, **options)
    if how == "resume":
        at.flow(law, tokens, store=tmp_path / "run", max_evaluations=50, **options)
    start = str(time.time() + 3.0)
    line = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path / "run"), start, how]
    both = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120) for process in both)
    assert [error for _, error in said] == ["", ""]
    refused, done = sorted((out.strip() for out, _ in said), key=lambda text: text == "done")
    # the second is late where the machine is busy: it then finds a run that has ended
    assert done == "done"
    assert (
        refused == "done"
        if how == "resume" and refused == "done"
        else "run already" in refused or "another run" in refused
    )
    assert same(at.load(tmp_path / "run"), whole)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_what_killed_processes_left_behind_is_removed(tmp_path):
    """Temporary names without a lock are of processes that died; those of a living one stay."""
    run_short(tmp_path / "run.zarr", max_evaluations=20)
    dead, other = tmp_path / ".new.0123abcd.zarr", tmp_path / ".notes.zarr"
    for folder in (dead, other):
        (folder / "times").mkdir(parents=True)
    left = tmp_path / "run.zarr" / ".checkpoint.0123abcd.npz"
    left.write_bytes(b"half")
    with replace_on_success(tmp_path / "new.zarr", folder=True) as alive:
        run_short(tmp_path / "new.zarr")
        assert alive.is_dir()
        shutil.rmtree(tmp_path / "new.zarr")
    at.resume(tmp_path / "run.zarr")
    assert not dead.exists()
    assert not left.exists()
    assert other.is_dir()


class Disk:
    """The contents of a folder that would survive a power loss: of files and folders what was synced last."""

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, self.files, self.folders = root, {}, {}
        self.synced: list[Path] = []
        real_sync, real_replace = os.fsync, os.replace

        def sync(descriptor):
            real_sync(descriptor)
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                names = os.listdir(descriptor)
                self.folders[status.st_ino] = {name: os.stat(name, dir_fd=descriptor).st_ino for name in names}
            else:
                self.files[status.st_ino] = os.pread(descriptor, status.st_size, 0)
            self.after()

        def replace(source, target):
            real_replace(source, target)
            self.after()

        monkeypatch.setattr(os, "fsync", sync)
        monkeypatch.setattr(os, "replace", replace)
        self.after = lambda: None

    def survivors(self, target: Path, early: bool) -> None:
        """Write what survives to a folder; with ``early`` the system had written the names, but not yet the contents."""
        self._copy(self.root, self.root.stat().st_ino, target, early)

    def _copy(self, source: Path, number: int, target: Path, early: bool) -> None:
        target.mkdir()
        names = self.folders.get(number, {})
        if early:
            names = {entry.name: entry.stat().st_ino for entry in os.scandir(source)}
        for name, inner in names.items():
            if (source / name).is_dir():
                self._copy(source / name, inner, target / name, early)
            elif inner in self.files or early:
                (target / name).write_bytes(self.files.get(inner, b""))


def test_after_a_power_loss_at_any_time_the_store_is_whole(tmp_path, eager, monkeypatch):
    """Whatever the disk holds after each fsync and rename is no store, or one that resumes to the same bits."""
    law, state, options = RUNS["causal with named times"]()
    options |= {"engine": "reference", "save": 12, "until": 7.5}
    monkeypatch.setattr(store_module, "CHUNK", 3 * 6 * 3 * 8)  # three states in a file
    whole = at.flow(law, state, **options)
    place = tmp_path / "disk"
    place.mkdir()
    disk, found, kept = Disk(place, monkeypatch), [], []

    def crash():
        for early in (False, True):
            image = tmp_path / f"image{len(found)}{early}"
            disk.survivors(image, early)
            if not (image / "run.zarr").exists():
                found.append(None)
                continue
            kept.append(image / "run.zarr")
            run = at.load(image / "run.zarr")
            assert torch.equal(run.points[:-1], whole.points[: len(run.points) - 1])
            found.append(run.outcome.time)

    disk.after = crash
    at.flow(law, state, store=place / "run.zarr", **options)
    monkeypatch.undo()
    times = [time for time in found if time is not None]
    assert found[0] is None
    assert len(set(times)) > 8
    assert times[-1] == whole.outcome.time
    for path in kept[:: max(1, len(kept) // 8)]:
        assert same(at.resume(path), whole)


def test_checkpoints_of_attractor_0_1_are_read(old: Path) -> None:
    """Checkpoint arrays had other names in 0.1; the states are the same."""
    run = at.load(old / "ended.zarr")
    path = old / "ended.zarr" / "checkpoint.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    words = json.loads(str(arrays["json"]))
    words |= {"log": words.pop("events"), "noted": {}, "values": []}
    del arrays["complete_rows"]
    renamed = {name.replace("tree", "forest"): array for name, array in arrays.items()}
    np.savez(path, **{**renamed, "who": np.zeros(0, dtype=np.int64), "json": np.array(json.dumps(words))})
    assert same(at.load(old / "ended.zarr"), run)
    assert len(run.events) > 0
    assert same(at.resume(old / "ended.zarr"), run)


def test_files_of_another_run_are_found(tmp_path: Path) -> None:
    """A checkpoint, or saved states, of a run of the same shape are not taken for a run's own."""
    law = at.Attention.isotropic(3, 1.0)
    options = dict(space="sphere", until=5.0, save=300, stop=())
    for name, seed in (("one", 0), ("other", 1)):
        at.flow(law, at.Tokens.uniform(16, 3, seed=seed), store=tmp_path / name, **options)
    assert at.load(tmp_path / "one").points.shape == (301, 16, 3)
    for pattern in ("checkpoint.npz", "points/c*"):
        mixed = shutil.copytree(tmp_path / "one", tmp_path / pattern[:6])
        for file in (tmp_path / "other").glob(pattern):
            shutil.copy(file, mixed / file.relative_to(tmp_path / "other"))
        for read in (at.load, at.resume):
            with pytest.raises(StoreError, match=r"another run|not those that its checkpoint counts"):
                read(mixed)
