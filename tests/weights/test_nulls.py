"""Nulls: random heads without their dimension, mismatched heads against brute force, and how far a head is from both; predicted growth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor.weights.factors import Factors, factorize
from attractor.weights.layers import GrowthAccumulator, growth
from attractor.weights.null_models import compute_nulls, mismatched, random_factors, random_heads
from attractor.weights.quantities import NAMES, QUANTITIES, compute_quantities


def normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape))


def heads(rng: np.random.Generator, h: int = 4, d: int = 20, k: int = 3, r: int = 4, **options) -> at.Attention:
    parts = normal(rng, h, k, d), normal(rng, h, k, d), normal(rng, h, r, d)
    return at.Attention(*parts, output=normal(rng, h, d, r), scale=0.3, **options)


def own_columns(factors: Factors) -> dict[str, torch.Tensor]:
    return compute_quantities(factors.grams())


def test_columns_are_what_regime_says(rng: np.random.Generator) -> None:
    law = heads(rng)
    (factors,), rows = factorize(law), [head.row() for head in at.regime(law).heads]
    for name, column in own_columns(factors).items():
        assert column.tolist() == pytest.approx([row[name] for row in rows], rel=1e-10, abs=1e-12), name


@pytest.mark.theorem
def test_random_heads_need_no_tokens_space(rng: np.random.Generator) -> None:
    """Bartlett's factor of a Wishart matrix has the law of heads drawn in all their dimensions."""
    d, k, r, draws = 40, 4, 3, 1500
    parts = normal(rng, draws, k, d), normal(rng, draws, k, d), normal(rng, draws, r, d)
    (full,) = factorize(at.Attention(*parts, output=normal(rng, draws, d, r)))
    small = random_factors(d, k, r, draws, rng)
    assert small.dim == 2 * k + 2 * r < d
    for name, column in own_columns(small).items():
        other = own_columns(full)[name]
        error = float((column.var() / draws + other.var() / draws).sqrt())
        assert float(column.mean()) == pytest.approx(float(other.mean()), abs=4.5 * error), name
        assert float(column.std()) == pytest.approx(float(other.std()), rel=0.15), name


def test_draws_are_scaled_to_a_head(rng: np.random.Generator) -> None:
    """Scaling a draw of norm one is the same as measuring the scaled head."""
    d, k, r, (w, v) = 30, 3, 4, (2.5, 0.7)
    drawn = random_heads(d, k, r, 8, 3)
    factors = random_factors(d, k, r, 8, np.random.default_rng((3, d, k, r)))
    sizes = (
        torch.linalg.vector_norm(part, dim=(-2, -1))[:, None, None]
        for part in (factors.grams().interaction, factors.value)
    )
    query, value = (
        part * wanted / size for part, wanted, size in zip((factors.query, factors.value), (w, v), sizes, strict=True)
    )
    brute = compute_quantities(Factors(query, factors.key, value, factors.output).grams())
    norms = (torch.tensor([[w], [9.0]], dtype=torch.float64), torch.tensor([[v], [5.0]], dtype=torch.float64))
    for name, column in drawn.rescale(*norms).items():
        torch.testing.assert_close(column[0], brute[name], rtol=1e-9, atol=1e-12, msg=name)


def test_draws_of_narrow_heads_need_only_inner_products() -> None:
    """The same draws through factors: d is so large that inner products are used."""
    d, k, r = 64, 4, 3
    drawn = random_heads(d, k, r, 8, 3)
    grams = random_factors(d, k, r, 8, np.random.default_rng((3, d, k, r))).grams()
    brute, norms = compute_quantities(grams), [norm.tolist() for norm in grams.norms]
    for head, (w, v) in enumerate(zip(*norms, strict=True)):
        scaled = drawn.rescale(torch.tensor([[w]], dtype=torch.float64), torch.tensor([[v]], dtype=torch.float64))
        for name in NAMES:
            assert float(scaled[name][0, head]) == pytest.approx(float(brute[name][head]), rel=1e-8, abs=1e-10), name


def test_a_random_head_is_no_exception(rng: np.random.Generator) -> None:
    """Deviations of random heads are as large as those of a normal variable: half of them below 0.67."""
    (factors,) = factorize(heads(rng, h=200, d=48, k=6, r=6))
    rows = compute_nulls(factors, own_columns(factors), draws=200, shifts=4)
    for quantity in QUANTITIES:
        if quantity.name == "growing":  # a count of few directions, which few mismatched heads may all share
            continue
        for kind in ("random", "mismatched"):
            away = np.array([getattr(row[quantity.name], kind).deviations for row in rows])
            assert abs(away.mean()) < 0.4, quantity.name
            assert np.median(abs(away)) < 1.0, quantity.name
            assert np.sqrt((away**2).mean()) > 0.7, quantity.name


def test_a_head_that_learnt_is_far_from_random(rng: np.random.Generator) -> None:
    law = heads(rng, h=6, d=48, k=6, r=6)
    learnt = at.Attention(law.query, law.query, law.value, output=law.value.mT, scale=0.3)
    (factors,) = factorize(learnt)
    row = compute_nulls(factors, own_columns(factors))[2]
    assert row["interaction_index"].random.deviations > 8
    assert row["value_lowest"].random.deviations > 2
    assert row["interaction_index"].mismatched.deviations is None  # every head of this layer has index one
    assert row["reduced_metric_asymmetry"].mismatched is not None


def test_mismatched_heads_against_brute_force(rng: np.random.Generator) -> None:
    law, h = heads(rng), 4
    (factors,) = factorize(law)
    own = own_columns(factors)
    found = mismatched(factors, own)
    for head in range(h):
        pairs = [(head, other) for other in range(h) if other != head] + [
            (other, head) for other in range(h) if other != head
        ]
        brute = [at.regime(mixed(law, *pair)).heads[0].row() for pair in pairs]
        for quantity in QUANTITIES:
            if quantity.half == "both":
                expected = [row[quantity.name] for row in brute]
            else:
                expected = [float(own[quantity.name][other]) for other in range(h) if other != head]
            assert sorted(found[quantity.name][head].tolist()) == pytest.approx(sorted(expected), abs=1e-10), (
                quantity.name
            )


def mixed(law: at.Attention, scores: int, moves: int) -> at.Attention:
    assert law.output is not None
    return at.Attention(law.query[scores], law.key[scores], law.value[moves], output=law.output[moves], scale=law.scale)


def test_nulls_do_not_depend_on_gauge(rng: np.random.Generator) -> None:
    law = heads(rng)
    assert law.output is not None
    turn = torch.eye(3, dtype=torch.float64) + 0.3 * normal(rng, 4, 3, 3)
    changed = at.Attention(
        turn @ law.query, torch.linalg.inv(turn).mT @ law.key, 5.0 * law.value, output=law.output / 5.0, scale=0.3
    )
    rows = []
    for one in (law, changed):
        (factors,) = factorize(one)
        rows.append(compute_nulls(factors, own_columns(factors)))
    for before, after in zip(*rows, strict=True):
        for name in NAMES:
            for kind in ("random", "mismatched"):
                one, other = getattr(before[name], kind), getattr(after[name], kind)
                assert (other.mean, other.spread) == pytest.approx((one.mean, one.spread), rel=1e-8, abs=1e-10)


def test_growth_is_the_mean_square_of_random_tokens(rng: np.random.Generator) -> None:
    law = heads(rng, h=3, d=24, value_bias=normal(rng, 3, 4), output_bias=normal(rng, 24))
    law = at.Attention(**{**vars(law), "value": 0.05 * law.value})
    found = growth(law)
    x = normal(rng, 100_000, 24)
    assert law.output is not None and law.value_bias is not None and law.output_bias is not None  # noqa: PT018
    drift = torch.einsum("hdr,hr->d", law.output, law.value_bias) + law.output_bias
    moved = x + x @ law.value_map.sum(0).mT + drift
    assert found.consensus == pytest.approx(float(moved.square().mean().sqrt()), rel=5e-3)
    assert found.written == pytest.approx(float((moved - x).square().mean().sqrt()), rel=5e-3)
    assert found.drift == pytest.approx(float(drift.square().mean().sqrt()), rel=1e-10)
    assert (found.diffuse, found.estimated) == (pytest.approx((1 + found.drift**2) ** 0.5), False)


def test_growth_of_wide_layers_is_estimated(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    law = heads(rng, h=4, d=96, k=4, r=16)
    exact = growth(law)
    monkeypatch.setattr("attractor.weights.layers.EXACT", 8)
    assert law.output is not None
    halves = [
        at.Attention(law.query[part], law.key[part], law.value[part], output=law.output[part])
        for part in (slice(0, 1), slice(1, 4))
    ]
    growing = GrowthAccumulator(law.dim)
    for half in halves:
        growing.add(half)
    probed = growing.result()
    assert probed.estimated
    assert probed.consensus == pytest.approx(exact.consensus, rel=0.1)
