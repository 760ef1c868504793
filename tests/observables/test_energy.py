"""Energies and partition functions against double sums, couplings and finite differences."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch

from attractor import engines
from attractor.errors import UnsupportedError
from attractor.laws import Attention
from attractor.laws.kernels import kernel as interaction
from attractor.laws.kernels.sigmoid import Sigmoid
from attractor.laws.kernels.sinkhorn import Sinkhorn
from attractor.observables import energy, energy_rate, partition
from attractor.spaces import Sphere
from attractor.states import Tokens

PAIR_ENERGY = {
    "softmax": lambda s: np.exp(s) / 2,
    "exponential": lambda s: np.exp(s) / 2,
    "sigmoid": lambda s: np.log1p(np.exp(s - 0.5)) / 2,
    "linear": lambda s: s**2 / 4,
}


def kernel(name: str) -> object:
    return Sigmoid(-0.5) if name == "sigmoid" else name


def law_of(rng: np.random.Generator, heads: int = 2, dim: int = 4, **options: object) -> Attention:
    query, key = rng.standard_normal((2, heads, 2, dim))
    return Attention(query, key, rng.standard_normal((heads, dim, dim)), scale=0.7, **options)


def scores(law: Attention, x: np.ndarray) -> np.ndarray:
    return law.scale * np.einsum("ia,hab,jb->hij", x, law.interaction.numpy(), x)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", PAIR_ENERGY)
def test_against_the_double_sum(
    rng: np.random.Generator, name: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = law_of(rng, kernel=kernel(name), mask="causal" if masked else None)
    x, masses = rng.standard_normal((6, 4)), rng.random(6)
    pairs = PAIR_ENERGY[name](scores(law, x)) * (np.tril(np.ones((6, 6))) if masked else 1.0)
    wanted = np.einsum("i,j,hij->", masses, masses, pairs)
    tokens = Tokens(x, masses)
    assert float(energy(tokens, law)) == pytest.approx(wanted, rel=1e-13)
    assert float(energy(tokens, law, log=True)) == pytest.approx(math.log(wanted), rel=1e-13)
    assert float(energy(tokens, law, total=True)) == pytest.approx(pairs.sum(), rel=1e-13)
    assert float(energy(Tokens(x), law)) == pytest.approx(pairs.sum() / 36, rel=1e-13)
    monkeypatch.setattr(interaction, "PAIRS", 10)
    assert float(energy(tokens, law)) == pytest.approx(wanted, rel=1e-13)


def test_engines_agree(rng: np.random.Generator, engine: str) -> None:
    law, tokens = law_of(rng), Tokens(rng.standard_normal((2, 300, 4)))
    chosen = energy(tokens, law), energy_rate(tokens, law), partition(tokens, law)
    with engines.using(engine):
        for value, wanted in zip(
            (energy(tokens, law), energy_rate(tokens, law), partition(tokens, law)), chosen, strict=True
        ):
            torch.testing.assert_close(value, wanted, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("eps", [0.5, 2.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_sinkhorn_against_the_primal_problem(rng: np.random.Generator, weighted: bool, eps: float) -> None:
    """POT finds the coupling; the energy is half of <s, pi> - eps KL(pi | mu x mu)."""
    law = law_of(rng, kernel=Sinkhorn(eps))
    x, masses = rng.standard_normal((5, 4)) / 2, rng.random(5) + 0.1 if weighted else np.ones(5)
    masses = masses / masses.sum()
    wanted = 0.0
    for head in scores(law, x):
        coupling = ot.sinkhorn(masses, masses, -head, eps, stopThr=1e-15, numItermax=100_000, method="sinkhorn_log")
        wanted += ((coupling * head).sum() - eps * (coupling * np.log(coupling / np.outer(masses, masses))).sum()) / 2
    assert float(energy(Tokens(x, masses), law)) == pytest.approx(wanted, rel=1e-10)


def test_sinkhorn_of_a_sampled_gaussian() -> None:
    """Meanfield T11c: 1/2 sum psi(s_i) for the normal law; here one dimension and a fine quadrature."""
    sigma, a = 0.8, 0.9
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    tokens = Tokens(np.sqrt(sigma) * nodes[:, None], weights / weights.sum())
    s = sigma * a
    root = math.sqrt(1 + 4 * s**2)
    psi = (root - 1 - math.log((1 + root) / 2)) / 2
    assert float(energy(tokens, Attention.isotropic(1, a, kernel="sinkhorn"))) == pytest.approx(psi / 2, rel=1e-9)


def test_no_overflow_in_the_logarithm() -> None:
    law = Attention.isotropic(3, 1e4)
    together = Tokens([[1.0, 0.0, 0.0]] * 4)
    assert float(energy(together, law, log=True)) == pytest.approx(1e4 - math.log(2), rel=1e-14)
    assert float(energy(together, law)) == math.inf
    np.testing.assert_allclose(partition(together, law, log=True).numpy(), 1e4, rtol=1e-14)


def test_at_consensus_on_the_sphere_the_energy_is_known() -> None:
    """consensus.md, T1: T^2/2 exp(x'Px) with every token at x."""
    law, together = Attention.isotropic(3, 2.0), Tokens([[0.0, 0.6, 0.8]] * 7)
    assert float(energy(together, law, total=True)) == pytest.approx(49 / 2 * math.exp(2.0), rel=1e-14)
    assert abs(float(energy_rate(together, law, Sphere(), total=True))) < 1e-11


def test_partition(rng: np.random.Generator) -> None:
    law, x, masses = law_of(rng), rng.standard_normal((2, 6, 4)), rng.random(6)
    for member in range(2):
        terms = np.exp(scores(law, x[member]))
        np.testing.assert_allclose(partition(Tokens(x, masses), law)[member].numpy(), terms @ masses, rtol=1e-13)
        np.testing.assert_allclose(
            partition(Tokens(x, masses), law, total=True)[member].numpy(), terms.sum(-1), rtol=1e-13
        )
        logs = partition(Tokens(x, masses), law, log=True)[member]
        np.testing.assert_allclose(logs.numpy(), np.log(terms @ masses), rtol=1e-12, atol=1e-13)


def test_what_has_no_energy_says_why() -> None:
    tokens = Tokens.uniform(4, 3)
    l2, sinkhorn = (Attention.isotropic(3, 1.0, kernel=name) for name in ("l2", "sinkhorn"))
    for function in (energy, energy_rate):
        with pytest.raises(UnsupportedError, match="l2 kernel"):
            function(tokens, l2)
        with pytest.raises(UnsupportedError, match="total"):
            function(tokens, sinkhorn, total=True)
        with pytest.raises(UnsupportedError, match="negative"):
            function(tokens, sinkhorn, log=True)
    with pytest.raises(UnsupportedError, match="under a mask"):
        energy(tokens, Attention.isotropic(3, 1.0, kernel="sinkhorn", mask="causal"))
    for law in (l2, sinkhorn):
        with pytest.raises(UnsupportedError, match="partition"):
            partition(tokens, law)


@pytest.mark.parametrize("name", [*PAIR_ENERGY, "sinkhorn"])
def test_gradient(rng: np.random.Generator, name: str) -> None:
    law = law_of(rng, kernel=kernel(name))
    points = torch.tensor(rng.standard_normal((4, 4)) / 2, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: energy(Tokens.unchecked(x), law), (points,), rtol=1e-5)
