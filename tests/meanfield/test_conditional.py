"""The conditional distance of measures whose tokens have positions."""

from __future__ import annotations

import numpy as np
import ot
import pytest

from attractor import Tokens
from attractor.meanfield import conditional_wasserstein, wasserstein


def test_transport_within_each_position() -> None:
    generator = np.random.default_rng(0)
    x, y, places = generator.standard_normal((12, 2)), generator.standard_normal((12, 2)), np.repeat([0.0, 1.0, 4.0], 4)
    masses = generator.random(12)
    other = masses.copy()
    other[:2] = other[:2].sum() * np.array([0.2, 0.8])  # the same mass at the first position, spread otherwise
    total = 0.0
    for place in (0.0, 1.0, 4.0):
        here = places == place
        a, b = masses[here] / masses.sum(), other[here] / other.sum()
        total += ot.emd2(a, b, ot.dist(x[here], y[here], metric="euclidean") ** 3)
    shuffle = generator.permutation(12)
    first = Tokens(x, masses, places)
    second = Tokens(y[shuffle], other[shuffle], places[shuffle])
    found = float(conditional_wasserstein(first, second, 3.0))
    assert found == pytest.approx(total ** (1 / 3), rel=1e-12)
    assert found >= float(wasserstein(first, second, 3.0))


def test_distinct_positions_pair_tokens() -> None:
    x, y = Tokens.gaussian(6, 2, ensemble=2), Tokens.gaussian(6, 2, seed=1, ensemble=2)
    wanted = (x.points - y.points).square().sum(-1).mean(-1).sqrt()
    np.testing.assert_allclose(conditional_wasserstein(x, y), wanted, rtol=1e-14)
    places = np.arange(6.0)
    explicit = conditional_wasserstein(Tokens(x.points, positions=places), Tokens(y.points, positions=places))
    np.testing.assert_allclose(explicit, wanted, rtol=1e-14)


def test_different_marginals_are_infinitely_far() -> None:
    points = np.zeros((2, 1))
    assert conditional_wasserstein(Tokens(points, positions=[0.0, 1.0]), Tokens(points, positions=[0.0, 2.0])) == np.inf
    assert conditional_wasserstein(Tokens(points, [1.0, 2.0]), Tokens(points, [1.0, 1.0])) == np.inf
    both = Tokens(points, [1.0, 2.0], [0.0, 1.0]), Tokens(points, [2.0, 1.0], [0.0, 1.0])
    assert conditional_wasserstein(*both) == np.inf
    assert conditional_wasserstein(both[0], both[0]) == 0.0
