"""Connected components against a search pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import KDTree

from attractor.errors import InputError
from attractor.observables import cluster_sizes, clusters
from attractor.observables import clustering as neighbours
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens


def by_hand(points: np.ndarray, radius: float) -> list[list[int]]:
    """Components by repeated merging of all pairs that are closer than the radius, or coincide."""
    groups = [[i] for i in range(len(points))]
    merged = True
    while merged:
        merged = False
        for a in range(len(groups)):
            for b in range(a + 1, len(groups)):
                gaps = [np.sqrt(((points[i] - points[j]) ** 2).sum()) for i in groups[a] for j in groups[b]]
                if min(gaps) < radius or min(gaps) == 0:
                    groups[a] += groups.pop(b)
                    merged = True
                    break
            if merged:
                break
    return groups


@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), dim=st.integers(1, 3), radius=st.floats(0.0, 1.5))
def test_against_the_search(seed: int, n: int, dim: int, radius: float) -> None:
    generator = np.random.default_rng(seed)
    points, masses = generator.standard_normal((n, dim)), generator.random(n) + 0.1
    groups = by_hand(points, radius)
    assert int(clusters(Tokens(points, masses), radius=radius)) == len(groups)
    sizes = sorted((masses[group].sum() for group in groups), reverse=True) + [0.0] * (n - len(groups))
    np.testing.assert_allclose(cluster_sizes(Tokens(points, masses), radius=radius).numpy(), sizes, rtol=1e-14)


@pytest.mark.parametrize("dim", [2, 20, 100])
@pytest.mark.parametrize("radius", [1e-7, 0.05, 0.5, 10.0])
def test_every_route_gives_the_same_components(dim: int, radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(dim)
    centres = generator.standard_normal((5, dim))
    points = centres[generator.integers(0, 5, 60)] + 0.02 / dim**0.5 * generator.standard_normal((60, dim))
    points[7] = points[3]
    tokens = Tokens(np.stack((points, 2 * points, points + 100.0)))
    batch, sizes = clusters(tokens, radius=radius), cluster_sizes(tokens, radius=radius)
    assert int(batch[0]) == len(by_hand(points, radius))
    monkeypatch.setattr(neighbours, "SMALL", 1)
    assert torch.equal(clusters(tokens, radius=radius), batch)
    torch.testing.assert_close(cluster_sizes(tokens, radius=radius), sizes, rtol=1e-14, atol=0.0)
    for limits in ({"FLAT": 0}, {"PAIRS": 100}, {"EDGES": 3}):  # blocks of pairs, smaller ones, then a flood
        for limit, value in limits.items():
            monkeypatch.setattr(neighbours, limit, value)
        assert torch.equal(clusters(tokens, radius=radius), batch)
        torch.testing.assert_close(cluster_sizes(tokens, radius=radius), sizes, rtol=1e-14, atol=0.0)


def test_the_default_radius_is_a_tenth_of_the_longest_token() -> None:
    ring = np.exp(2j * np.pi * np.arange(12) / 12)
    points = np.stack((ring.real, ring.imag), -1)
    assert int(clusters(Tokens(points))) == 12
    assert int(clusters(Tokens(points), radius=2 * np.sin(np.pi / 12) + 1e-9)) == 1
    pairs = np.concatenate((points, points * 0.95))
    assert int(clusters(Tokens(pairs))) == 12
    assert int(clusters(Tokens(pairs), radius=0.04)) == 24
    assert int(clusters(Tokens(1e-9 * pairs))) == 12


def test_closer_than_the_radius_is_strict_and_coincidence_always_joins() -> None:
    tokens = Tokens([[0.0], [0.5], [1.0]])
    assert int(clusters(tokens, radius=0.5)) == 3
    assert int(clusters(tokens, radius=np.nextafter(0.5, 1.0))) == 1
    assert int(clusters(Tokens([[0.3]] * 4), radius=0.0)) == 1
    assert int(clusters(Tokens([[0.0, 0.0]] * 4))) == 1
    assert int(clusters(Tokens([[1.0, 0.0]]))) == 1


def test_many_coinciding_tokens_of_many_dimensions() -> None:
    """Distances from products would keep these apart by rounding."""
    points = np.random.default_rng(0).standard_normal((3, 200))[np.arange(900) % 3] + 1e3
    assert int(clusters(Tokens(points), radius=1e-9)) == 3
    np.testing.assert_allclose(cluster_sizes(Tokens(points), radius=1e-9)[:3].numpy(), 1 / 3, rtol=1e-12)


def test_many_tokens_in_one_cluster_need_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "PAIRS", 1 << 14)
    monkeypatch.setattr(neighbours, "EDGES", 1 << 14)
    points = np.random.default_rng(0).standard_normal((3000, 3)) * 1e-3 + np.eye(3)[np.arange(3000) % 3]
    assert int(clusters(Tokens(points))) == 3


def test_tokens_without_mass_do_not_count() -> None:
    tokens = Tokens([[0.0], [1.0], [2.0]], [0.5, 0.0, 0.25])
    assert int(clusters(tokens, radius=1.5)) == 2  # the bridge has no mass
    assert cluster_sizes(tokens, radius=1.5).tolist() == [0.5, 0.25, 0.0]


def test_distances_are_those_of_the_space() -> None:
    points = Tokens([[1.0, 0.0], [0.8, 0.0]])
    assert int(clusters(points, radius=0.3)) == 1
    assert int(clusters(points, space=Ellipsoid(np.diag([4.0, 1.0])), radius=0.3)) == 2
    assert int(clusters(points, space=Sphere(), radius=0.3)) == 1


@pytest.mark.parametrize("radius", [-1.0, float("nan"), float("inf")])
def test_a_radius_must_be_a_length(radius: float) -> None:
    with pytest.raises(InputError, match="radius"):
        clusters(Tokens([[0.0]]), radius=radius)


@pytest.mark.parametrize("radius", [0.02, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("shape", ["sphere", "patches", "bridge"])
def test_crowds_are_joined_by_cells(shape: str, radius: float) -> None:
    """Against the list of all pairs: where tokens crowd, cells give the same components and the same first members."""
    generator = np.random.default_rng(3)
    points = generator.standard_normal((4000, 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    if shape == "patches":
        points = np.eye(3)[generator.integers(0, 3, 4000)] + 0.1 * generator.random((4000, 3))
    if (
        shape == "bridge"
    ):  # two crowds whose cells' first tokens are far apart, joined by one pair just within reach, or not
        points = 0.2 * radius * generator.random((4000, 3))
        points[2000:] += [1.2 * radius + 1e-9, 0.0, 0.0]
        points[[0, -1]] = [[0.2 * radius, 0.0, 0.0], [1.2 * radius - 1e-9, 0.0, 0.0]]
    tree = KDTree(points)
    pairs = tree.query_pairs(radius, output_type="ndarray")
    expected = neighbours._first_members(pairs[:, 0], pairs[:, 1], len(points))
    found = neighbours._join_by_cells(points, radius)
    # elsewhere there are a token or two to a cell, and pairs are listed
    assert (found is not None) == (radius >= {"sphere": 0.3, "patches": 0.05, "bridge": 0.0}[shape])
    if found is not None:
        np.testing.assert_array_equal(found, expected)


def test_a_hundred_thousand_tokens_on_a_sphere_are_one_cluster() -> None:
    assert int(clusters(Tokens.uniform(100_000, 3), space=Sphere())) == 1
