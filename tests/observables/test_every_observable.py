"""What holds for every observable: shapes, ensembles, precision, indifference to rotation and to order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor import observables
from attractor.laws import Attention
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Tokens

NAMES = observables.list_observables()
FURTHER_AXES = {
    "attention_entropy": (2,),
    "leaders": (2,),
    "self_weight": (2,),
    "tilt": (2,),
    "partition": (2, 7),
    "cluster_sizes": (7,),
    "mean": (3,),
    "covariance": (3, 3),
}
SPACES = [None, Euclidean(), Sphere(2.0), Ellipsoid(np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 0.7]]))]


def two_heads(dtype: torch.dtype = torch.float64) -> Attention:
    generator = np.random.default_rng(5)
    query, key = generator.standard_normal((2, 2, 2, 3))
    return Attention(*(torch.tensor(part, dtype=dtype) for part in (query, key, generator.standard_normal((2, 3, 3)))))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: "none" if space is None else space.name)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_an_ensemble_is_its_members(name: str, weighted: bool, space: Space | None) -> None:
    function, law = observables.find_observable(name), two_heads()
    masses = torch.rand(4, 2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if weighted else None
    tokens = Tokens.gaussian(7, 3, ensemble=(4, 2), masses=masses)
    values = function(tokens, law, space)
    assert tuple(values.shape) == (4, 2, *FURTHER_AXES.get(name, ()))
    for time in range(4):
        for member in range(2):
            alone = Tokens(tokens.points[time, member], None if masses is None else masses[time, member])
            torch.testing.assert_close(values[time, member], function(alone, law, space), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_masses_shared_by_all_members(name: str) -> None:
    function, law = observables.find_observable(name), two_heads()
    masses = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    shared = Tokens.gaussian(7, 3, ensemble=3, masses=masses)
    repeated = Tokens(shared.points, masses.expand(3, 7))
    torch.testing.assert_close(function(shared, law), function(repeated, law), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_equal_masses_change_nothing_but_sums_over_the_measure(name: str) -> None:
    function, law = observables.find_observable(name), two_heads()
    points = Tokens.gaussian(7, 3).points
    equal = Tokens(points, torch.full((7,), 1 / 7, dtype=torch.float64))
    torch.testing.assert_close(function(equal, law), function(Tokens(points), law), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("partition", "cluster_sizes")])
def test_a_token_without_mass_is_not_there(name: str) -> None:
    function, law = observables.find_observable(name), two_heads()
    points = Tokens.gaussian(7, 3).points
    far = torch.cat(
        (torch.full((1, 3), 50.0, dtype=torch.float64), points, -torch.full((1, 3), 9.0, dtype=torch.float64))
    )
    masses = torch.tensor([0.0, *[0.5] * 7, 0.0], dtype=torch.float64)
    torch.testing.assert_close(
        function(Tokens(far, masses), law), function(Tokens(points, masses[1:-1]), law), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("name", NAMES)
def test_float32_keeps_its_precision(name: str) -> None:
    function = observables.find_observable(name)
    points = Tokens.gaussian(9, 3, ensemble=2).points
    single = function(Tokens(points, dtype=torch.float32), two_heads(torch.float32))
    double = function(Tokens(points.float()), two_heads())
    assert single.dtype == (torch.int64 if name in ("clusters", "kernel_clusters", "leaders") else torch.float32)
    torch.testing.assert_close(single.double(), double.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("point", [[0.0, 0.0, 0.0], [0.0, 2.0, 0.0]], ids=["origin", "elsewhere"])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_at_one_point_give_finite_values(name: str, n: int, point: list[float]) -> None:
    values = observables.find_observable(name)(Tokens(torch.tensor([point] * n)), two_heads())
    assert bool(torch.isfinite(values).all())


INVARIANT = [name for name in NAMES if name not in ("mean", "covariance", "partition", "energy_rate")]


@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), dim=st.integers(1, 4), weighted=st.booleans())
@pytest.mark.parametrize("name", INVARIANT)
def test_rotations_change_nothing(name: str, seed: int, n: int, dim: int, weighted: bool) -> None:
    generator = np.random.default_rng(seed)
    points, masses = generator.standard_normal((n, dim)), generator.random(n) + 0.1 if weighted else None
    rotation = np.linalg.qr(generator.standard_normal((dim, dim)))[0]
    law = Attention.isotropic(dim, 1.5)
    before, after = (observables.find_observable(name)(Tokens(x, masses), law) for x in (points, points @ rotation.T))
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-10)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), dim=st.integers(1, 4), weighted=st.booleans())
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("partition", "consensus_metric")])
def test_the_order_of_tokens_changes_nothing(name: str, seed: int, n: int, dim: int, weighted: bool) -> None:
    generator = np.random.default_rng(seed)
    points, masses = generator.standard_normal((n, dim)), generator.random(n) + 0.1 if weighted else None
    order = generator.permutation(n)
    law = Attention.isotropic(dim, 1.5)
    before = observables.find_observable(name)(Tokens(points, masses), law)
    after = observables.find_observable(name)(Tokens(points[order], masses if masses is None else masses[order]), law)
    torch.testing.assert_close(before, after, rtol=1e-9, atol=1e-10)


SCALE_FREE = [
    "clusters",
    "cluster_entropy",
    "cluster_sizes",
    "consensus_metric",
    "cosine",
    "cosine_min",
    "effective_rank",
    "pair_fraction",
    "sharpness",
]
LENGTHS = ["token_norm", "diameter", "consensus_gap", "hemisphere_margin"]


@given(seed=st.integers(0, 10**6), exponent=st.integers(-30, 30))
@pytest.mark.parametrize("name", SCALE_FREE + LENGTHS)
def test_lengths_scale_and_shapes_do_not(name: str, seed: int, exponent: int) -> None:
    points = np.random.default_rng(seed).standard_normal((6, 3)) + 1.0
    function, factor = observables.find_observable(name), 2.0**exponent
    wanted = function(Tokens(points)) * (factor if name in LENGTHS else 1)
    torch.testing.assert_close(function(Tokens(factor * points)), wanted, rtol=1e-12, atol=0.0)
