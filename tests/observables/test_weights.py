"""Entropy and self-weight against the weights themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attractor.errors import UnsupportedError
from attractor.laws import Affine, Attention, Kernel, Rotary
from attractor.laws.kernels.hardmax import Hardmax
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.observables import attention_entropy, energy, energy_rate, leaders, partition, self_weight, tilt
from attractor.observables import weights as weight_observables
from attractor.states import Tokens

KERNELS = ["softmax", "l2", Sinkhorn(0.7), Sigmoid(-1.0), "exponential"]


def heads(rng: np.random.Generator, **options: object) -> Attention:
    query, key = rng.standard_normal((2, 3, 2, 4))
    return Attention(query, key, rng.standard_normal((3, 4, 4)), **options)


@pytest.mark.parametrize("mask", [None, "causal", "window:3"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_against_the_weights(rng: np.random.Generator, kernel: object, mask: str | None) -> None:
    law = heads(rng, kernel=kernel, mask=mask, positions=Rotary())
    masses = rng.random(6)
    tokens = Tokens(rng.standard_normal((2, 6, 4)) / 2, masses)
    table = law.weights(tokens).numpy()
    rows = table / table.sum(-1, keepdims=True)
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(-1)
    np.testing.assert_allclose(attention_entropy(tokens, law).numpy(), entropy @ masses / masses.sum(), rtol=1e-12)
    diagonal = np.diagonal(table, axis1=-2, axis2=-1)
    np.testing.assert_allclose(self_weight(tokens, law).numpy(), diagonal @ masses / masses.sum(), rtol=1e-12)


@pytest.mark.parametrize("pairs", [1, 40, 300])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("kernel", ["softmax", Sigmoid(-1.0)], ids=str)
def test_large_tables_come_in_pieces(
    rng: np.random.Generator, kernel: object, mask: str | None, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = heads(rng, kernel=kernel, mask=mask)
    tokens = Tokens(rng.standard_normal((3, 2, 8, 4)), rng.random((3, 2, 8)), np.tile(np.arange(8), (3, 2, 1)))
    whole = attention_entropy(tokens, law)
    monkeypatch.setattr(weight_observables, "PAIRS", pairs)
    torch.testing.assert_close(attention_entropy(tokens, law), whole, rtol=1e-13, atol=1e-15)


def test_a_kernel_of_which_only_the_weights_are_known(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    law, tokens = heads(rng), Tokens(rng.standard_normal((6, 4)))
    known = attention_entropy(tokens, law)
    monkeypatch.setattr(type(law.kernel), "logits", Kernel.logits)
    torch.testing.assert_close(attention_entropy(tokens, law), known, rtol=1e-12, atol=1e-14)


def test_members_with_their_own_parameters(rng: np.random.Generator) -> None:
    query, key, value = rng.standard_normal((3, 2, 1, 4, 4))
    law = Attention(query, key, value)
    run = Tokens(rng.standard_normal((3, 2, 5, 4)))
    for function in (attention_entropy, self_weight, energy, energy_rate, partition):
        together = function(run, law)
        for member in range(2):
            alone = Attention(query[member], key[member], value[member])
            torch.testing.assert_close(together[:, member], function(Tokens(run.points[:, member]), alone))


def test_limits() -> None:
    tokens = Tokens.uniform(7, 3)
    flat, sharp = Attention.isotropic(3, 0.0), Attention.isotropic(3, 1e6)
    assert float(attention_entropy(tokens, flat)) == pytest.approx(math.log(7), rel=1e-14)
    assert float(self_weight(tokens, flat)) == pytest.approx(1 / 7, rel=1e-14)
    assert float(attention_entropy(tokens, sharp)) == pytest.approx(0.0, abs=1e-15)
    assert float(self_weight(tokens, sharp)) == 1.0
    unnormalised = Attention.isotropic(3, 1e6, kernel="exponential")
    assert float(attention_entropy(tokens, unnormalised)) == pytest.approx(0.0, abs=1e-15)


def test_a_causal_row_of_equal_scores_has_the_entropy_of_its_length() -> None:
    law = Attention.isotropic(3, 0.0, mask="causal")
    wanted = sum(math.log(i) for i in range(1, 6)) / 5
    assert float(attention_entropy(Tokens.uniform(5, 3), law)) == pytest.approx(wanted, rel=1e-14)


def test_linear_weights_have_no_entropy() -> None:
    law = Attention.isotropic(3, 1.0, kernel="linear")
    with pytest.raises(UnsupportedError, match="both signs"):
        attention_entropy(Tokens.uniform(4, 3), law)
    assert float(self_weight(Tokens.uniform(4, 3), law)) == pytest.approx(1 / 4, rel=1e-14)


def test_gradient(rng: np.random.Generator) -> None:
    law = heads(rng)
    points = torch.tensor(rng.standard_normal((4, 4)), requires_grad=True)
    for function in (attention_entropy, self_weight):
        assert torch.autograd.gradcheck(lambda x, f=function: f(Tokens.unchecked(x), law), (points,))


def test_tilt_of_scores_that_overflow_is_infinite() -> None:
    """Products of weights beyond the largest float, which a singular value decomposition does not take."""
    query = 1e200 * np.eye(2)
    tokens = Tokens(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    assert float(tilt(tokens, Attention(query, query, np.eye(2)))) == np.inf


def test_leaders(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points that see themselves with the largest score, by a loop over tokens; copies of a point count once."""
    law = heads(rng)
    x = rng.standard_normal((30, 4))
    x[[7, 21]] = x[2]
    masses = np.where(np.arange(30) == 5, 0.0, 1.0)
    tokens = Tokens(x, masses)
    for h in range(3):
        P = law.query[h].numpy().T @ law.key[h].numpy()
        wanted = [
            masses[i] > 0
            and all(
                x[i] @ P @ x[i] > x[i] @ P @ x[j] for j in range(30) if j != i and masses[j] and (x[i] != x[j]).any()
            )
            for i in range(30)
        ]
        assert leaders(tokens, law, each=True)[h].tolist() == wanted
        assert int(leaders(tokens, law)[h]) == sum(wanted) - 2 * wanted[2]
    whole = leaders(tokens, law, each=True), leaders(tokens, law)
    monkeypatch.setattr(weight_observables, "PAIRS", 50)
    assert torch.equal(leaders(tokens, law, each=True), whole[0])
    assert torch.equal(leaders(tokens, law), whole[1])
    plain = Attention.isotropic(4, 2.0, kernel="hardmax")
    longest = int(Tokens(x[:20]).points.norm(dim=-1).argmax())
    assert bool(leaders(Tokens(x[:20]), plain, each=True)[0, longest])
    assert torch.equal(leaders(Tokens(x), plain + Affine(-np.eye(4))), leaders(Tokens(x), plain))
    assert int(leaders(Tokens(x), Attention.isotropic(4, 2.0, kernel=Hardmax(exclude_self=True)))) == 0
    with pytest.raises(UnsupportedError, match="distances instead"):
        leaders(Tokens(x), Attention.isotropic(4, 2.0, kernel="l2"))
