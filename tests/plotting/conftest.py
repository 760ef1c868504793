"""Tokens to draw, integrated here by a few lines of scipy: pictures know arrays, not flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from attractor.plotting import Scene

MATRIX = np.diag([1.0, 2.0, 4.0, 1.5, 3.0])


def simulate(
    n: int, dim: int, beta: float, until: float, matrix: np.ndarray | None, saved: int = 60
) -> tuple[Any, Any]:
    """Softmax self-attention x' = P(x) sum_j softmax(beta <x, x_j>) x_j on the ellipsoid of a matrix, or in flat space."""
    flat = matrix is None
    metric = np.eye(dim) if matrix is None else matrix
    start = np.random.default_rng(0).standard_normal((n, dim))

    def retract(points: np.ndarray) -> np.ndarray:
        return points if flat else points / np.sqrt(((points @ metric) * points).sum(-1, keepdims=True))

    def velocity(_: float, flattened: np.ndarray) -> np.ndarray:
        points = retract(flattened.reshape(n, dim))
        weights = np.exp(beta * (scores := points @ metric @ points.T) - beta * scores.max(axis=1, keepdims=True))
        pull = weights @ points / weights.sum(axis=1, keepdims=True)
        return (pull if flat else pull - points * ((points @ metric) * pull).sum(-1, keepdims=True)).ravel()

    times = np.concatenate([[0.0], np.geomspace(1e-2, until, saved - 1)])
    solution = solve_ivp(velocity, (0.0, until), retract(start).ravel(), t_eval=times, rtol=1e-4, atol=1e-6)
    return times, retract(solution.y.T.reshape(-1, n, dim))


def surface_of(space: str, dim: int) -> np.ndarray | None:
    return {"euclidean": None, "sphere": np.eye(dim), "ellipsoid": MATRIX[:dim, :dim]}[space]


def scene_of(times: np.ndarray, points: np.ndarray, space: str, **fields: Any) -> Scene:
    n, dim = points.shape[1:]
    norms = np.linalg.norm(points, axis=2).max(axis=1)
    words = {
        "title": f"{n} tokens on the {space}",
        "caption": "Softmax self-attention moves tokens from random places.",
        "curves": {"largest norm": norms, "count": np.full(times.size, float(n))},
        "events": [(float(times[-1]) / 2, "two tokens merged")],
        "outcome": "reached",
        "outcome_time": float(times[-1]),
        "surface": surface_of(space, dim),
    }
    return Scene(times=times, points=points, masses=np.full(n, 1 / n), **{**words, **fields})


@pytest.fixture(scope="session")
def globe_scene() -> Scene:
    """128 tokens, beta = 9: they gather in a few clusters."""
    times, points = simulate(128, 3, 9.0, 60.0, np.eye(3))
    return scene_of(times, points, "sphere")


@pytest.fixture(scope="session")
def make_scene() -> Callable[..., Scene]:
    """A small scene of any dimension and space; keyword arguments replace fields."""

    def make(dim: int = 3, space: str = "sphere", n: int = 12, saved: int = 8, **fields: Any) -> Scene:
        times, points = simulate(n, dim, 4.0, 3.0, surface_of(space, dim), saved)
        return replace(scene_of(times, points, space), **fields)

    return make
