"""Wide heads in few dimensions: every number is that of the wide head."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import attractor as at
from attractor.theory.weights.compression import compressed
from attractor.theory.weights.heads import factors_of
from attractor.theory.weights.quantities import NAMES, measured

N, K, R, D = 3, 6, 5, 96


@pytest.fixture
def law() -> at.Attention:
    draw = np.random.default_rng(5)
    normal = lambda *shape: torch.from_numpy(draw.normal(size=shape))  # noqa: E731
    query = normal(N, K, D)
    key = 0.5 * query + normal(N, K, D)  # heads that attend to what is like them
    return at.Attention(query, key, normal(N, R, D), output=normal(N, D, R), scale=0.3, mask="causal")


def columns(factors: list) -> dict[str, torch.Tensor]:
    (group,) = factors
    assert group.dim == D
    return measured(group.grams())


def test_numbers_do_not_change(law: at.Attention) -> None:
    small = compressed(law)
    assert small is not None
    assert small[0].query.shape[-1] == 2 * K + 2 * R < D
    wide = columns(factors_of(law))
    for name, column in columns(small).items():
        torch.testing.assert_close(column, wide[name], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_float32_products_of_stored_weights_are_enough(law: at.Attention, stored: torch.dtype) -> None:
    names = ("query", "key", "value", "output")
    halves = {name: getattr(law, name).to(stored) for name in names}
    exact = dataclasses.replace(law, **{name: part.double() for name, part in halves.items()})
    single = dataclasses.replace(law, **{name: part.float() for name, part in halves.items()})
    small = compressed(single)
    assert small is not None
    wide, found = columns(factors_of(exact)), columns(small)
    for name in NAMES:
        torch.testing.assert_close(found[name], wide[name], rtol=2e-5, atol=2e-5)


def test_nothing_is_compressed_where_digits_would_be_lost(law: at.Attention) -> None:
    dependent = dataclasses.replace(law, key=2.0 * law.query)
    assert compressed(dependent) is None
    narrow = at.Attention(*(part[..., :20] for part in (law.query, law.key, law.value)), output=law.output[:, :20])  # type: ignore[index]
    assert compressed(narrow) is None
    assert compressed(at.Attention.isotropic(dim=3, beta=1.0)) is None
