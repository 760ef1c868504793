"""Wide heads in few dimensions: every number is that of the wide head."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import attractor as at
from attractor.weights.factors import Products, factorize, reduce_law, reduce_products
from attractor.weights.quantities import NAMES, compute_quantities
from attractor.weights.spectra import forms

N, K, R, D = 3, 6, 5, 96


@pytest.fixture
def law() -> at.Attention:
    draw = np.random.default_rng(5)
    normal = lambda *shape: torch.from_numpy(draw.normal(size=shape))  # noqa: E731
    query = normal(N, K, D)
    key = 0.5 * query + normal(N, K, D)  # heads that attend to what is like them
    return at.Attention(query, key, normal(N, R, D), output=normal(N, D, R), scale=0.3, mask="causal")


def columns(law: at.Attention) -> dict[str, torch.Tensor]:
    (group,) = factorize(law)
    return compute_quantities(group.grams())


def test_numbers_do_not_change(law: at.Attention) -> None:
    small, wide = reduce_law(law), columns(law)
    assert small is not None
    assert (small.dim, small.rank, small.sizes) == (D, R, (K, R))
    for name, column in compute_quantities(small).items():
        torch.testing.assert_close(column, wide[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank", [3, 6, 9])
def test_every_form_is_that_of_the_wide_head(law: at.Attention, rank: int) -> None:
    """Heads whose values have fewer, as many or more rows than their keys."""
    draw = np.random.default_rng(6)
    value, output = (torch.from_numpy(draw.normal(size=shape)) for shape in ((N, rank, D), (N, D, rank)))
    law = dataclasses.replace(law, value=value, output=output)
    small, (factors,) = reduce_law(law), factorize(law)
    assert small is not None
    grams = factors.grams()
    for name in ("interaction", "metric", "reduced_interaction", "reduced_metric"):
        found, expected = (getattr(one, name) for one in (small, grams))
        for one, other in zip(forms(found, D - found.shape[-1]), forms(expected, D - expected.shape[-1]), strict=True):
            assert (one.inertia, one.sign) == (other.inertia, other.sign)
            for number in ("low", "high", "index", "asymmetry", "norm", "trace"):
                assert getattr(one, number) == pytest.approx(getattr(other, number), rel=1e-9, abs=1e-10)
    for one, other in zip(small.norms, grams.norms, strict=True):
        torch.testing.assert_close(one, other)
    left, right = small.triangles
    torch.testing.assert_close(left @ right.mT, small.interaction)


def test_shared_keys_and_values_are_multiplied_once(law: at.Attention) -> None:
    """Six heads in two groups against the same heads with keys and values repeated."""
    draw = np.random.default_rng(7)
    normal = lambda *shape: torch.from_numpy(draw.normal(size=shape))  # noqa: E731
    query, key, value, output = normal(6, K, D), normal(2, K, D), normal(2, R, D), normal(2, D, 3, R)
    found = reduce_products(Products.of(query, key, value, output), 0.3, D, range(6))
    assert found is not None
    repeated = at.Attention(
        query,
        key.repeat_interleave(3, 0),
        value.repeat_interleave(3, 0),
        output=output.transpose(1, 2).flatten(0, 1),
        scale=0.3,
    )
    wide = columns(repeated)
    for name, column in compute_quantities(found).items():
        torch.testing.assert_close(column, wide[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_float32_products_of_stored_weights_are_enough(law: at.Attention, stored: torch.dtype) -> None:
    names = ("query", "key", "value", "output")
    halves = {name: getattr(law, name).to(stored) for name in names}
    exact = dataclasses.replace(law, **{name: part.double() for name, part in halves.items()})
    single = dataclasses.replace(law, **{name: part.float() for name, part in halves.items()})
    small = reduce_law(single)
    assert small is not None
    wide, found = columns(exact), compute_quantities(small)
    for name in NAMES:
        torch.testing.assert_close(found[name].double(), wide[name], rtol=2e-5, atol=2e-5)


def test_nothing_is_compressed_where_digits_would_be_lost(law: at.Attention) -> None:
    dependent = dataclasses.replace(law, key=2.0 * law.query)
    assert reduce_law(dependent) is None
    narrow = at.Attention(*(part[..., :20] for part in (law.query, law.key, law.value)), output=law.output[:, :20])  # type: ignore[index]
    assert reduce_law(narrow) is None
    assert reduce_law(at.Attention.isotropic(dim=3, beta=1.0)) is None
