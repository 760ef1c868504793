"""Moment closures of sigmoid and exponential attention: right for an instant, and said not to be exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor import meanfield as mf
from attractor.errors import InputError, UnsupportedError
from attractor.laws.kernels.sigmoid import gauss_hermite
from attractor.meanfield.closures import MomentLaw

START = at.Gaussian([0.2, 0.1], [[0.5, 0.1], [0.1, 0.3]])


def law(kernel: at.Kernel | str) -> at.Attention:
    return at.Attention(*(0.4 * np.random.default_rng(0).standard_normal((3, 2, 2, 2))), kernel=kernel)


@pytest.mark.parametrize("kernel", [at.Sigmoid(bias=0.3), "exponential"])
def test_moments_move_as_those_of_many_tokens(kernel: at.Kernel | str) -> None:
    """Tokens on a quadrature grid, whose velocities know no closure."""
    z, masses = gauss_hermite(40, 2)
    tokens = at.Tokens(START.mean.numpy() + z @ START.factor.numpy().T, masses=masses)
    moved = at.velocity(law(kernel), tokens)
    rows = MomentLaw(law(kernel), 20).velocity(at.Tokens.unchecked(START.rows()))
    torch.testing.assert_close(tokens.masses @ moved, rows[0], rtol=0, atol=1e-11)
    mixed = (moved * tokens.masses[:, None]).mT @ (tokens.points - START.mean)
    torch.testing.assert_close(rows[1:].mT @ START.factor.mT, mixed, rtol=0, atol=1e-11)


def test_a_moment_closure_says_that_it_is_not_exact() -> None:
    run = mf.moment_closure(law("sigmoid"), START, until=0.5, save=4)
    assert not run.exact
    assert run.covariances.shape == (5, 2, 2)
    assert bool((torch.linalg.eigvalsh(run.covariances) > 0).all())
    with pytest.raises(UnsupportedError, match="moment_closure"):
        at.flow(law("sigmoid"), START, until=1.0)
    with pytest.raises(UnsupportedError, match="other closures are exact"):
        mf.moment_closure(law("softmax"), START, until=1.0)
    with pytest.raises(InputError, match="nodes"):
        mf.moment_closure(law("sigmoid"), START, until=1.0, order=1000)
    wide = at.Gaussian([0.0, 0.0], 40 * np.eye(2))
    with pytest.raises(UnsupportedError, match="moments of exponential attention are infinite"):
        mf.moment_closure(law("exponential"), wide, until=1.0)
