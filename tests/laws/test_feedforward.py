"""Feed-forward laws move every token by itself, by the formula."""

from __future__ import annotations

from math import erf, exp, pi, sqrt, tanh

import numpy as np
import pytest
import torch

from attractor.errors import InputError
from attractor.laws import MLP, Affine
from attractor.states import Tokens

FORMULAS = {
    "relu": lambda z: max(z, 0.0),
    "gelu": lambda z: z * 0.5 * (1 + erf(z / sqrt(2))),
    "gelu_tanh": lambda z: 0.5 * z * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z / (1 + exp(-z)),
    "tanh": tanh,
    "identity": lambda z: z,
}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", FORMULAS)
def test_mlp_is_the_formula(activation: str, gated: bool, rng: np.random.Generator) -> None:
    x, w1, b1, w2, b2, gate = (rng.standard_normal(size) for size in ((2, 4, 3), (5, 3), 5, (3, 5), 3, (5, 3)))
    law = MLP(w1, b1, w2, b2, activation, gate if gated else None)
    assert law.dim == 3
    assert law.autonomous
    act = np.vectorize(FORMULAS[activation], otypes=[float])
    for lane in range(2):
        for i in range(4):
            inner = w1 @ x[lane, i] + b1
            hidden = act(gate @ x[lane, i]) * inner if gated else act(inner)
            expected = w2 @ hidden + b2
            np.testing.assert_allclose(law.velocity(Tokens(x))[lane, i].numpy(), expected, rtol=0, atol=1e-13)


def test_biases_are_optional(rng: np.random.Generator) -> None:
    x, w1, w2 = (rng.standard_normal(size) for size in ((4, 3), (5, 3), (3, 5)))
    plain, zero = MLP(w1, None, w2), MLP(w1, np.zeros(5), w2, np.zeros(3))
    torch.testing.assert_close(plain.velocity(Tokens(x)), zero.velocity(Tokens(x)), rtol=0, atol=0)


def test_affine_is_the_formula(rng: np.random.Generator) -> None:
    x, matrix, offset = rng.standard_normal((2, 4, 3)), rng.standard_normal((3, 3)), rng.standard_normal(3)
    got = Affine(matrix, offset).velocity(Tokens(x)).numpy()
    np.testing.assert_allclose(got, np.einsum("ab,lib->lia", matrix, x) + offset, rtol=0, atol=1e-14)
    np.testing.assert_allclose(Affine(matrix).velocity(Tokens(x)).numpy(), got - offset, rtol=0, atol=1e-14)


def test_feedforward_refuses_what_does_not_fit() -> None:
    w1, w2 = np.ones((5, 3)), np.ones((3, 5))
    with pytest.raises(InputError, match=r"activation 'swish' is not known; the activations are relu, gelu"):
        MLP(w1, None, w2, activation="swish")
    with pytest.raises(InputError, match=r"w2 must be \(3, 5\) to go with w1 \(5, 3\), got \(5, 3\)"):
        MLP(w1, None, w1)
    with pytest.raises(InputError, match=r"b1 must be \(5,\)"):
        MLP(w1, np.ones(3), w2)
    with pytest.raises(InputError, match=r"w1 must be \(m, d\), got \(5,\)"):
        MLP(np.ones(5), None, w2)
    with pytest.raises(InputError, match=r"needs a \(d, d\) matrix and a \(d,\) offset, got \(2, 3\)"):
        Affine(np.ones((2, 3)))
    with pytest.raises(InputError, match=r"needs a \(d, d\) matrix and a \(d,\) offset, got \(3, 3\) and \(2,\)"):
        Affine(np.eye(3), [1.0, 2.0])
    with pytest.raises(InputError, match=r"needs a \(d, d\) matrix"):
        Affine(3.0)
    with pytest.raises(InputError, match="the matrix holds an infinite value at index"):
        Affine([[np.inf]])
