"""Gradients through the native loop: those of autograd through the loop in Python, to rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.engines import native
from attractor.engines.fused import instruction_sets
from attractor.solvers import native_gradient

pytestmark = pytest.mark.skipif(bool(native.reason), reason=native.reason or "")

MATRIX = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.6]])
SPACES: dict[str, at.Space] = {"euclidean": at.Euclidean(), "sphere": at.Sphere(1.3), "ellipsoid": at.Ellipsoid(MATRIX)}
KERNELS = ("softmax", "l2", "exponential", at.Sigmoid(bias=-1.0), "linear")
MASKS = (None, "causal", "window:3", "boolean")
BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")
Leaves = dict[str, Tensor]


def draw_leaves(draw: np.random.Generator, space: at.Space, members: tuple[int, ...], own: bool) -> Leaves:
    """A start and parameters, of each member or of all."""
    n, h, k = int(draw.integers(2, 24)), int(draw.integers(1, 4)), int(draw.integers(1, 5))
    batch = members if own else ()
    points = space.random(n, 3, seed=int(draw.integers(1000)), ensemble=members)
    shapes = {"query": (h, k, 3), "key": (h, k, 3), "value": (h, 3, 3)}
    leaves = {name: torch.from_numpy(draw.standard_normal((*batch, *shape))) for name, shape in shapes.items()}
    leaves |= {"points": points if space.is_curved else 0.4 * points, "scale": torch.tensor(0.3, dtype=torch.float64)}
    leaves["value"] *= 0.4 / h
    if draw.random() < 0.6:
        sizes = {"query_bias": (h, k), "key_bias": (h, k), "value_bias": (h, 3), "output_bias": (3,)}
        for name, size in sizes.items():
            size = size if name == "output_bias" else (*batch, *size)
            leaves[name] = 0.3 * torch.from_numpy(draw.standard_normal(size))
    if draw.random() < 0.5:
        leaves["masses"] = torch.from_numpy(draw.random((*batch, n)) + 0.1)
    return leaves


def run(leaves: Leaves, space: at.Space, law: dict[str, Any], **options: Any) -> at.Trajectory:
    parts = {name: leaves.get(name) for name in ("query", "key", "value", "scale", *BIASES)}
    tokens = at.Tokens(leaves["points"], masses=leaves.get("masses"), positions=law.get("places"))
    kept = {name: part for name, part in parts.items() if part is not None}
    fixed = {name: option for name, option in law.items() if name != "places"}
    return at.flow(at.Attention(**kept, **fixed), tokens, space=space, **options)


def measure(trajectory: at.Trajectory) -> Tensor:
    """A function of the last and of the saved states."""
    draw = np.random.default_rng(1)
    shapes = (trajectory.final.points, trajectory.points)
    return sum((part * torch.from_numpy(draw.standard_normal(part.shape)).to(part)).sum() for part in shapes)  # type: ignore[return-value]


def gradients(leaves: Leaves, space: at.Space, law: dict[str, Any], **options: Any) -> tuple[at.Trajectory, Leaves]:
    free = {name: part.clone().requires_grad_() for name, part in leaves.items()}
    trajectory = run(free, space, law, **options)
    found = torch.autograd.grad(measure(trajectory), list(free.values()))
    return trajectory, dict(zip(free, found, strict=True))


def agree(leaves: Leaves, space: at.Space, law: dict[str, Any], tolerance: float = 1e-10, **options: Any) -> None:
    here, found = gradients(leaves, space, law, **options)
    there, expected = gradients(leaves, space, law, engine="reference", **options)
    assert "native" in here.stats.engine
    assert "native" not in there.stats.engine
    assert (here.stats.accepted, here.stats.rejected) == (there.stats.accepted, there.stats.rejected)
    assert [outcome.name for outcome in here.outcomes] == [outcome.name for outcome in there.outcomes]
    torch.testing.assert_close(here.points.detach(), there.points.detach(), rtol=1e-9, atol=1e-9)
    largest = max(float(grad.abs().max()) for grad in expected.values())
    for name, grad in expected.items():
        size = float(grad.abs().max()) + 1e-3 * largest
        assert float((found[name] - grad).abs().max()) <= tolerance * size, name


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: getattr(kernel, "name", kernel))
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("method", ["dopri5", "dop853"])
def test_gradients_are_those_of_the_python_loop(kernel: Any, space: str, method: str) -> None:
    draw = np.random.default_rng([KERNELS.index(kernel), list(SPACES).index(space), len(method)])
    for mask in MASKS[(len(kernel if isinstance(kernel, str) else kernel.name) + len(method)) % 2 :: 2]:
        leaves = draw_leaves(draw, SPACES[space], (), False)
        n, k = leaves["points"].shape[-2], leaves["query"].shape[-2]
        hide = torch.from_numpy((draw.random((n, n)) < 0.5) | np.eye(n, dtype=bool))
        law: dict[str, Any] = {"kernel": kernel, "mask": hide if mask == "boolean" else mask}
        law["positions"] = at.Rotary() if k % 2 == 0 else None
        until = 0.8
        if kernel == "exponential" and not SPACES[space].is_curved:  # near a blow-up rounding grows without bound
            until, leaves["points"] = 0.1, 0.3 * leaves["points"]
        save = [0.0, 0.3 * until, 0.31 * until, until]
        options = {"until": until, "save": save, "method": method, "stop": (), "rtol": 1e-6}
        agree(leaves, SPACES[space], law, max_evaluations=1000, **options)


@pytest.mark.parametrize("own", [False, True])
def test_gradients_of_ensembles(own: bool) -> None:
    draw = np.random.default_rng(int(own))
    for space in SPACES.values():
        leaves = draw_leaves(draw, space, (5,), own)
        leaves["points"][0] *= 0.1 if not space.is_curved else 1.0
        agree(leaves, space, {"kernel": "softmax"}, until=1.5, save=3, rtol=1e-7)


def test_more_members_than_groups() -> None:
    draw = np.random.default_rng(2)
    leaves = {name: part for name, part in draw_leaves(draw, at.Sphere(), (150,), False).items() if name != "masses"}
    leaves["points"] = leaves["points"][:, :4].clone()
    agree(leaves, at.Sphere(), {}, until=0.5, save=[], rtol=1e-5)


ENDS: dict[str, tuple[at.Attention, Tensor, dict[str, Any]]] = {
    "consensus": (at.Attention.isotropic(3, 1.0), at.Tokens.hemisphere(6, 3).points, {"space": at.Sphere()}),
    "steady": (
        at.Attention.isotropic(2, -4.0),
        at.Tokens.uniform(5, 2, seed=3).points,
        {"space": at.Sphere(), "until": 300.0, "rtol": 1e-6},
    ),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("save", [None, [0.5, 2.0]])
def test_gradients_of_states_where_a_rule_ended_the_run(name: str, save: Any) -> None:
    law, points, options = ENDS[name]
    leaves = {"points": points, "query": law.query, "key": law.key, "value": law.value}
    options = {"until": 100.0, "save": save} | options
    here, _ = gradients(leaves, law={}, **options)
    assert here.outcome.name == name
    agree(leaves, law={}, tolerance=1e-7, **options)


def end_of(space: at.Space, kernel: Any, **law: Any) -> Callable[..., Tensor]:
    def function(points: Tensor, query: Tensor, key: Tensor, value: Tensor, masses: Tensor) -> Tensor:
        attention = at.Attention(query, key, value, kernel=kernel, **law)
        options = {"until": 0.7, "stop": (), "rtol": 1e-6, "step": 0.1}
        return at.flow(attention, at.Tokens(points, masses=masses), space=space, **options).final.points

    return function


def small_inputs() -> list[Tensor]:
    draw = np.random.default_rng(4)
    shapes = ((3, 3), (2, 3), (2, 3), (3, 3))
    found = [torch.from_numpy(0.6 * draw.standard_normal(shape)) for shape in shapes]
    return [part.requires_grad_() for part in (*found, torch.from_numpy(draw.random(3) + 0.2))]


@pytest.mark.parametrize("kernel", ["softmax", "l2"])
def test_gradcheck_and_second_derivatives(kernel: str) -> None:
    # step lengths follow the parameters, so that differences hold to the tolerance of the integration
    tolerances: dict[str, Any] = {"eps": 1e-4, "atol": 2e-4, "rtol": 1e-3}
    function = end_of(at.Sphere(), kernel)
    assert torch.autograd.gradcheck(function, small_inputs(), **tolerances)

    def one(points: Tensor, query: Tensor) -> Tensor:
        rest = [part.detach() for part in small_inputs()[2:]]
        return function(points, query, *rest)[0]

    assert torch.autograd.gradgradcheck(one, small_inputs()[:2], **tolerances)


def test_second_derivatives_are_those_of_the_python_loop() -> None:
    draw = np.random.default_rng(7)
    leaves = {name: part for name, part in draw_leaves(draw, at.Sphere(), (2,), False).items() if name != "scale"}
    results = []
    for engine in (None, "reference"):
        free = {name: part.clone().requires_grad_() for name, part in leaves.items()}
        trajectory = run(free, at.Sphere(), {}, until=0.8, save=[0.2, 0.5], stop=(), rtol=1e-6, engine=engine)
        inputs = list(free.values())
        first = torch.autograd.grad(measure(trajectory), inputs, create_graph=True)
        total = sum((grad**2).sum() for grad in first)
        results.append((first, torch.autograd.grad(total, inputs)))
    for here, there in zip(*results, strict=True):
        for found, expected in zip(here, there, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_a_graph_can_be_used_twice() -> None:
    points = at.Tokens.uniform(5, 3).points.requires_grad_()
    end = at.flow(at.Attention.isotropic(3, 2.0), at.Tokens(points), space="sphere", until=1.0).final.points
    first = torch.autograd.grad(end[0, 0], points, retain_graph=True)[0]
    again = torch.autograd.grad(end[0, 0], points, retain_graph=True)[0]
    other = torch.autograd.grad(end[1, 2], points)[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(end[0, 0], points)


def test_parameters_changed_in_place_before_the_gradient_are_an_error() -> None:
    law = at.Attention.isotropic(3, 2.0)
    law.query.requires_grad_()
    end = at.flow(law, at.Tokens.uniform(5, 3), space="sphere", until=1.0).final.points
    with torch.no_grad():
        law.query.mul_(1.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        end.sum().backward()


@pytest.mark.parametrize("most", [2, 3, 8])
def test_recomputation_changes_nothing_and_bounds_memory(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = draw_leaves(np.random.default_rng(5), at.Sphere(), (3,), False)
    options: dict[str, Any] = {"until": 12.0, "save": [1.0, 3.0, 11.0], "stop": (), "rtol": 1e-8, "method": "dopri5"}
    _, expected = gradients(leaves, at.Sphere(), {}, **options)
    records = []
    record = native.StepRecord
    monkeypatch.setattr(native_gradient, "MOST", most)
    monkeypatch.setattr(native_gradient, "FEWEST", 2)
    monkeypatch.setattr(native, "StepRecord", lambda *sizes: records.append(record(*sizes)) or records[-1])
    trajectory, found = gradients(leaves, at.Sphere(), {}, **options)
    assert trajectory.stats.accepted > 3 * 3 * most
    assert records[0].kept <= most
    for name, grad in expected.items():
        assert torch.equal(found[name], grad), name


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_nothing(threads: int) -> None:
    before = torch.get_num_threads()
    draw = np.random.default_rng(6)
    leaves = {"points": at.Tokens.uniform(300, 3).points, "scale": torch.tensor(0.5, dtype=torch.float64)}
    leaves |= {name: torch.from_numpy(draw.standard_normal((3, 3))) for name in ("query", "key", "value")}
    try:
        _, expected = gradients(leaves, at.Sphere(), {"mask": "causal"}, until=0.3, save=[], rtol=1e-5)
        torch.set_num_threads(threads)
        _, found = gradients(leaves, at.Sphere(), {"mask": "causal"}, until=0.3, save=[], rtol=1e-5)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[name], grad) for name, grad in expected.items())


@pytest.mark.parametrize("name", instruction_sets())
def test_every_instruction_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = draw_leaves(np.random.default_rng(8), at.Sphere(), (2,), False)
    monkeypatch.setenv("ATTRACTOR_ISA", name)
    for kernel in KERNELS:
        agree(leaves, at.Sphere(), {"kernel": kernel, "mask": "causal"}, until=0.2, save=[0.1], rtol=1e-5)


def test_factored_values_and_float32() -> None:
    draw = np.random.default_rng(9)
    value, output = (torch.from_numpy(draw.standard_normal(shape)) for shape in ((2, 2, 3), (2, 3, 2)))
    query, key = (torch.from_numpy(draw.standard_normal((2, 2, 3))) for _ in range(2))
    hide = torch.ones(6, 6, dtype=torch.bool)
    hide[2, 1:] = False
    results = []
    for engine in (None, "reference"):
        free = [part.clone().requires_grad_() for part in (query, key, value, output, torch.ones(2, 2).double())]
        law = at.Attention(*free[:3], output=free[3], value_bias=free[4], mask=hide)
        single = at.Tokens.uniform(6, 3, dtype=torch.float32)
        points = single.points.clone().requires_grad_()
        trajectory = at.flow(law, at.Tokens(points, dtype=torch.float32), space="sphere", until=0.5, engine=engine)
        assert trajectory.final.points.dtype == torch.float32
        results.append(torch.autograd.grad(measure(trajectory), [points, *free]))
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


def test_what_needs_another_gradient_goes_the_other_way() -> None:
    matrix = torch.from_numpy(MATRIX).requires_grad_()
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), space=at.Ellipsoid(matrix), until=0.5)
    assert "native" not in run.stats.engine
    assert run.final.points.requires_grad
