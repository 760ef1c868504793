"""A tolerance means something: the error at the end of a run is a small multiple of rtol, whatever the law."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import attractor as at

UNTIL = 3.0
SAVED = np.linspace(0.0, UNTIL, 13)
TOLERANCES = {"dopri5": (1e-4, 1e-6, 1e-8), "dop853": (1e-4, 1e-6, 1e-8, 1e-10)}
ELLIPSOID = at.Ellipsoid(np.diag([0.5, 1.0, 2.0]))


@dataclass(frozen=True)
class Problem:
    """A law, where it acts, and whether its matrices are the identity or random."""

    kernel: str
    beta: float
    space: at.Space
    mask: str | None = None
    isotropic: bool = False

    def law(self) -> at.Attention:
        rng = np.random.default_rng(len(self.kernel))
        query, key = rng.standard_normal((2, 3, 3))
        turning = rng.standard_normal((3, 3))
        value = 0.5 * (turning - turning.T) + (0.5 if self.space.is_curved else -0.3) * np.eye(3)
        if self.isotropic:
            query = key = value = np.eye(3)
        return at.Attention(query, key, value, kernel=self.kernel, mask=self.mask, scale=self.beta)


PROBLEMS = {
    "softmax beta 1 on the sphere": Problem("softmax", 1.0, at.Sphere(), isotropic=True),
    "softmax beta 9 on the sphere": Problem("softmax", 9.0, at.Sphere(), isotropic=True),
    "softmax causal on an ellipsoid": Problem("softmax", 3.0, ELLIPSOID, mask="causal"),
    "softmax in flat space": Problem("softmax", 1.0, at.Euclidean()),
    "l2 causal on the sphere": Problem("l2", 1.0, at.Sphere(), mask="causal"),
    "sigmoid on an ellipsoid": Problem("sigmoid", 2.0, ELLIPSOID),
    "exponential on the sphere": Problem("exponential", 0.5, at.Sphere()),
}


@cache
def truth(name: str) -> np.ndarray:
    """States by short fixed steps of order 8, every saved time the end of a step."""
    return states(name, method="dop853", step=0.05, adaptive=False)


def states(name: str, **options: object) -> np.ndarray:
    problem, tokens = PROBLEMS[name], at.Tokens.uniform(6, 3, seed=5, ensemble=3)
    return at.flow(
        problem.law(), tokens, space=problem.space, save=SAVED, merge=False, stop=(), **options
    ).points.numpy()


@cache
def errors(name: str, method: str) -> np.ndarray:
    """Largest error of a token relative to its size, (tolerances, saved times)."""
    found = []
    for rtol in TOLERANCES[method]:
        difference = states(name, method=method, rtol=rtol, atol=rtol / 100) - truth(name)
        relative = np.linalg.norm(difference, axis=-1) / np.linalg.norm(truth(name), axis=-1)
        found.append(relative.max(axis=(1, 2)))
    return np.array(found)


@pytest.mark.parametrize("method", TOLERANCES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_error_at_the_end_is_within_five_times_the_tolerance(name: str, method: str) -> None:
    assert (errors(name, method)[:, -1] <= 5 * np.array(TOLERANCES[method])).all()


@pytest.mark.parametrize("method", TOLERANCES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_error_between_steps_is_within_ten_times_the_tolerance(name: str, method: str) -> None:
    assert (errors(name, method).max(axis=1) <= 10 * np.array(TOLERANCES[method])).all()


@pytest.mark.parametrize("method", TOLERANCES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_error_falls_with_the_tolerance(name: str, method: str) -> None:
    """A tolerance a hundred times smaller gives an error at least ten times smaller."""
    largest = errors(name, method).max(axis=1)
    assert (largest[1:] <= 0.1 * largest[:-1]).all()
