"""The approach to a blow-up: eigenvalues that stay finite keep their digits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

import attractor as at
from attractor import meanfield as mf
from attractor.errors import UnsupportedError
from attractor.solvers import factor_eigenvalues

mpmath.mp.dps = 50


def eigenvalues(P: Any) -> np.ndarray:
    """Eigenvalues of the inverse of a precision matrix, the largest first."""
    values = [
        1 / value if abs(value) > mpmath.mpf("1e-40") else mpmath.inf for value in mpmath.eigsy(P, eigvals_only=True)
    ]
    return np.array([float(value) for value in sorted((abs(value) for value in values), reverse=True)])


@pytest.mark.theorem
@pytest.mark.parametrize("seed", range(6))
def test_finite_eigenvalues_of_an_identity_value(seed: int) -> None:
    """Under V = I the precision matrix is P(t) = P(0) - t (A + A'), so that the limits are those of P(T*)."""
    rng = np.random.default_rng(seed)
    d = 2 + seed % 3
    root = rng.standard_normal((d, d))
    Sigma, query, key = root @ root.T / d + 0.2 * np.eye(d), rng.standard_normal((d, d)), rng.standard_normal((d, d))
    query = query if np.linalg.eigvalsh(key.T @ query + query.T @ key)[-1] > 0 else -query
    run = at.flow(at.Attention(query, key, np.eye(d)), at.Gaussian(np.zeros(d), Sigma), until=1e4)  # type: ignore[arg-type]
    assert run.outcome.name == "blow_up"
    found = mf.approach_blow_up(run)
    A = mpmath.matrix((key.T @ query).tolist())
    P, S = mpmath.inverse(mpmath.matrix(Sigma.tolist())), A + A.T
    L = mpmath.cholesky(mpmath.matrix(Sigma.tolist()))
    T = 1 / max(mpmath.eigsy(L.T * S * L, eigvals_only=True))
    assert found.time == pytest.approx(float(T), rel=1e-10)
    exact = eigenvalues(P - T * S)
    assert np.isinf(found.limits[0])
    np.testing.assert_allclose(found.limits[1:], exact[1:], rtol=1e-10)
    for k in (0, 20, 47):
        exact = eigenvalues(P - mpmath.mpf(float(found.times[k])) * S)
        left = (found.time - found.times[k]) / found.time
        np.testing.assert_allclose(found.eigenvalues[k, 1:], exact[1:], rtol=1e-10)
        np.testing.assert_allclose(found.eigenvalues[k, 0], exact[0], rtol=1e-11 / left)


@pytest.mark.theorem
def test_values_that_commute_and_a_mean() -> None:
    """In common eigenvectors 1 / s_i(t) = 1 / s_i(0) - 2 v_i a_i t."""
    rng = np.random.default_rng(3)
    U = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    a, v, s = np.array([1.0, 0.7, -2.0]), np.array([1.5, 0.4, 0.8]), np.array([1.0, 2.0, 0.3])
    matrix = lambda x: U @ np.diag(x) @ U.T  # noqa: E731
    law = at.Attention(matrix(a), np.eye(3), matrix(v), scale=1.0)  # type: ignore[arg-type]
    for save in (None, [], [0.1]):  # which states the run saves does not matter
        run = at.flow(law, at.Gaussian(np.zeros(3), matrix(s)), until=10.0, save=save)  # type: ignore[arg-type]
        found = mf.approach_blow_up(run)
        T = 1 / (2 * (v * a * s).max())
        exact = 1 / (1 / s[1:] - 2 * v[1:] * a[1:] * T)
        np.testing.assert_allclose(found.limits[1:], np.sort(exact)[::-1], rtol=1e-10)
        assert (found.changes[1:] < 1e-9).all()
        assert found.describe_limits().startswith("infinite, ")
    left = found.time - found.times
    np.testing.assert_allclose(left[2:] / left[:-2], 0.5, rtol=1e-6)  # geometric towards T*


def test_several_directions_that_blow_up_together() -> None:
    run = at.flow(at.Attention.isotropic(3, 1.0), at.Gaussian(np.zeros(3), np.eye(3)), until=1.0)  # type: ignore[arg-type]
    found = mf.approach_blow_up(run)
    assert np.isinf(found.limits).all()
    np.testing.assert_allclose(found.eigenvalues, 1 / (1 - 2 * found.times)[:, None].repeat(3, 1), rtol=1e-4)


def test_a_start_of_low_rank_stays_of_low_rank() -> None:
    start = at.Gaussian([0.0, 0.0, 0.0], np.diag([1.0, 0.5, 0.0]))  # type: ignore[arg-type]
    run = at.flow(at.Attention.isotropic(3, 1.0), start, until=1.0)
    assert mf.approach_blow_up(run).limits.tolist() == [np.inf, pytest.approx(1.0), 0.0]


def test_eigenvalues_of_graded_factors(rng: np.random.Generator) -> None:
    columns = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    sizes = np.array([1e12, 3.0, 1e-9, 0.0])
    assert factor_eigenvalues(columns * sizes) == pytest.approx(sizes**2, rel=1e-13)
    graded = rng.standard_normal((4, 4)) * [1e12, 3.0, 1e-9, 1e-20]
    exact = mpmath.svd_r(mpmath.matrix(graded.tolist()), compute_uv=False)
    assert factor_eigenvalues(graded) == pytest.approx([float(x) ** 2 for x in exact], rel=1e-12)


def test_only_a_blow_up_is_approached() -> None:
    run = at.flow(at.Attention.isotropic(2, -1.0), at.Gaussian([0.0, 0.0], np.eye(2)), until=1.0)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="blow_up"):
        mf.approach_blow_up(run)


def test_a_time_dependent_law_is_refused() -> None:
    law = at.Attention.isotropic(2, 1.0)
    schedule = at.Schedule(lambda t: law)
    run = at.flow(law, at.Gaussian([0.0, 0.0], np.eye(2)), until=1.0)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="change with time"):
        mf.approach_blow_up(replace(run, law=schedule))
