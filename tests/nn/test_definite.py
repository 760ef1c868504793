"""Regimes by construction: on weights that were trained, not only at the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.errors import InputError
from attractor.nn import DefiniteAttention

DIM, HEADS = 12, 3


def trained(
    regime: Any, rate: float = 0.05, dim: int = DIM, heads: int = HEADS, task: str = "turn", **options: Any
) -> DefiniteAttention:
    """A layer after 40 steps of Adam in float32, as people train: towards a rotation of its tokens, which no regime favours, or
    towards their negatives."""
    torch.manual_seed(3)
    layer = DefiniteAttention(dim, heads, regime, **options)
    optimiser = torch.optim.Adam(layer.parameters(), lr=rate)
    x = torch.randn(16, 10, dim)
    wanted = x.roll(1, -1) * torch.tensor([1.0, -1.0]).repeat(dim // 2) if task == "turn" else -x
    before = [parameter.detach().clone() for parameter in layer.parameters()]
    for _ in range(40):
        optimiser.zero_grad()
        (layer(x) - wanted).square().mean().backward()
        optimiser.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, layer.parameters(), strict=True))
    return layer


def eigenvalues(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh((matrix + matrix.mT) / 2)


def positive(matrix: Tensor) -> bool:
    """Positive definite, well above rounding."""
    found = eigenvalues(matrix)
    return float(found[0]) > 1e-8 * float(found[-1])


@pytest.mark.theorem
@pytest.mark.parametrize("metric", ["full", "diagonal"])
@pytest.mark.parametrize(("regime", "negative"), [("convergent", DIM), ("divergent", 0), ("intermediate", DIM // 2)])
def test_trained_weights_share_a_metric_of_the_chosen_inertia(regime: str, negative: int, metric: str) -> None:
    layer = trained(regime, metric=metric)
    law = layer.law()
    inverse = layer.inverse_metric(torch.float64).detach()
    torch.testing.assert_close(inverse, inverse.mT, rtol=0, atol=1e-15)
    assert int((torch.linalg.eigvalsh(inverse) < 0).sum()) == negative
    # one metric for all heads: O_h V_h = B W_h
    torch.testing.assert_close(law.value_map, inverse @ law.interaction, rtol=1e-12, atol=1e-12)
    assert positive(law.interaction.sum(0))
    # the skew part of the interaction is alive, so that symmetry was not needed
    assert float((law.interaction - law.interaction.mT).abs().max()) > 1e-3
    # Ostrowski and Schneider: the value map has as many unstable directions as the metric has positive ones
    unstable = int((torch.linalg.eigvals(law.value_map.sum(0)).real > 0).sum())
    assert unstable == DIM - negative


@pytest.mark.theorem
def test_trained_convergent_layer_collapses() -> None:
    """T0: distances in the metric never grow. T1: tokens tend to zero, which the flow takes long over: as t^(-1/2)."""
    for task, until in (("turn", 30.0), ("negate", 1000.0)):
        layer = trained("convergent", dim=4, heads=2, task=task)
        metric = -torch.linalg.inv(layer.inverse_metric(torch.float64).detach())
        start = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        saved = [0.0, *torch.logspace(-2, 0, 41, dtype=torch.float64).mul(until).tolist()]
        run = at.flow(layer.law(), at.Tokens(start), until=until, save=saved, rtol=1e-8, atol=1e-10)
        forms = form_of_pairs(run.points, metric)
        assert float((forms[1:] - forms[:-1]).max()) < 1e-6
        energies = torch.einsum("tid,de,tie->t", run.points, metric, run.points)
        assert float((energies[1:] - energies[:-1]).max()) < 1e-6
        if task == "negate":
            assert float(run.points[-1].norm()) < 0.1 * float(start.norm())


@pytest.mark.theorem
@pytest.mark.parametrize("regime", ["divergent", "intermediate"])
def test_trained_layer_diverges(regime: str) -> None:
    """T0: the form of every pair never shrinks. T3: a start with positive energy is unbounded."""
    layer = trained(regime)
    metric = torch.linalg.inv(layer.inverse_metric(torch.float64).detach())
    start = torch.randn(6, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    if regime == "intermediate":
        # towards the growing directions, so that the energy is positive
        growing = torch.linalg.eigh(metric)[1][:, DIM // 2 :]
        start = start @ growing @ growing.mT + 0.1 * start
    assert float(torch.einsum("id,de,ie->", start, metric, start)) > 0
    run = at.flow(layer.law(), at.Tokens(start), until=6.0, save=torch.linspace(0, 6, 31).tolist())
    forms = form_of_pairs(run.points, metric)
    assert float((forms[:-1] - forms[1:] - 1e-9 * forms[1:].abs()).max()) < 1e-9
    assert float(run.points[-1].norm()) > 10 * float(start.norm())


def form_of_pairs(points: Tensor, metric: Tensor) -> Tensor:
    difference = points[:, :, None] - points[:, None]
    return torch.einsum("tijd,de,tije->tij", difference, metric, difference)


@pytest.mark.theorem
def test_trained_causal_layer_is_stable_or_not_by_its_value() -> None:
    """T8: under a causal mask the spectrum of the value map decides, with rotary positions too."""
    start = torch.randn(5, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for regime, grows in (("convergent", False), ("divergent", True)):
        law = trained(regime, causal=True, positions="rotary").law()
        assert bool((torch.linalg.eigvals(law.value_map.sum(0)).real > 0).any()) is grows
        end = at.flow(law, at.Tokens(start), until=4.0).final.points[0].norm()
        assert (float(end) > 2 * float(start[0].norm())) is grows


def test_intermediate_share_is_a_choice() -> None:
    layer = DefiniteAttention(DIM, HEADS, "intermediate", negative=0.25)
    assert int((torch.linalg.eigvalsh(layer.inverse_metric().detach()) < 0).sum()) == 3


def test_signs_may_be_permuted() -> None:
    """The control of the experiments: the same inertia with other pivots negative."""
    signs = [1, -1] * (DIM // 2)
    layer = trained("intermediate", signs=signs)
    inverse = layer.inverse_metric(torch.float64).detach()
    assert int((torch.linalg.eigvalsh(inverse) < 0).sum()) == DIM // 2
    usual = DefiniteAttention(DIM, HEADS, "intermediate", metric="diagonal").inverse_metric().diagonal()
    other = DefiniteAttention(DIM, HEADS, "intermediate", metric="diagonal", signs=signs).inverse_metric().diagonal()
    assert sorted(usual.tolist()) == sorted(other.tolist())
    assert not torch.equal(usual, other)


@pytest.mark.theorem
@pytest.mark.parametrize(("regime", "label"), [("divergent", "polarising"), ("convergent", "escaping")])
def test_negative_interactions_are_the_other_column_of_the_phase_table(regime: str, label: str) -> None:
    layer = trained(regime, interaction="negative")
    assert positive(-layer.law().interaction.sum(0))
    assert at.regime(layer).label == label


def test_a_skew_metric_is_what_the_published_experiments_have() -> None:
    inverse = trained("convergent", skew="both").inverse_metric().detach()
    assert float((inverse - inverse.mT).abs().max()) > 1e-3
    assert float(eigenvalues(inverse).max()) < 0


def test_without_skew_interactions_are_symmetric() -> None:
    interaction = trained("divergent", skew=False).law().interaction
    torch.testing.assert_close(interaction, interaction.mT, rtol=0, atol=1e-14)


def test_relaxed_layer_keeps_definite_interactions_alone() -> None:
    torch.manual_seed(0)
    exact = DefiniteAttention(DIM, HEADS, "convergent")
    torch.manual_seed(0)
    relaxed = DefiniteAttention(DIM, HEADS, "convergent", relaxed=True)
    x = torch.randn(4, DIM)
    torch.testing.assert_close(relaxed(x), exact(x))
    law = trained("convergent", relaxed=True).law()
    assert positive(law.interaction.sum(0))
    with pytest.raises(at.AttractorError, match="relaxed layer has no metric"):
        relaxed.inverse_metric()


@pytest.mark.parametrize("solve", ["quotient", "product"])
def test_official_orientation_is_definite_in_the_wrong_product(solve: Any) -> None:
    """Wq Wk' is definite by construction; the form that tokens see, Wq' Wk, is not after training."""
    layer = trained("convergent", orientation="official", solve=solve)
    weights = layer.weights(torch.float64).detach()
    product = weights.q @ weights.k.mT
    assert float(eigenvalues(product).min()) > 0
    metric = product @ torch.linalg.inv(weights.v) if solve == "quotient" else product @ weights.v.mT
    assert float(eigenvalues(metric).max()) < 0
    assert float(eigenvalues(weights.q.mT @ weights.k).min()) < 0
    spectra = [torch.linalg.eigvals(matrix).real.sort().values for matrix in (product, weights.q.mT @ weights.k)]
    torch.testing.assert_close(*spectra, rtol=1e-6, atol=1e-6)


def test_official_orientation_starts_definite_in_token_space() -> None:
    """An orthogonal Wq makes the two products congruent: the defect shows only once training has begun."""
    weights = DefiniteAttention(DIM, HEADS, "convergent", orientation="official").weights().detach()
    assert float(eigenvalues(weights.q.mT @ weights.k).min()) > 0


@pytest.mark.parametrize("regime", ["convergent", "divergent", "intermediate"])
def test_regime_agrees(regime: str) -> None:
    """``at.regime`` finds the regime in the trained weights, with the theorem that proves it."""
    found = at.regime(trained(regime))
    assert found.label == regime
    assert found.certificate is not None
    assert found.layer is not None
    assert found.layer.residual < 1e-12


@pytest.mark.parametrize(("regime", "rate"), [("convergent", 0.3), ("divergent", 0.5), ("intermediate", 0.5)])
def test_regime_agrees_where_training_was_violent(regime: str, rate: float) -> None:
    """Steps so large that the metric has a condition number of up to ten million: it is still found, and shared by all heads."""
    found = at.regime(trained(regime, rate=rate, task="negate"))
    assert found.label == regime
    assert found.certificate is not None
    assert found.layer is not None
    assert found.layer.residual < 1e-11


@pytest.mark.parametrize("regime", ["convergent", "divergent", "intermediate"])
def test_regime_of_masked_and_turned_layers(regime: str) -> None:
    """Under a causal mask one growing direction is enough to diverge; with rotary positions no theorem speaks of full attention."""
    causal = at.regime(trained(regime, causal=True))
    assert causal.label == ("convergent" if regime == "convergent" else "divergent")
    # T8 and its converse, whatever turns queries and keys
    key = "regimes.T8" if regime == "convergent" else "regimes.T8.converse"
    assert at.regime(trained(regime, causal=True, positions="rotary")).certificate == causal.certificate == key
    assert at.regime(trained(regime, positions="rotary")).certificate is None


def test_a_pivot_never_loses_its_sign() -> None:
    layer = DefiniteAttention(4, 2, "convergent", metric="diagonal")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("pivots"):
                parameter.fill_(-200.0)
    assert float(layer.inverse_metric().detach().diagonal().max()) < 0
    diagonal = layer.metric_diagonal()
    assert diagonal is not None
    assert bool(diagonal.isfinite().all())


def test_weights_of_another_regime_are_refused_and_nothing_is_loaded() -> None:
    given = trained("divergent").state_dict()
    layer = DefiniteAttention(DIM, HEADS, "convergent")
    before = {name: part.clone() for name, part in layer.state_dict().items()}
    with pytest.raises(InputError, match="0 of 12 negative signs of the metric and this convergent layer has 12 of 12"):
        layer.load_state_dict(given)
    assert all(torch.equal(part, before[name]) for name, part in layer.state_dict().items())
    other = DefiniteAttention(DIM, HEADS, "intermediate", signs=[1, -1] * (DIM // 2))
    with pytest.raises(InputError, match="6 of 12 negative signs at other places"):
        torch.nn.Sequential(other).load_state_dict(
            torch.nn.Sequential(DefiniteAttention(DIM, HEADS, "intermediate")).state_dict()
        )
    with pytest.raises(InputError, match="negative signs of the interactions"):
        DefiniteAttention(DIM, HEADS, "divergent", interaction="negative").load_state_dict(given)
    same = DefiniteAttention(DIM, HEADS, "divergent").bfloat16()
    assert same.load_state_dict(given) == ([], [])


def test_official_orientation_starts_as_published() -> None:
    """At d = 192 the skew part of the interaction is 4.4 times the symmetric one, and the value has a spectral norm of about 6."""
    ratios, norms = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        layer = DefiniteAttention(192, 3, "convergent", orientation="official")
        interaction = layer.core.interaction().detach()  # type: ignore[operator]
        skew, symmetric = (interaction - interaction.mT) / 2, (interaction + interaction.mT) / 2
        ratios.append(float(skew.norm() / symmetric.norm()))
        norms.append(float(torch.linalg.matrix_norm(layer.weights().v.detach(), 2)))
    assert sum(ratios) / 3 == pytest.approx(4.4, abs=0.1)
    assert 5.0 < sum(norms) / 3 < 7.0
