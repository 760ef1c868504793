"""Derivatives of the end of a flow with respect to tokens and matrices, against central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import InputError, UnsupportedError

RNG = np.random.default_rng(11)
WEIGHTS = torch.from_numpy(RNG.standard_normal((4, 3)))  # a direction in which the end is measured
START = {
    name: 0.7 * RNG.standard_normal(shape) for name, shape in (("tokens", (4, 3)), ("query", (2, 3)), ("key", (2, 3)))
}
START["value"] = 0.5 * RNG.standard_normal((3, 3))


def end(space: at.Space, kernel: str, options: dict) -> Callable[..., Tensor]:
    """The measured end point as a function of everything it depends on."""

    def function(tokens: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        law = at.Attention(query, key, value, kernel=kernel, mask=options.get("mask"))
        rest = {name: option for name, option in options.items() if name != "mask"}
        return (at.flow(law, at.Tokens(tokens), space=space, until=1.5, stop=(), **rest).final.points * WEIGHTS).sum()

    return function


def difference(function: Callable[..., Tensor], name: str, direction: np.ndarray) -> float:
    """(f(a + e v) - f(a - e v)) / 2e along one direction v."""
    values = []
    for sign in (1, -1):
        moved = START | {name: START[name] + sign * 1e-5 * direction}
        values.append(float(function(**{key: torch.from_numpy(part) for key, part in moved.items()})))
    return (values[0] - values[1]) / 2e-5


METHODS = {
    "rk4": {"method": "rk4", "step": 0.3},
    "layers": {"method": "layers", "step": 0.5},
    "dopri5": {"method": "dopri5", "rtol": 1e-9, "atol": 1e-11},
    "dop853": {"method": "dop853", "rtol": 1e-10, "atol": 1e-12},
}


def check(space: at.Space, kernel: str, options: dict, names: tuple[str, ...], tolerance: float) -> None:
    function = end(space, kernel, options)
    leaves = {name: torch.from_numpy(part.copy()).requires_grad_() for name, part in START.items()}
    gradients = torch.autograd.grad(function(**leaves), [leaves[name] for name in names])
    for name, gradient in zip(names, gradients, strict=True):
        for direction in np.random.default_rng(1).standard_normal((2, *gradient.shape)):
            along = float((gradient.numpy() * direction).sum())
            assert along == pytest.approx(difference(function, name, direction), abs=tolerance)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_of_everything_on_the_sphere(method: str) -> None:
    check(at.Sphere(), "softmax", METHODS[method], ("tokens", "query", "key", "value"), 1e-7)


@pytest.mark.parametrize("kernel", ["l2", "sigmoid", "exponential", "linear", "sinkhorn"])
def test_gradients_through_every_kernel(kernel: str) -> None:
    check(at.Sphere(), kernel, {"method": "rk4", "step": 0.5}, ("query", "value"), 1e-7)


def test_gradients_on_other_spaces(space: at.Space) -> None:
    check(space, "softmax", METHODS["rk4"] | {"mask": "causal"}, ("tokens", "key"), 1e-7)


def test_gradients_of_saved_states() -> None:
    """Dense output is differentiable too."""
    tokens = torch.from_numpy(START["tokens"].copy()).requires_grad_()
    law = at.Attention(START["query"], START["key"], START["value"])
    options = {"space": "sphere", "until": 1.5, "stop": (), "rtol": 1e-9, "atol": 1e-11}

    def saved(points: Tensor) -> Tensor:
        return (at.flow(law, at.Tokens(points), save=[0.7], **options).points[0] * WEIGHTS).sum()

    (gradient,) = torch.autograd.grad(saved(tokens), tokens)
    direction = torch.from_numpy(RNG.standard_normal((4, 3)))
    with torch.no_grad():
        difference = (saved(tokens + 1e-5 * direction) - saved(tokens - 1e-5 * direction)) / 2e-5
    assert float((gradient * direction).sum()) == pytest.approx(float(difference), abs=1e-6)


def test_without_gradients_nothing_is_recorded() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3), space="sphere", until=1.0)
    assert not run.final.points.requires_grad
    assert not run.points.requires_grad


def test_the_end_of_a_differentiated_run_is_that_of_a_plain_run() -> None:
    law, points = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3).points
    options = {"space": "sphere", "until": 2.0, "merge": False, "stop": ()}
    plain = at.flow(law, at.Tokens(points), **options)
    watched = at.flow(law, at.Tokens(points.clone().requires_grad_()), **{**options, "merge": None})
    assert watched.final.points.requires_grad
    torch.testing.assert_close(watched.final.points.detach(), plain.final.points, rtol=0, atol=1e-14)


@pytest.mark.parametrize("save", [None, 4, [0.5, 1.5], []])
@pytest.mark.parametrize("engine", [None, "reference"])
def test_gradients_with_respect_to_the_end_time(save: Any, engine: str | None, space: at.Space) -> None:
    law, tokens = at.Attention.random(3, seed=1), at.Tokens(space.random(5, 3, seed=0, ensemble=(2,)))
    weights = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 3)))

    def measure(end: Any, times: Any) -> Tensor:
        options = {"rtol": 1e-10, "atol": 1e-12, "stop": (), "merge": False, "engine": engine}
        run = at.flow(law, tokens, space=space, until=end, save=times, **options)
        return (run.final.points * weights).sum() + (run.points * weights).pow(2).sum()

    end = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(measure(end, save), end)
    sides = [measure(t, [0.5, t] if save == [0.5, 1.5] else save) for t in (1.5 + 1e-4, 1.5 - 1e-4)]
    assert float(gradient) == pytest.approx(float(sides[0] - sides[1]) / 2e-4, rel=1e-5)


def test_an_end_time_with_a_gradient_that_cannot_be() -> None:
    end = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens.uniform(4, 3)
    with pytest.raises(UnsupportedError, match="discrete layers"):
        at.flow(law, tokens, until=end, method="layers", step=0.5)
    with pytest.raises(InputError, match="one number"):
        at.flow(law, tokens, until=torch.ones(2, requires_grad=True))
