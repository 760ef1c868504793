"""Initial measures: supports, moments and tails against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attractor import Tokens
from attractor.errors import InputError
from attractor.states.tokens import list_starts

N = 20_000


def draw(name: str, dim: int = 3, **options: object) -> np.ndarray:
    return Tokens.sample(name, N, dim, seed=5, **options).points.numpy()  # type: ignore[arg-type]


def uniform(values: np.ndarray) -> bool:
    return bool(stats.kstest(values, "uniform").pvalue > 1e-3)


def test_compact_supports_have_the_right_volumes() -> None:
    """Where a point is uniform in a body, the share of the volume inside its own level set is uniform in [0, 1]."""
    lengths = np.linalg.norm(draw("ball"), axis=1)
    assert uniform(lengths**3)
    lengths = np.linalg.norm(draw("shell:0.5"), axis=1)
    assert lengths.min() >= 0.5
    assert uniform((lengths**3 - 0.125) / 0.875)
    assert uniform(np.linalg.norm(draw("ellipse:2,1,0.5") / [2.0, 1.0, 0.5], axis=1) ** 3)
    assert uniform((draw("box", scale=2.0).ravel() + 2.0) / 4.0)
    np.testing.assert_allclose(np.linalg.norm(draw("uniform"), axis=1), 1.0, rtol=1e-14)
    assert draw("hemisphere")[:, -1].min() > 0


def test_tails() -> None:
    """|x|^2 / d of a multivariate t with nu degrees of freedom is F(d, nu); coordinates of laplace are Laplace."""
    squares = np.sum(draw("student:4") ** 2, axis=1)
    assert stats.kstest(squares / 3, stats.f(3, 4).cdf).pvalue > 1e-3
    assert stats.kstest(draw("laplace").ravel(), stats.laplace.cdf).pvalue > 1e-3
    assert stats.kstest(draw("gaussian", scale=2.0).ravel(), stats.norm(scale=2.0).cdf).pvalue > 1e-3


def test_a_mixture_has_its_parts() -> None:
    points = draw("mixture:3,0.01", dim=2)
    angles = np.round(np.arctan2(points[:, 1], points[:, 0]) / (2 * np.pi / 3)).astype(int) % 3
    assert np.bincount(angles).min() > N / 3 - 5 * np.sqrt(N)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=0.06)
    assert set(np.round(draw("mixture:3,0.01", dim=1)[:, 0]).astype(int)) == {-1, 0, 1}


@pytest.mark.parametrize("name", list_starts())
def test_every_start_has_seeds_and_ensembles(name: str) -> None:
    tokens = Tokens.sample(name, 5, 2, seed=1, ensemble=(2, 3), masses=np.arange(5.0))
    assert tokens.points.shape == (2, 3, 5, 2)
    again, other = (Tokens.sample(name, 5, 2, seed=seed, ensemble=(2, 3)).points for seed in (1, 2))
    assert np.array_equal(tokens.points, again)
    assert np.array_equal(tokens.points, other) == (name == "polygon")  # which is not random
    assert name == "polygon" or Tokens.sample(name, 4, 1).points.shape == (4, 1)


def test_a_polygon_is_regular() -> None:
    points = Tokens.sample("polygon", 5, 3).points.numpy()
    angles = 2 * np.pi * np.arange(5) / 5
    np.testing.assert_allclose(points, np.stack((np.cos(angles), np.sin(angles), 0 * angles), -1), atol=1e-15)


def test_clusters_lie_on_the_sphere_around_their_centres() -> None:
    points = draw("clusters:3,0.01", dim=4)
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1.0, atol=1e-15)
    for part in range(3):  # token i belongs to cluster i mod 3
        centre = points[part::3].mean(0)
        distances = np.linalg.norm(points[part::3] - centre / np.linalg.norm(centre), axis=1)
        np.testing.assert_allclose(np.sqrt((distances**2).mean()), 0.01 * np.sqrt(3), rtol=0.05)


def test_the_older_constructors_are_the_same_draws() -> None:
    assert np.array_equal(Tokens.uniform(7, 3, 2).points, Tokens.sample("uniform", 7, 3, 2).points)
    assert np.array_equal(Tokens.gaussian(7, 3, 2, 0.3).points, Tokens.sample("gaussian", 7, 3, 2, 0.3).points)
    assert np.array_equal(Tokens.hemisphere(7, 3, 2).points, Tokens.sample("hemisphere", 7, 3, 2).points)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bal", "did you mean 'ball'"),
        ("student:few", "such as student:5"),
        ("student:-1", "positive degrees"),
        ("student:nan", "finite numbers"),
        ("shell:1", "inner radius"),
        ("ellipse:1", "half axes"),
        ("mixture:0", "whole number of parts"),
        ("mixture:1e30", "at most 1,000,000 parts, got 1e\\+30"),
        ("clusters:0", "whole number of parts"),
        ("clusters:2,-1", "width of at least 0"),
        ("ball:1,2", "too many"),
    ],
)
def test_refusals(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tokens.sample(name, 5, 2)
