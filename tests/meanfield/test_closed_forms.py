"""Closed forms against the flow, which knows nothing of them: 1e-10 at nine tenths of the blow-up time (mean field 3, 6)."""

from __future__ import annotations

import numpy as np
import pytest

import attractor as at
from attractor import meanfield as mf
from attractor.errors import InputError


def problem(seed: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A = K'Q and a covariance."""
    rng = np.random.default_rng(seed)
    query, key, root = rng.standard_normal((3, d, d))
    return query, key, root @ root.T / d + 0.05 * np.eye(d)


def followed(law: at.Law, mean: np.ndarray, covariance: np.ndarray, time: float) -> tuple[np.ndarray, np.ndarray]:
    run = at.flow(law, at.Gaussian(mean, covariance), save=[time])
    return run.means[-1].numpy(), run.covariances[-1].numpy()


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-10) -> bool:
    return bool(np.abs(np.asarray(found) - expected).max() < tolerance * np.abs(expected).max())


@pytest.mark.theorem
@pytest.mark.parametrize(("seed", "d"), [(0, 2), (1, 3), (2, 5), (3, 4)])
def test_identity_value(seed: int, d: int) -> None:
    query, key, covariance = problem(seed, d)
    law, A = at.Attention(query, key, np.eye(d)), key.T @ query
    time, direction = mf.identity_value_blow_up(A, covariance)
    assert direction is not None
    _, found = followed(law, np.zeros(d), covariance, 0.9 * time)
    assert close(found, mf.identity_value_covariance(A, covariance, 0.9 * time))
    end = mf.find_blow_up(law, at.Gaussian(np.zeros(d), covariance))
    assert end.outcome == "blow_up"
    assert end.direction is not None
    assert abs(end.time / time - 1) < 1e-9
    assert abs(np.dot(end.direction, direction)) > 1 - 1e-8
    with pytest.raises(InputError, match="blows up at t ="):
        mf.identity_value_covariance(A, covariance, 1.01 * time)


@pytest.mark.theorem
def test_the_conserved_matrix_of_identity_value() -> None:
    query, key, covariance = problem(4, 3)
    law, A = at.Attention(query, key, np.eye(3), scale=0.3), 0.3 * key.T @ query
    time = 0.5 * mf.identity_value_blow_up(A, covariance)[0]
    _, found = followed(law, np.ones(3), covariance, time)
    assert close(np.linalg.inv(found) + time * (A + A.T), np.linalg.inv(covariance), 1e-9)


@pytest.mark.theorem
def test_mean_of_identity_value_with_a_symmetric_interaction() -> None:
    query, _, covariance = problem(5, 3)
    law, A = at.Attention(query, query, np.eye(3)), query.T @ query
    time = 0.9 * mf.identity_value_blow_up(A, covariance)[0]
    mean, _ = followed(law, np.array([0.4, -1.0, 0.2]), covariance, time)
    assert close(mean, mf.identity_value_mean(A, [0.4, -1.0, 0.2], covariance, time))
    with pytest.raises(InputError, match="symmetric"):
        mf.identity_value_mean(np.triu(np.ones((3, 3))), [0.0, 0.0, 0.0], covariance, 0.1)


@pytest.mark.theorem
@pytest.mark.parametrize(("v", "a"), [(0.7, 1.3), (-0.7, 1.3), (0.5, -0.8)])
def test_one_dimension(v: float, a: float) -> None:
    time = 0.9 / (2 * v * a * 1.7) if v * a > 0 else 4.0
    mean, covariance = followed(at.Attention([[a]], [[1.0]], [[v]]), np.array([0.4]), np.array([[1.7]]), time)
    expected = mf.one_dimension_moments(v, a, 0.4, 1.7, time)
    assert close(mean, np.array([expected[0]]))
    assert close(covariance, np.array([[expected[1]]]))


@pytest.mark.theorem
def test_commuting_matrices() -> None:
    basis = np.linalg.qr(np.random.default_rng(6).standard_normal((3, 3)))[0]
    value, interaction, covariance = (
        basis @ np.diag(e) @ basis.T for e in ([1.0, -0.5, 2.0], [0.3, -1.0, -0.4], [1, 2, 3.0])
    )
    law = at.Attention(interaction, np.eye(3), value)
    time = mf.commuting_blow_up(value, interaction, covariance)
    assert time == pytest.approx(1 / (2 * max(1.0 * 0.3 * 1, 0.5 * 1.0 * 2, -0.8 * 3)), rel=1e-12)
    _, found = followed(law, np.zeros(3), covariance, 0.9 * time)
    assert close(found, mf.commuting_covariance(value, interaction, covariance, 0.9 * time))
    assert mf.find_blow_up(law, at.Gaussian(np.zeros(3), covariance)).time == pytest.approx(time, rel=1e-9)
    with pytest.raises(InputError, match="commute"):
        mf.commuting_covariance(np.array([[1.0, 1.0], [0.0, 1.0]]), np.eye(2), np.eye(2), 0.1)


@pytest.mark.theorem
def test_affine_feedforward_is_a_linear_equation_of_the_precision() -> None:
    query, key, covariance = problem(7, 3)
    W, c = 0.3 * np.random.default_rng(8).standard_normal((3, 3)), np.array([0.1, 0.2, -0.3])
    block = at.Block(at.Attention(query, key, np.eye(3), scale=-0.2), at.Affine(W, c))
    _, found = followed(block, np.zeros(3), covariance, 0.3)
    assert close(found, mf.affine_feedforward_covariance(-0.2 * key.T @ query, W, covariance, 0.3), 1e-10)
    summed = at.Attention(query, key, np.eye(3), scale=-0.2) + at.Affine(W, c)
    assert close(found, followed(summed, np.zeros(3), covariance, 0.3)[1], 1e-12)


@pytest.mark.theorem
@pytest.mark.parametrize(("v", "a", "time"), [(0.7, 1.3, 2.0), (0.7, -1.3, 2.0), (-0.4, 0.6, 3.0), (1.0, 2.0, 20.0)])
def test_one_dimension_of_sinkhorn(v: float, a: float, time: float) -> None:
    law = at.Attention([[a]], [[1.0]], [[v]], kernel=at.Sinkhorn(eps=0.8))
    _, found = followed(law, np.zeros(1), np.array([[0.9]]), time)
    assert close(found, np.array([[mf.one_dimension_sinkhorn_variance(v, a, 0.9, time, 0.8)]]))


@pytest.mark.theorem
@pytest.mark.parametrize(("v", "time"), [(0.7, 2.0), (-0.7, 2.0), (1.0, 20.0), (-1.0, 50.0)])
def test_one_dimension_of_l2(v: float, time: float) -> None:
    _, found = followed(at.Attention([[1.2]], [[1.2]], [[v]], kernel="l2"), np.zeros(1), np.array([[0.9]]), time)
    assert close(found, np.array([[mf.one_dimension_l2_variance(v, 1.2, 0.9, time)]]))


@pytest.mark.theorem
def test_limit_of_identity_value_has_the_rank_of_the_kernel() -> None:
    """T5: S <= 0 is global, tr Sigma does not increase, ||S Sigma|| falls like 1/t, and what stays is the kernel of S."""
    rng = np.random.default_rng(9)
    query, root = rng.standard_normal((2, 4)), rng.standard_normal((4, 4))
    law, A, covariance = at.Attention(query, -query, np.eye(4)), -query.T @ query, root @ root.T
    expected = mf.identity_value_limit(A, covariance)
    found = mf.find_limit(law, covariance)
    assert (found.kind, found.rank) == ("low_rank", 2)
    assert np.linalg.matrix_rank(expected) == 2
    assert close(found.covariance, expected, 1e-5)
    run = at.flow(law, at.Gaussian(np.zeros(4), covariance), save=[0.0, *np.geomspace(0.1, 1e5, 40)])
    trace = np.trace(run.covariances.numpy(), axis1=1, axis2=2)
    assert (np.diff(trace) <= 1e-10 * trace[:-1]).all()
    left = np.linalg.norm(A @ run.covariances.numpy(), axis=(1, 2))
    assert np.log10(left[-1] / left[-9]) == pytest.approx(-np.log10(float(run.times[-1] / run.times[-9])), rel=0.02)
    with pytest.raises(InputError, match="no limit"):
        mf.identity_value_limit(-A, covariance)
