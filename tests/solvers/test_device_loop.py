"""The device loop takes the steps of the native loop: the kernel runs here compiled for the CPU, and on a GPU where there is one."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_device import EmulatedDevice
from test_native import agree

import attractor as at
from attractor.engines import native
from attractor.solvers import device_kernels, device_loop

pytestmark = pytest.mark.skipif(bool(native.reason) or shutil.which("g++") is None, reason=native.reason or "needs g++")

run_module = importlib.import_module("attractor.solvers.run")

MATRIX = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]])
SPACES: dict[str, at.Space] = {
    "euclidean": at.Euclidean(),
    "sphere": at.Sphere(radius=1.2),
    "ellipsoid": at.Ellipsoid(MATRIX),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def emulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    device = EmulatedDevice(folder)
    monkeypatch.setattr(device_kernels, "backend", device)
    device_kernels._function.cache_clear()
    return device


def both(device: EmulatedDevice, law: at.Law, tokens: at.Tokens, **options: Any) -> tuple[at.Trajectory, at.Trajectory]:
    """The same run by the device loop and by the native loop."""
    here = at.flow(law, tokens, **options)
    assert "device" in here.stats.engine
    assert device.launches
    kind, device.device_type = device.device_type, "none"
    there = at.flow(law, tokens, **options)
    assert "native" in there.stats.engine
    device.device_type = kind
    return here, there


CASES = [
    # kernel, space, method, mask, masses, shared parameters
    ("softmax", "sphere", "dop853", None, False, True),
    ("softmax", "sphere", "dopri5", "causal", True, False),
    ("softmax", "euclidean", "dopri5", "window:3", True, True),
    ("softmax", "ellipsoid", "dopri5", None, False, False),
    ("l2", "sphere", "dopri5", "causal", False, True),
    ("l2", "euclidean", "dop853", None, True, False),
    ("exponential", "sphere", "dopri5", None, True, True),
    ("exponential", "ellipsoid", "dopri5", "window:3", False, False),
    (at.Sigmoid(bias=-1.0), "euclidean", "dopri5", "causal", True, True),
    (at.Sigmoid(bias=-1.0), "sphere", "dop853", None, False, False),
    ("linear", "sphere", "dopri5", "causal", True, False),
    ("linear", "euclidean", "dopri5", None, False, True),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kernels_spaces_masks_and_masses(case: int, emulated: EmulatedDevice) -> None:
    kernel, name, method, mask, weighted, shared = CASES[case]
    generator = np.random.default_rng([case, 5])
    space, members, heads = SPACES[name], 5, int(generator.integers(1, 3))
    n, k = int(generator.integers(2, 40)), int(generator.integers(1, 5))
    lead = (heads,) if shared else (members, heads)
    query, key = generator.standard_normal((2, *lead, k, 3))
    value = generator.standard_normal((*lead, 3, 3)) / heads
    value = 0.5 * (value - value.swapaxes(-1, -2)) - 0.3 * np.eye(3)
    law = at.Attention(query, key, value, kernel=kernel, scale=0.3, mask=mask)
    points = np.stack([space.random(n, 3, seed=int(generator.integers(1000))) for _ in range(members)])
    tokens = at.Tokens(
        points if space.is_curved else 0.4 * points, masses=generator.random((members, n)) + 0.1 if weighted else None
    )
    merge = 0.05 if mask is None and case % 4 else False
    save = 7 if merge else [0.3, 0.31, 2.0]
    options: dict[str, Any] = {"until": 2.0, "save": save, "method": method, "space": space}
    agree(*both(emulated, law, tokens, rtol=1e-7, merge=merge, max_evaluations=9000, **options), counts=not merge)


def test_tokens_that_gather_merge_and_end(emulated: EmulatedDevice) -> None:
    law = at.Attention.isotropic(3, 4.0)
    tokens = at.Tokens.hemisphere(12, 3, seed=3, ensemble=6)
    here, there = both(emulated, law, tokens, space="sphere", until=200.0, save=20)
    agree(here, there, tolerance=1e-7, counts=False)
    assert here.stats.merges > 20
    assert {outcome.name for outcome in here.outcomes} == {"consensus"}


@pytest.mark.parametrize("rules", [(), ("steady",), ("consensus", "steady", "collapsed")])
def test_rules_that_end_members_at_different_times(rules: tuple[str, ...], emulated: EmulatedDevice) -> None:
    law = at.Attention(np.eye(2), np.eye(2), -np.eye(2) if "collapsed" in rules else np.eye(2))
    tokens = at.Tokens.uniform(7, 2, seed=1, ensemble=9)
    space = "euclidean" if "collapsed" in rules else "sphere"
    agree(*both(emulated, law, tokens, space=space, until=80.0, stop=rules, merge=False, save=11), tolerance=1e-7)


@pytest.mark.parametrize("case", [0, 1, 4, 10])
def test_one_system_on_all_blocks(case: int, emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, name, method, mask, weighted, _ = CASES[case]
    monkeypatch.setattr(device_kernels, "GRID_TOKENS", 10)
    monkeypatch.setattr(device_kernels, "TILE_BYTES", 1 << 11)
    emulated.largest_block = 32 if case % 2 else 96
    generator, space = np.random.default_rng([case, 6]), SPACES[name]
    n = 45
    query, key, value = generator.standard_normal((3, 2, 3, 3))
    value = 0.25 * (value - value.swapaxes(-1, -2)) - 0.15 * np.eye(3)
    law = at.Attention(query, key, value, kernel=kernel, scale=0.3, mask=mask)
    tokens = at.Tokens(space.random(n, 3, seed=case), masses=generator.random(n) + 0.1 if weighted else None)
    merge = 0.1 if mask is None else False
    options: dict[str, Any] = {"until": 3.0, "save": 7, "method": method, "space": space, "merge": merge}
    here, there = both(emulated, law, tokens, rtol=1e-7, **options)
    agree(here, there, counts=not merge)
    assert not merge or here.stats.merges > 0


@pytest.mark.parametrize(
    ("space", "method", "kind", "common"),
    [
        ("euclidean", "strang2", "space", 0.02),
        ("sphere", "strang2", "space", 0.0),
        ("ellipsoid", "euler", "layer", 0.01),
    ],
)
def test_noise_has_the_path_of_the_native_loop(
    space: str, method: str, kind: str, common: float, emulated: EmulatedDevice
) -> None:
    generator = np.random.default_rng(9)
    points = np.stack([SPACES[space].random(11, 3, seed=seed) for seed in range(3)])
    strength = 0.05 * torch.from_numpy(generator.random((3, 11)))
    noise = at.Noise(strength, common, kind=kind, seed=2**40 + 7, members=[4, 9, 77])
    law, tokens = at.Attention.random(3, 1, seed=2), at.Tokens(points)
    options: dict[str, Any] = {"space": SPACES[space], "until": 0.45, "step": 0.02, "save": [0.2, 0.4], "noise": noise}
    here = at.flow(law, tokens, method=method, **options)
    assert "device" in here.stats.engine
    emulated.device_type = "none"
    there = at.flow(law, tokens, method=method, **options)
    assert "native" in there.stats.engine
    torch.testing.assert_close(here.points, there.points, rtol=0, atol=1e-13)
    torch.testing.assert_close(here.final.points, there.final.points, rtol=0, atol=1e-13)
    assert here.outcomes == there.outcomes
    assert here.stats.evaluations == there.stats.evaluations


def test_blow_up_and_budgets(emulated: EmulatedDevice) -> None:
    law = at.Attention.isotropic(2, 1.0, kernel="exponential")
    tokens = at.Tokens.uniform(5, 2, seed=1, ensemble=4)
    here, there = both(emulated, law, tokens, space="euclidean", until=50.0, save=9)
    assert {outcome.name for outcome in here.outcomes} == {"blow_up"}
    agree(here, there, tolerance=1e-6)
    here, there = both(
        emulated, at.Attention.isotropic(2, 1.0), tokens, space="sphere", until=50.0, max_evaluations=300
    )
    assert {outcome.name for outcome in here.outcomes} == {"budget"}


def test_threads_that_share_a_token(emulated: EmulatedDevice) -> None:
    law = at.Attention.isotropic(3, 30.0)
    tokens = at.Tokens.uniform(33, 3, seed=2, ensemble=2)
    for emulated.multiprocessors in (0, 1000):
        agree(*both(emulated, law, tokens, space="sphere", until=5.0, save=5, merge=False))


def test_float32(emulated: EmulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "is_supported", lambda plan, points: False)  # which would be integrated in float64
    law = at.Attention.isotropic(3, 4.0)
    points = at.Tokens.uniform(32, 3, seed=2, ensemble=3).points
    wide = at.flow(law, at.Tokens(points), space="sphere", until=5.0, save=5, merge=False, stop=())
    narrow = at.Tokens(points.float(), dtype=torch.float32)
    run = at.flow(law, narrow, space="sphere", until=5.0, save=5, merge=False, stop=(), rtol=1e-5, atol=1e-7)
    assert run.stats.engine == "device"
    assert run.points.dtype == torch.float32
    torch.testing.assert_close(run.points.double(), wide.points, rtol=0, atol=2e-4)


def test_interrupted_runs_resume_to_the_same_bits(
    emulated: EmulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = at.Attention.isotropic(3, 9.0)
    tokens = at.Tokens.uniform(20, 3, seed=2, ensemble=3)
    options: dict[str, Any] = {"space": "sphere", "until": 60.0, "save": 30}
    whole = at.flow(law, tokens, store=tmp_path / "whole.zarr", **options)
    assert whole.stats.engine == "device"
    assert whole.stats.merges > 10
    monkeypatch.setattr(device_loop.DeviceLoop, "_attempts", lambda self, seconds: 9)
    again = at.flow(law, tokens, **options)
    launch, left = emulated.launch, [4]

    def interrupt(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        launch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr("attractor.solvers.store.INTERVAL", 0.0)
        patch.setattr(emulated, "launch", interrupt)
        with pytest.raises(KeyboardInterrupt):
            at.flow(law, tokens, store=tmp_path / "cut.zarr", **options)
    resumed = at.resume(tmp_path / "cut.zarr")
    for run in (again, resumed):
        assert torch.equal(run.points, whole.points)
        assert torch.equal(run.final.points, whole.final.points)
        assert run.outcomes == whole.outcomes
        assert run.stats.merges == whole.stats.merges


@pytest.mark.parametrize(
    "options",
    [
        {"method": "rk4", "step": 0.1},
        {"method": "radau5"},
        {"engine": "reference"},
        {"events": [at.Event(lambda tokens, time: 0.5 - time)]},
    ],
    ids=["fixed steps", "implicit", "engine", "event"],
)
def test_plans_that_other_loops_take(options: dict[str, Any], emulated: EmulatedDevice) -> None:
    tokens = at.Tokens.uniform(6, 3, seed=2, ensemble=2)
    run = at.flow(at.Attention.isotropic(3, 1.0), tokens, space="sphere", until=1.0, **options)
    assert "device" not in run.stats.engine
    assert not emulated.launches


def test_systems_that_other_loops_take(emulated: EmulatedDevice) -> None:
    for n, dim in ((4, device_kernels.MAX_DIM + 1), (device_kernels.MAX_TOKENS + 1, 2)):
        law = at.Attention.isotropic(dim, 1.0)
        assert "device" not in at.flow(law, at.Tokens.uniform(n, dim), space="sphere", until=0.1).stats.engine
    law = at.Attention.isotropic(3, 1.0, positions=at.Alibi([0.1]))
    assert "device" not in at.flow(law, at.Tokens.uniform(4, 3), space="sphere", until=0.1).stats.engine


def test_gradients_take_another_loop(emulated: EmulatedDevice) -> None:
    points = at.Tokens.uniform(5, 3, seed=2).points.requires_grad_()
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens(points), space="sphere", until=1.0)
    assert "device" not in run.stats.engine
    run.final.points.sum().backward()
    assert points.grad is not None
    assert points.grad.abs().max() > 0


def test_parameters_changed_in_place_are_seen(emulated: EmulatedDevice) -> None:
    law = at.Attention.isotropic(3, 1.0)
    tokens = at.Tokens.uniform(5, 3, seed=2)
    first = at.flow(law, tokens, space="sphere", until=1.0)
    with torch.no_grad():
        law.value.mul_(-1.0)
    second = at.flow(law, tokens, space="sphere", until=1.0)
    assert not torch.equal(first.final.points, second.final.points)
    agree(*both(emulated, law, tokens, space="sphere", until=1.0))


@pytest.mark.parametrize("edit", ["data", "numpy"])
def test_parameters_changed_past_the_version_counter_are_seen(edit: str, emulated: EmulatedDevice) -> None:
    matrix = torch.eye(3, dtype=torch.float64)
    law = at.Attention(matrix.clone(), matrix.clone(), matrix)
    tokens = at.Tokens.uniform(5, 3, seed=2)
    options: dict[str, Any] = {"space": "sphere", "until": 1.0, "stop": (), "merge": False}
    first = at.flow(law, tokens, **options)
    if edit == "data":
        law.value.data[0, 1] = 2.0
    else:
        law.value.numpy()[0, 1] = 2.0
    second = at.flow(law, tokens, **options)
    fresh = at.flow(at.Attention(law.query, law.key, law.value.clone()), tokens, **options)
    assert not torch.equal(first.final.points, second.final.points)
    assert torch.equal(second.final.points, fresh.final.points)


def test_a_run_from_other_points_is_repeated(emulated: EmulatedDevice) -> None:
    law = at.Attention.isotropic(3, 3.0)
    options: dict[str, Any] = {"space": "sphere", "until": 4.0, "save": 5, "stop": (), "merge": False}
    for seed in (1, 2, 3):
        tokens = at.Tokens.uniform(9, 3, seed=seed, ensemble=(2, 3))
        run = at.flow(law, tokens, **options)
        device_loop._repeats.clear() if seed == 3 else None
        again = at.flow(law, tokens, **options)
        assert torch.equal(run.points, again.points)
        assert torch.equal(run.final.points, again.final.points)
        assert run.outcomes == again.outcomes
        names = ("evaluations", "accepted", "rejected", "method", "engine")
        assert [getattr(run.stats, name) for name in names] == [getattr(again.stats, name) for name in names]
        assert torch.equal(run.times, again.times)
    short = at.Tokens(1.5 * tokens.points)  # not on the sphere: Python puts them there
    moved = at.flow(law, short, **options)
    torch.testing.assert_close(moved.points, run.points, rtol=0, atol=1e-9)
    with pytest.raises(at.AttractorError, match="zero vector"):
        at.flow(law, at.Tokens(0.0 * tokens.points), **options)


def test_repeated_runs_are_stored_and_resumed(emulated: EmulatedDevice, tmp_path: Path) -> None:
    law, tokens = at.Attention.isotropic(2, 1.0), at.Tokens.uniform(4, 2, seed=5, ensemble=3)
    options: dict[str, Any] = {"space": "sphere", "until": 1.0, "save": 4, "stop": (), "merge": False}
    at.flow(law, tokens, **options)
    run = at.flow(law, tokens, **options)
    run.save(tmp_path / "run.zarr")
    loaded = at.load(tmp_path / "run.zarr")
    assert torch.equal(loaded.points, run.points)
    assert loaded.outcomes == run.outcomes


@pytest.mark.parametrize(
    ("kernel", "space", "mask"),
    [
        (at.Hardmax(), "euclidean", None),
        (at.Hardmax(), "euclidean", "causal"),
        (at.Hardmax(exclude_self=True), "sphere", None),
        (at.Hardmax(tie_tolerance=0.1), "euclidean", None),
    ],
)
def test_hardmax(kernel: at.Hardmax, space: str, mask: str | None, emulated: EmulatedDevice) -> None:
    points = at.Tokens.uniform(9, 3, seed=4, ensemble=3).points
    points[1, 3] = points[1, 4]  # these two tie wherever they are largest
    law = at.Attention(np.eye(3), np.eye(3), np.eye(3), kernel=kernel, mask=mask)
    options: dict[str, Any] = {"space": space, "until": 0.4, "save": 4, "method": "dopri5", "merge": False, "stop": ()}
    here = at.flow(law, at.Tokens(points), **options)
    assert here.stats.engine == "device"
    there = at.flow(law, at.Tokens(points), engine="reference", **options)
    torch.testing.assert_close(here.points, there.points, rtol=0, atol=1e-9)
    assert (here.stats.accepted, here.stats.rejected) == (there.stats.accepted, there.stats.rejected)


@pytest.mark.parametrize(("kernel", "space"), [("softmax", "sphere"), ("linear", "euclidean")])
def test_rotary_positions(kernel: str, space: str, emulated: EmulatedDevice) -> None:
    generator = np.random.default_rng(3)
    query, key, value = generator.standard_normal((3, 2, 4, 4))
    law = at.Attention(
        query, key, -np.abs(value) / 8, kernel=kernel, mask="causal", positions=at.Rotary(theta=10.0, dim=2)
    )
    points = 0.5 * generator.standard_normal((3, 11, 4))
    points = points if space == "euclidean" else points / np.linalg.norm(points, axis=-1, keepdims=True)
    for positions in (None, np.sort(generator.random((3, 11)))):
        tokens = at.Tokens(points, positions=positions)
        plain = at.Attention(query, key, law.value, kernel=kernel, positions=law.positions)
        for one in (law, plain) if positions is None else (plain,):
            agree(*both(emulated, one, tokens, space=space, until=1.0, save=3, merge=False, stop=()))
    assert (
        "device" not in at.flow(law, tokens, space=space, until=0.1).stats.engine
    )  # the mask is in the order of positions
