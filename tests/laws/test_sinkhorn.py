"""Sinkhorn attention is the entropic coupling of the measure with itself."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from attractor.errors import AttractorError, InputError
from attractor.laws import Attention, Sinkhorn
from attractor.laws.kernels import sinkhorn
from attractor.states import Tokens

MASSES = {
    "uniform": None,
    "random": np.random.default_rng(3).random(8) + 0.05,
    "small and large": np.array([1e-3, 4.0, 1.0, 1.0, 1e-2, 2.0, 0.5, 0.5]),
}


def law(kernel: Sinkhorn, symmetric: bool, seed: int = 0, dim: int = 3) -> Attention:
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((dim, dim))
    key = query if symmetric else rng.standard_normal((dim, dim))
    return Attention(query, key, rng.standard_normal((dim, dim)), kernel=kernel)


def cost(attention: Attention, points: np.ndarray) -> np.ndarray:
    """-<Q x_i, K x_j>."""
    return -(points @ attention.query.numpy().T) @ (points @ attention.key.numpy().T).T


@pytest.mark.theorem
@pytest.mark.parametrize("symmetric", [False, True], ids=["general", "symmetric"])
@pytest.mark.parametrize("masses", MASSES)
@pytest.mark.parametrize("eps", [0.8, 1.5, 10.0])
def test_weights_are_the_optimal_coupling(eps: float, masses: str, symmetric: bool) -> None:
    """w_ij = pi_ij / m_i with pi the optimum of <-s, pi> + eps KL: against POT, and against plain matrix scaling."""
    points = np.random.default_rng(1).standard_normal((8, 3))
    attention = law(Sinkhorn(eps), symmetric)
    marginal = np.full(8, 1 / 8) if MASSES[masses] is None else MASSES[masses]
    assert marginal is not None
    marginal = marginal / marginal.sum()
    got = attention.weights(Tokens(points, masses=marginal))[0].numpy()
    plan = ot.sinkhorn(
        marginal, marginal, cost(attention, points), reg=eps, method="sinkhorn_log", stopThr=1e-14, numItermax=50_000
    )
    np.testing.assert_allclose(got, plan / marginal[:, None], rtol=0, atol=1e-10)
    scaled = oracles.density(-cost(attention, points), marginal, eps) * marginal
    np.testing.assert_allclose(got, scaled, rtol=0, atol=1e-12)


@pytest.mark.theorem
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    eps=st.sampled_from([3.0, 7.0]),
    symmetric=st.booleans(),
    weighted=st.booleans(),
)
def test_both_marginals_are_the_masses(seed: int, n: int, eps: float, symmetric: bool, weighted: bool) -> None:
    rng = np.random.default_rng(seed)
    masses = rng.random(n) + 0.1 if weighted else None
    tokens = Tokens(0.7 * rng.standard_normal((n, 3)), masses=masses)
    weights = law(Sinkhorn(eps), symmetric, seed).weights(tokens)[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(tokens.weights @ weights, tokens.weights, rtol=1e-12, atol=0)


@pytest.mark.theorem
@pytest.mark.parametrize("symmetric", [False, True], ids=["general", "symmetric"])
@pytest.mark.parametrize("masses", MASSES)
def test_the_mean_moves_by_the_value_alone(masses: str, symmetric: bool) -> None:
    """sum_i m_i v_i = V sum_i m_i x_i exactly, at any finite number of tokens (mean field T10)."""
    attention = law(Sinkhorn(0.8), symmetric)
    tokens = Tokens(np.random.default_rng(2).standard_normal((8, 3)), masses=MASSES[masses])
    share = tokens.weights / tokens.weights.sum()
    torch.testing.assert_close(
        share @ attention.velocity(tokens), (share @ tokens.points) @ attention.value.mT, rtol=0, atol=1e-12
    )


@pytest.mark.theorem
@pytest.mark.parametrize("symmetric", [False, True], ids=["general", "symmetric"])
def test_marginals_are_exact_where_potentials_are_large(symmetric: bool) -> None:
    """The tolerance bounds the relative error of the marginals, not that of potentials of size 10."""
    rng = np.random.default_rng(13)
    tokens = Tokens(0.7 * rng.standard_normal((8, 3)))
    weights = law(Sinkhorn(0.5), symmetric, seed=13).weights(tokens)[0]
    torch.testing.assert_close(weights.sum(0), torch.ones(8, dtype=torch.float64), rtol=0, atol=2.5e-13)


def test_total_mass_does_not_matter() -> None:
    """Masses are both marginals up to a factor: doubling them all changes no weight."""
    points = np.random.default_rng(4).standard_normal((8, 3))
    masses = MASSES["random"]
    assert masses is not None
    for symmetric in (False, True):
        attention = law(Sinkhorn(1.2), symmetric)
        one, other = (attention.velocity(Tokens(points, masses=factor * masses)) for factor in (1.0, 5.0))
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_common_term_of_queries_or_keys_changes_nothing() -> None:
    """Adding f(x_i) + g(x_j) to the score leaves the coupling: here through biases of query and key."""
    points = np.random.default_rng(5).standard_normal((7, 3))
    plain = law(Sinkhorn(2.0), False)
    biased = Attention(
        plain.query,
        plain.key,
        plain.value,
        kernel=Sinkhorn(2.0),
        query_bias=[0.3, -1.0, 0.4],
        key_bias=[1.0, 0.2, -0.7],
    )
    torch.testing.assert_close(plain.velocity(Tokens(points)), biased.velocity(Tokens(points)), rtol=0, atol=1e-12)


def test_large_eps_averages_and_small_eps_matches() -> None:
    """eps -> inf: the plain mean; eps -> 0 with Q'K = I: the identity is the best matching."""
    tokens = Tokens(np.concatenate((np.eye(3), -np.eye(3))))
    flat = Attention.isotropic(3, 1.0, kernel=Sinkhorn(1e9)).weights(tokens)[0]
    torch.testing.assert_close(flat, torch.full_like(flat, 1 / 6), rtol=0, atol=1e-8)
    sharp = Attention.isotropic(3, 1.0, kernel=Sinkhorn(5e-3)).weights(tokens)[0]
    torch.testing.assert_close(sharp, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-6)


def test_single_precision_converges_to_its_own_floor() -> None:
    for symmetric in (False, True):
        attention = law(Sinkhorn(1.0), symmetric)
        points = np.random.default_rng(6).standard_normal((40, 3))
        single = attention.velocity(Tokens(points, dtype=torch.float32))
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), attention.velocity(Tokens(points)), rtol=0, atol=2e-4)


def test_a_law_that_learns_is_not_remembered_as_symmetric() -> None:
    """Shortcuts for symmetric scores and scalar values must not outlive an optimiser's step in place."""
    tokens = Tokens.uniform(6, 3, seed=2)
    parts = [torch.eye(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    learning = Attention(*parts, kernel=Sinkhorn(1.0))
    learning.velocity(tokens)
    with torch.no_grad():
        for seed, part in enumerate(parts):
            part.add_(torch.from_numpy(0.5 * np.random.default_rng(seed).standard_normal((3, 3))))
        fresh = Attention(*(part.detach().clone() for part in parts), kernel=Sinkhorn(1.0))
        torch.testing.assert_close(learning.velocity(tokens), fresh.velocity(tokens), rtol=0, atol=1e-12)


def test_a_mask_cuts_the_finished_coupling() -> None:
    """Hidden keys are dropped from the coupling of all tokens, then rows are renormalised."""
    points = np.random.default_rng(7).standard_normal((6, 3))
    whole = law(Sinkhorn(1.0), False)
    causal = Attention(whole.query, whole.key, whole.value, kernel=Sinkhorn(1.0), mask="causal")
    cut = whole.weights(Tokens(points))[0].tril()
    torch.testing.assert_close(causal.weights(Tokens(points))[0], cut / cut.sum(-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_eps_must_be_positive(eps: float) -> None:
    with pytest.raises(InputError, match=r"sinkhorn needs eps > 0, got"):
        Sinkhorn(eps)


def test_too_few_rounds_is_an_error_that_says_what_to_do() -> None:
    attention = law(Sinkhorn(eps=0.05, rounds=5), False)
    with pytest.raises(AttractorError, match=r"did not converge in 5 rounds .*raise eps \(now 0.05\) or rounds"):
        attention.velocity(Tokens(np.random.default_rng(8).standard_normal((9, 3))))


@pytest.mark.theorem
@pytest.mark.parametrize("spread", [20.0, 200.0, 600.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_far_above_eps_still_have_both_marginals(spread, weighted):
    """Alternating rounds alone would need about e^(spread/2) of them."""
    rng = np.random.default_rng(0)
    query, key, points = rng.standard_normal((3, 3)), rng.standard_normal((3, 3)), rng.standard_normal((7, 3))
    scores = points @ query.T @ key @ points.T
    law = Attention(query, key, np.eye(3), kernel=Sinkhorn(eps=float(np.ptp(scores)) / spread))
    masses = rng.dirichlet(np.ones(7)) if weighted else np.full(7, 1 / 7)
    weights = law.weights(Tokens(points, masses=masses))[0].numpy()
    np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-12)
    np.testing.assert_allclose(masses @ weights, masses, atol=1e-11)


def random_case(seed: int) -> tuple[Attention, Tokens, np.ndarray, np.ndarray]:
    """A random law and tokens, with the scores over eps and the masses: far tokens, clusters, small eps."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.choice([2, 5, 8, 13, 30])), int(rng.integers(1, 5))
    points = rng.standard_normal((n, d)) * 10 ** rng.uniform(-1, 0.5)
    kind = rng.integers(4)
    if kind == 1:
        points[rng.integers(n)] *= 10 ** rng.uniform(0.5, 1.5)
    elif kind == 2:
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    elif kind == 3:
        points = points[rng.integers(n, size=n)] + 1e-9 * rng.standard_normal(points.shape)
    query = rng.standard_normal((d, d))
    key = query if rng.random() < 0.5 else rng.standard_normal((d, d))
    eps = float(10 ** rng.uniform(-2.5, 0.5))
    masses = rng.dirichlet(np.full(n, rng.choice([1.0, 10.0]))) if rng.random() < 0.5 else np.full(n, 1 / n)
    attention = Attention(query, key, np.eye(d), kernel=Sinkhorn(eps))
    return attention, Tokens(points, masses=masses), -cost(attention, points) / eps, masses


@pytest.mark.theorem
@pytest.mark.parametrize("block", range(4))
def test_small_eps_far_tokens_and_clusters_have_both_marginals_and_the_form_of_a_coupling(block: int) -> None:
    """The marginals and the form a_i e^{s_ij} b_j determine the coupling; scores spread over up to 1e5 eps."""
    for seed in range(20 * block, 20 * block + 20):
        attention, tokens, scores, masses = random_case(seed)
        weights = attention.weights(tokens)[0].numpy()
        rounding = 2e-14 * max(1.0, np.abs(scores).max())
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=0, atol=1e-12)
        np.testing.assert_allclose(masses @ weights / masses, 1.0, rtol=0, atol=1e-12 + rounding)
        present = weights > 1e-250
        for i in range(1, tokens.n):  # log w_ij - log w_0j - s_ij + s_0j is the same for all j
            both = present[i] & present[0]
            ratio = np.log(weights[i][both]) - np.log(weights[0][both]) - scores[i][both] + scores[0][both]
            assert np.ptp(ratio) < 1e-10 + 10 * rounding if len(ratio) else True


@pytest.mark.theorem
@pytest.mark.parametrize("seed", range(12))
def test_the_plan_is_that_of_pot_where_eps_is_small(seed: int) -> None:
    """Against POT's rounds where they converge, and as eps tends to zero against its exact transport plan."""
    rng = np.random.default_rng(seed)
    points, query, key = rng.standard_normal((5, 2)), rng.standard_normal((2, 2)), rng.standard_normal((2, 2))
    masses = rng.dirichlet(np.full(5, 3.0))
    for share in (1 / 8, 1e-5):
        plain = Attention(query, key, np.eye(2))
        C = cost(plain, points)
        attention = Attention(query, key, np.eye(2), kernel=Sinkhorn(float(np.ptp(C)) * share))
        plan = masses[:, None] * attention.weights(Tokens(points, masses=masses))[0].numpy()
        if share > 0.01:
            options = {"method": "sinkhorn_log", "stopThr": 1e-12, "numItermax": 5000}
            wanted = ot.sinkhorn(masses, masses, C, reg=attention.kernel.eps, **options)
        else:
            wanted = ot.emd(masses, masses, C)
        np.testing.assert_allclose(plan, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("eps", [0.03, 0.3])
def test_newton_without_a_table_of_pairs_gives_the_same(eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, tokens = law(Sinkhorn(eps), False), Tokens.uniform(40, 3, seed=3, ensemble=2)
    wanted = attention.velocity(tokens)
    monkeypatch.setattr(sinkhorn, "LARGEST", 10)
    torch.testing.assert_close(attention.velocity(tokens), wanted, rtol=0, atol=1e-9)


def test_members_of_a_batch_are_solved_as_alone() -> None:
    attention = law(Sinkhorn(0.02), False)
    points = np.random.default_rng(0).standard_normal((5, 9, 3)) * np.array([0.1, 0.5, 1.0, 3.0, 5.0])[:, None, None]
    together = attention.velocity(Tokens(points))
    for k in range(5):
        torch.testing.assert_close(together[k], attention.velocity(Tokens(points[k])), rtol=0, atol=1e-9)


def test_the_number_of_passes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alternating rounds alone would need millions."""
    passes = []
    solve = sinkhorn._Newton.solve

    def counted(self: sinkhorn._Newton, wanted: float) -> object:
        before = self.left
        found = solve(self, wanted)
        passes.append(before - self.left)
        return found

    monkeypatch.setattr(sinkhorn._Newton, "solve", counted)
    for seed in range(40):
        attention, tokens, _, _ = random_case(seed)
        attention.velocity(tokens)
    assert len(passes) > 12
    assert np.median(passes) < 40
    assert max(passes) < 500


@pytest.mark.parametrize("eps", [0.02, 0.3, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_right_where_newton_solves(eps: float, weighted: bool) -> None:
    rng = np.random.default_rng(1)
    parts = [torch.from_numpy(rng.standard_normal((2, 2))).requires_grad_() for _ in range(2)]
    points = torch.from_numpy(rng.standard_normal((6, 2))).requires_grad_()
    masses = torch.from_numpy(rng.dirichlet(np.ones(6))) if weighted else None

    def move(query: torch.Tensor, key: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        attention = Attention(query, key, torch.eye(2, dtype=torch.float64), kernel=Sinkhorn(eps))
        return attention.velocity(Tokens(points, masses=masses))

    assert torch.autograd.gradcheck(move, (*parts, points), eps=1e-6, atol=1e-5, rtol=1e-4)


def test_gradients_exist_where_groups_exchange_nothing() -> None:
    """The equations of the potentials are singular to rounding there; the weights do not depend on the constants."""
    points = torch.tensor([[100.0, 0.0], [100.0, 1.0], [-100.0, 0.0], [-100.0, -1.0]], dtype=torch.float64)
    points.requires_grad_()
    moved = Attention.isotropic(2, 1.0, kernel=Sinkhorn(1.0)).velocity(Tokens(points))
    (gradient,) = torch.autograd.grad(moved.square().sum(), points)
    pair = points.detach()[:2].requires_grad_()
    alone = Attention.isotropic(2, 1.0, kernel=Sinkhorn(1.0)).velocity(Tokens(pair))
    (wanted,) = torch.autograd.grad(alone.square().sum(), pair)
    torch.testing.assert_close(gradient[:2], wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("factor", "dtype"), [(1e170, torch.float64), (1e160, torch.float64), (1e25, torch.float32)])
def test_scores_that_overflow_are_one_clear_error(factor: float, dtype: torch.dtype) -> None:
    for symmetric in (False, True):
        tokens = Tokens(factor * np.random.default_rng(0).standard_normal((6, 3)), dtype=dtype)
        with pytest.raises(AttractorError, match=r"sinkhorn .*(overflow|leaves no digit).*raise eps") as caught:
            law(Sinkhorn(1.0), symmetric).velocity(tokens)
        assert "\n" not in str(caught.value)


def test_float32_that_cannot_hold_the_weights_says_so() -> None:
    tokens = Tokens(1e3 * np.random.default_rng(0).standard_normal((6, 3)), dtype=torch.float32)
    with pytest.raises(AttractorError, match=r"leaves no digit of the weights.*float64"):
        law(Sinkhorn(1e-2), False).velocity(tokens)
    law(Sinkhorn(1e-2), False).velocity(Tokens(tokens.points.double()))


@pytest.mark.parametrize("mask", ["causal", "window:2", "matrix"])
def test_masks_of_visible_keys_of_vanishing_weight_give_finite_rows(mask: str) -> None:
    """Rows are renormalised over what is visible, however little weight the coupling has there."""
    points = 10.0 * np.random.default_rng(4).standard_normal((6, 3))
    given = np.roll(np.eye(6, dtype=bool), 1, axis=1) if mask == "matrix" else mask
    whole = law(Sinkhorn(0.1), True)
    cut = Attention(whole.query, whole.key, whole.value, kernel=Sinkhorn(0.1), mask=given)
    weights = cut.weights(Tokens(points))[0]
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)
