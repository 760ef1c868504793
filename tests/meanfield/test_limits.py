"""Limits of covariances: their rank (T7), stationarity and isotropy (T6), kinds, and phases."""

from __future__ import annotations

import math

import numpy as np
import pytest

import attractor as at
from attractor import meanfield as mf
from attractor.errors import InputError
from attractor.meanfield.limits import are_same_lines, cone_coordinates, disc_grid, phase_portrait
from attractor.papers.gaussian_cases import CASES, find_case


def test_the_rank_estimator_sees_what_falls_like_one_over_t() -> None:
    assert mf.limit_rank([1.0, 1e-3], [1.0, 1e-3]) == 2
    assert mf.limit_rank([1.0, 1e-3], [1.0, 1e-4]) == 1  # falls like 1/t, and would pass any cut below 1e-4
    assert mf.limit_rank([1.0, 1e-9], [1.0, 1e-9]) == 1
    assert mf.limit_rank([1.0, 0.5], [0.1, 0.05]) == 0
    assert mf.limit_rank(np.eye(3), np.zeros((3, 3))) == 0


@pytest.mark.theorem
@pytest.mark.parametrize("seed", [0])
def test_generic_limits_of_softmax_are_isotropic_and_of_low_rank(seed: int) -> None:
    """T6: V = I rests iff S vanishes on the image; with a generic V limits have U'AU = 0 and rank at most d/2."""
    law = find_case("two-lines").law("softmax")
    root = np.random.default_rng(seed).standard_normal((2, 2))
    found = mf.find_limit(law, root @ root.T)
    A = (law.key.mT @ law.query).numpy()
    assert found.rank == 1
    assert found.rank <= (mf.rank_bound(law) or 0)
    assert mf.is_isotropic(found.covariance, A)
    assert not mf.is_isotropic(np.eye(2), A)
    assert mf.stationary_residual(law, at.Gaussian(np.zeros(2), found.covariance)) < 1e-7


@pytest.mark.theorem
def test_isotropic_images_rest_for_identity_value() -> None:
    S = np.diag([1.0, -1.0, 0.0, 2.0])
    law = at.Attention(S, np.eye(4), np.eye(4))
    U = np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]).T
    assert mf.is_isotropic(U @ U.T, S)
    assert mf.stationary_residual(law, at.Gaussian(np.zeros(4), U @ U.T)) < 1e-15
    assert mf.rank_bound(law) == 2  # n_0 + min(n_+, n_-)
    assert mf.stationary_residual(law, at.Gaussian(np.zeros(4), np.eye(4))) > 0.4
    assert mf.find_limit(law, np.eye(4) + 0.1).kind == "blow_up"  # S is not negative semi-definite


def test_kinds_of_limits() -> None:
    eye, start = np.eye(2), np.array([[0.7, 0.1], [0.1, 0.3]])
    assert mf.find_limit(at.Attention(eye, -eye, eye), start).kind == "collapse"
    blown = mf.find_limit(at.Attention(eye, eye, eye), start)
    assert blown.kind == "blow_up"
    assert blown.time == pytest.approx(1 / (2 * np.linalg.eigvalsh(start)[-1]), rel=1e-9)
    assert mf.find_limit(at.Attention(eye, eye, eye, kernel="sinkhorn"), start).kind == "diverged"
    resting = mf.find_limit(at.Attention([[0.0, 1.0], [-1.0, 0.0]], eye, eye), start)
    assert (resting.kind, resting.rank) == ("full_rank", 2)  # S = 0: the covariance rests while tokens turn


@pytest.mark.parametrize(
    ("name", "kernel", "kinds", "lines"),
    [
        ("collapse", "multi-head", {"collapse"}, 0),
        ("line", "softmax", {"low_rank"}, 1),
        ("plane", "multi-head", {"full_rank", "low_rank"}, None),
        ("two-lines", "softmax", {"low_rank"}, 2),
        ("divergence", "softmax", {"blow_up"}, 0),
        ("both", "softmax", {"low_rank"}, None),
    ],
)
def test_the_six_cases(name: str, kernel: str, kinds: set[str], lines: int | None) -> None:
    starts = disc_grid(3)[[0, 3, 8]]
    found = phase_portrait(find_case(name).law(kernel), starts)
    assert set(found.summary()["kinds"]) <= kinds
    assert lines is None or len(found.angles()) == lines
    if name == "line":
        q = find_case(name).matrices[0][0]
        assert are_same_lines(found.angles(), [[-q[1], q[0]]])
    if name == "two-lines":  # the isotropic directions of A
        query, key, _ = find_case(name).matrices
        S = (lambda A: A + A.T)(key.T @ query)
        a, b, c = S[0, 0], S[0, 1], S[1, 1]
        slopes = [(-b + sign * math.sqrt(b * b - a * c)) / c for sign in (1, -1)]
        assert are_same_lines(found.angles(), [[1.0, slope] for slope in slopes])


def test_coordinates_of_the_cone_and_the_grid() -> None:
    starts = disc_grid(5)
    places = cone_coordinates(starts)
    assert np.allclose(places[:, 2], 1.0)
    assert (np.linalg.norm(places[:, :2], axis=1) < 1.0).all()
    assert (np.linalg.eigvalsh(starts) > 0).all()
    with pytest.raises(InputError, match="in the plane"):
        phase_portrait(at.Attention(np.eye(3), np.eye(3), np.eye(3)))
    with pytest.raises(InputError, match="is not known"):
        find_case("circle")
    assert len(CASES) == 6


def test_official_scaling_changes_l2_and_sinkhorn_only() -> None:
    chosen = find_case("collapse")
    for kernel in chosen.kernels:
        one, other = chosen.law(kernel), chosen.law(kernel, official_scaling=True)
        same = one.scale == other.scale and bool((one.query == other.query).all())
        assert same == (kernel in ("softmax", "multi-head"))


@pytest.mark.parametrize("name", ["both", "two-lines", "divergence"])
def test_paths_of_a_phase_portrait_are_smooth(name: str) -> None:
    """Steps in the disc of covariances of trace one are short, and no path turns by a large angle in one step."""
    law = find_case(name).law("softmax")
    found = mf.phase_portrait(law, np.array([[[0.75, 0.1], [0.1, 0.25]], [[0.3, -0.2], [-0.2, 0.7]]]))
    for start, limit in zip(found.starts, found.limits, strict=True):
        assert limit.path is not None
        way = mf.cone_coordinates(np.concatenate((start[None], limit.path)))
        shape = way[:, :2] / way[:, 2:]
        steps = np.diff(shape, axis=0)
        lengths = np.linalg.norm(steps, axis=1)
        assert lengths.max() < 0.1
        long = steps[lengths > 1e-3] / lengths[lengths > 1e-3, None]
        assert np.sum(long[1:] * long[:-1], axis=1).min() > 0.9
