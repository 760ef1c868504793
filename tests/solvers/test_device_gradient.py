"""Gradients through the device loop are those through the native loop; the kernels run here compiled for the CPU."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from emulated_device import EmulatedDevice
from torch import Tensor

import attractor as at
from attractor.engines import native
from attractor.solvers import device_gradient, device_kernels

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


def differentiate(
    law: dict[str, Any], points: Any, masses: Any, device: EmulatedDevice | None, seed: int = 1, **options: Any
) -> tuple[at.Trajectory, tuple[Tensor, ...]]:
    """A run and the gradient of a function of its states, by the device loop or by the native loop."""
    leaves = {
        name: torch.tensor(part, requires_grad=True)
        for name, part in law.items()
        if name in ("query", "key", "value", "scale")
    }
    x = torch.tensor(points, requires_grad=True)
    m = None if masses is None else torch.tensor(masses, requires_grad=True)
    with pytest.MonkeyPatch.context() as patch:
        if device is not None:
            patch.setattr(device_kernels, "backend", device)
            patch.setattr(run_module.native_gradient, "is_supported", lambda plan, tokens: False)
            device_kernels._function.cache_clear()
        run = at.flow(at.Attention(**{**law, **leaves}), at.Tokens(x, masses=m), **options)
        weights = torch.tensor(np.random.default_rng(seed).standard_normal(tuple(run.points.shape)))
        loss = (run.points * weights).sum() + (run.final.points**3).sum()
        found = torch.autograd.grad(loss, [x, *leaves.values(), *([] if m is None else [m])])
    assert ("device" if device else "native") in run.stats.engine
    return run, found


def compare(law: dict[str, Any], points: Any, masses: Any, device: EmulatedDevice, **options: Any) -> at.Trajectory:
    run, expected = differentiate(law, points, masses, None, **options)
    here, found = differentiate(law, points, masses, device, **options)
    torch.testing.assert_close(here.points, run.points, rtol=1e-10, atol=1e-12)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11 * float(other.abs().max()))
    return here


CASES = [
    # kernel, space, method, mask, masses, shared parameters, heads, tokens
    ("softmax", "sphere", "dopri5", None, False, True, 1, 7),
    ("softmax", "euclidean", "dop853", "causal", True, False, 2, 9),
    ("exponential", "ellipsoid", "dopri5", "window:3", True, True, 2, 9),
    (at.Sigmoid(bias=-1.0), "sphere", "dopri5", "causal", False, True, 1, 8),
    ("linear", "euclidean", "dopri5", "window:3", True, False, 1, 12),
]


def draw(case: int, members: int | None = 3, n: int | None = None) -> tuple[dict[str, Any], Any, Any, dict[str, Any]]:
    """Law, points, masses and options of a case."""
    kernel, name, method, mask, weighted, shared, heads, tokens = CASES[case]
    generator, space, n = np.random.default_rng([case, 8]), SPACES[name], n or tokens
    lead = (heads,) if shared else (members, heads)
    query, key = generator.standard_normal((2, *lead, 3, 3))
    value = generator.standard_normal((*lead, 3, 3)) / heads
    value = 0.5 * (value - value.swapaxes(-1, -2)) - 0.3 * np.eye(3)
    law = {"query": query, "key": key, "value": value, "scale": 0.3, "kernel": kernel, "mask": mask}
    points = np.stack([space.random(n, 3, seed=seed) for seed in range(members or 1)])
    points = points if space.is_curved else 0.4 * points
    masses = generator.random((members or 1, n)) + 0.1 if weighted else None
    if members is None:
        points, masses = points[0], None if masses is None else masses[0]
    options = {"space": space, "method": method, "until": 1.5, "stop": (), "rtol": 1e-6, "merge": False}
    return law, points, masses, options


@pytest.mark.parametrize("case", range(len(CASES)))
def test_gradients_of_all_inputs(case: int, folder: Path) -> None:
    law, points, masses, options = draw(case)
    compare(law, points, masses, EmulatedDevice(folder), save=[0.0, 0.4, 0.41, 1.5], **options)


@pytest.mark.parametrize("case", [0, 2])
def test_one_system_on_all_blocks(case: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_kernels, "GRID_TOKENS", 10)
    monkeypatch.setattr(device_gradient, "TILE_BYTES", 1 << 11)
    device = EmulatedDevice(folder)
    device.largest_block = 64
    law, points, masses, options = draw(case, members=None, n=45)
    law["scale"] = np.array(0.3)
    compare(law, points, masses, device, save=[0.7, 1.5], **options)


def test_states_that_are_computed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_gradient, "FEWEST", 8)
    monkeypatch.setattr(device_gradient, "MOST", 8)
    law, points, masses, options = draw(0)
    run = compare(law, points, masses, EmulatedDevice(folder), save=[0.3, 0.8, 1.5], **{**options, "rtol": 1e-9})
    assert run.stats.accepted > 3 * 8
    with pytest.raises(at.AttractorError, match="steps has no gradients"):
        differentiate(law, points, masses, EmulatedDevice(folder), **{**options, "rtol": 1e-13, "until": 9.0})


def test_members_that_end_early(folder: Path) -> None:
    law = {"query": np.eye(2), "key": np.eye(2), "value": np.eye(2)}
    points = at.Tokens.hemisphere(5, 2, seed=3, ensemble=4).points.numpy()
    options = {
        "space": "sphere",
        "until": 40.0,
        "stop": ("consensus",),
        "save": [1.0, 5.0],
        "rtol": 1e-6,
        "merge": False,
    }
    run = compare(law, points, None, EmulatedDevice(folder), **options)
    assert {outcome.name for outcome in run.outcomes} == {"consensus"}


def test_higher_derivatives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for device in (None, EmulatedDevice(folder)):
        with pytest.MonkeyPatch.context() as patch:
            if device is not None:
                patch.setattr(device_kernels, "backend", device)
                patch.setattr(run_module.native_gradient, "is_supported", lambda plan, tokens: False)
                device_kernels._function.cache_clear()
            query = torch.eye(2, dtype=torch.float64).requires_grad_()
            law, tokens = at.Attention(query, torch.eye(2), torch.eye(2)), at.Tokens.uniform(4, 2, seed=1)
            run = at.flow(law, tokens, space="sphere", until=1.0, save=[1.0], stop=(), merge=False)
            (first,) = torch.autograd.grad((run.points**3).sum(), query, create_graph=True)
            found.append(torch.autograd.grad((first**2).sum(), query)[0])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
