"""Signs of eigenvalues of matrices far from normal, against eigenvalues in 60 digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import mpmath
import numpy as np
import pytest
import torch

import attractor as at
from attractor.weights import bound_abscissa, bound_radius, enclose_eigenvalue, rounding_error
from attractor.weights.spectra import spectra, spectrum

Draw: TypeAlias = Callable[[np.random.Generator], np.ndarray]
DRAWS = 6


def turn(rng: np.random.Generator, matrix: np.ndarray) -> np.ndarray:
    basis = np.linalg.qr(rng.standard_normal(matrix.shape))[0]
    return basis @ matrix @ basis.T


def block(size: int, value: float) -> np.ndarray:
    return np.diag(np.full(size, value)) + np.diag(np.ones(size - 1), 1)


def skew(rng: np.random.Generator) -> np.ndarray:
    matrix = rng.standard_normal((6, 6))
    return matrix - matrix.T - 10.0 ** rng.uniform(-14, 0) * np.eye(6)


def near_dependent(rng: np.random.Generator) -> np.ndarray:
    basis = rng.standard_normal((6, 6))
    basis[:, -1] = basis[:, 0] + 10.0 ** rng.uniform(-8, -1) * basis[:, -1]
    return basis @ np.diag(rng.uniform(-1, 0.1, 6)) @ np.linalg.inv(basis)


FAMILIES: dict[str, Draw] = {
    "random": lambda rng: rng.standard_normal((7, 7)),
    "jordan stable": lambda rng: turn(rng, block(12, -(10.0 ** rng.uniform(-4, 0)))),
    "jordan unstable": lambda rng: turn(rng, block(9, 10.0 ** rng.uniform(-4, 0))),
    "skew": skew,
    "triangular": lambda rng: np.triu(3 * rng.standard_normal((8, 8)), 1) + np.diag(rng.uniform(-1, 0.05, 8)),
    "near dependent": near_dependent,
    "graded": lambda rng: -np.diag(10.0 ** rng.uniform(-12, 0, 6)) + np.triu(rng.standard_normal((6, 6)), 1),
}


def exact_eigenvalues(matrix: np.ndarray) -> list[mpmath.mpc]:
    with mpmath.workdps(60):
        return list(mpmath.eig(mpmath.matrix(matrix.tolist()), left=False, right=False))


@pytest.mark.theorem
@pytest.mark.parametrize("family", FAMILIES)
def test_a_proved_sign_is_true(family: str) -> None:
    rng = np.random.default_rng(list(FAMILIES).index(family))
    for _ in range(DRAWS):
        matrix = FAMILIES[family](rng)
        found, exact = bound_abscissa(torch.from_numpy(matrix)), exact_eigenvalues(matrix)
        true = max(value.real for value in exact)
        assert found.low <= true <= found.high
        assert found.sign in (0, int(mpmath.sign(true)))
        stability = spectrum(torch.from_numpy(matrix)).stability
        assert stability in ("undetermined", "unstable" if true > 0 else "stable")
        radius = bound_radius(torch.from_numpy(matrix))
        assert radius.low <= max(abs(value) for value in exact) <= radius.high


def test_most_signs_are_proved() -> None:
    """Undetermined is an answer for few matrices only: none that is random, or a block that is clearly unstable."""
    rng = np.random.default_rng(0)
    for draw in (FAMILIES["random"], lambda rng: turn(rng, block(9, 0.3)), lambda rng: turn(rng, block(3, -0.3))):
        assert all(bound_abscissa(torch.from_numpy(draw(rng))).sign for _ in range(30))


@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_block_whose_sign_rounding_hides_gets_no_fate(mask: str | None) -> None:
    """The true eigenvalue is -7e-4, the computed one 0.03: formerly a certain divergence."""
    eye = torch.eye(12, dtype=torch.float64)
    value = torch.from_numpy(turn(np.random.default_rng(3), block(12, -7e-4)))
    assert float(torch.linalg.eigvals(value).real.max()) > 0.01
    law, tokens = at.Attention(eye, eye, value, mask=mask), at.Tokens.gaussian(3, 12, seed=0)
    found = at.predict(law, tokens)
    assert found.fates == {}
    if mask:
        assert {"regimes.T8", "regimes.T8.converse"} <= {item.theorem.key for item in found.undetermined}
        assert at.regime(law).label == "undetermined"


def test_a_direction_that_may_shrink_is_not_called_stretched() -> None:
    """The half-space theorem needs the sign of the rate of its direction, which a block hides."""
    eye = torch.eye(12, dtype=torch.float64)
    for seed in range(40):
        value = torch.from_numpy(turn(np.random.default_rng(seed), block(12, -7e-4)))
        values, vectors = torch.linalg.eig(value.mT)
        real = [
            index for index in range(12) if abs(float(values[index].imag)) < 1e-12 and float(values[index].real) > 0
        ]
        if real:
            direction = vectors[:, real[0]].real
            tokens = at.Tokens(direction + 0.01 * torch.eye(3, 12, dtype=torch.float64))
            assert "divergence" not in at.predict(at.Attention(eye, eye, value), tokens).fates
            return
    pytest.skip("no computed eigenvalue was real")


def test_every_matrix_of_a_batch_gets_its_own_sign() -> None:
    rng = np.random.default_rng(1)
    matrices = torch.from_numpy(rng.standard_normal((20, 5, 5)) - 1.5 * np.eye(5))
    for one, matrix in zip(spectra(matrices), matrices, strict=True):
        true = float(max(value.real for value in exact_eigenvalues(matrix.numpy())))
        assert one.stability == ("unstable" if true > 0 else "stable")


def test_a_repeated_eigenvalue_is_enclosed() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    disc = enclose_eigenvalue(eye.numpy(), 1.0 + 0j, rounding_error(eye))
    assert disc.value < 1e-12
    assert not np.isfinite(enclose_eigenvalue(block(12, 0.0), 0j, 1e-15).value)
