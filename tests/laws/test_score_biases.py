"""Positions that add to scores, capped scores, normalised queries and keys, latent attention: against plain formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.laws import Feature, Visible

N, D, H, K = 9, 6, 3, 4


@pytest.fixture
def law(rng: np.random.Generator) -> at.Attention:
    draw = rng.standard_normal
    return at.Attention(draw((H, K, D)), draw((H, K, D)), draw((H, D, D)), scale=0.7)


@pytest.fixture
def x(rng: np.random.Generator) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal((N, D)))


def scores(law: at.Attention, x: torch.Tensor) -> torch.Tensor:
    return law.scale * torch.einsum("hkd,id,hke,je->hij", law.query, x, law.key, x)


def moved(law: at.Attention, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.einsum("hij,hde,je->id", weights, law.value, x)


def with_positions(law: at.Attention, positions: object, **options: object) -> at.Attention:
    return at.Attention(law.query, law.key, law.value, scale=law.scale, positions=positions, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kernel", ["softmax", "exponential"])
@pytest.mark.parametrize("places", [None, [0.0, 1.0, 5.0, 6.0, 2.0, 9.0, 3.0, 4.0, 8.0]])
def test_alibi_penalises_distance(law: at.Attention, x: torch.Tensor, places: list[float] | None, kernel: str) -> None:
    slopes = torch.tensor([0.5, 0.25, 0.1], dtype=torch.float64)
    tokens = at.Tokens(x, positions=places)
    p = torch.arange(N, dtype=torch.float64) if places is None else torch.tensor(places, dtype=torch.float64)
    s = scores(law, x) + slopes[:, None, None] * (p[None, :] - p[:, None])
    w = s.softmax(-1) if kernel == "softmax" else s.exp() / N
    found = at.velocity(with_positions(law, at.Alibi(slopes), kernel=kernel), tokens)
    torch.testing.assert_close(found, moved(law, w, x), rtol=1e-12, atol=1e-12)


def test_usual_slopes_are_those_of_the_paper() -> None:
    eight = [2.0**-i for i in range(1, 9)]
    np.testing.assert_allclose(at.Alibi.usual(8).slopes, eight)
    np.testing.assert_allclose(at.Alibi.usual(12).slopes, [*eight, *(2.0 ** (-0.5 - i) for i in range(4))])


@pytest.mark.parametrize("both_sides", [True, False])
def test_relative_bias_is_added_to_scores(
    law: at.Attention, x: torch.Tensor, both_sides: bool, rng: np.random.Generator
) -> None:
    table = torch.from_numpy(rng.standard_normal((8, H)))
    relative = at.Relative(table, reach=16, both_sides=both_sides)
    bias = torch.empty(H, N, N, dtype=torch.float64)
    for i in range(N):
        for j in range(N):
            bias[:, i, j] = table[bucket(j - i, 8, 16, both_sides)]
    tokens = at.Tokens(x)
    found = at.velocity(with_positions(law, relative), tokens)
    torch.testing.assert_close(found, moved(law, (scores(law, x) + bias).softmax(-1), x), rtol=1e-12, atol=1e-12)
    one = at.Attention(law.query[1], law.key[1], law.value[1], scale=law.scale, positions=relative.head(1))
    single = ((scores(law, x) + bias).softmax(-1)[1] @ x) @ law.value[1].mT
    torch.testing.assert_close(at.velocity(one, tokens), single, rtol=1e-12, atol=1e-12)


def bucket(ahead: int, count: int, reach: int, both_sides: bool) -> int:
    first = 0
    if both_sides:
        count //= 2
        first, ahead = (count if ahead > 0 else 0), abs(ahead)
    else:
        ahead = max(-ahead, 0)
    if ahead < count // 2:
        return first + ahead
    wide = count // 2 + int(math.log(ahead / (count // 2)) / math.log(reach / (count // 2)) * (count - count // 2))
    return first + min(wide, count - 1)


def test_energy_rate_with_biased_scores(law: at.Attention, x: torch.Tensor) -> None:
    """Coordinates that carry the bias do not move: the rate agrees with a difference quotient of the energy."""
    biased = with_positions(law, at.Alibi([0.5, 0.25, 0.1]))
    tokens, h = at.Tokens(x), 1e-6
    v = at.velocity(biased, tokens)
    up, down = (at.energy(tokens.with_points(x + s * h * v), biased) for s in (1, -1))
    torch.testing.assert_close(at.energy_rate(tokens, biased), (up - down) / (2 * h), rtol=1e-6, atol=0)


def test_scaled_rotary_turns_by_its_own_angles(law: at.Attention, x: torch.Tensor) -> None:
    usual = at.Rotary(theta=100.0).frequencies(K)
    same = at.ScaledRotary(100.0, angles=tuple(usual.tolist()))
    tokens = at.Tokens(x)
    torch.testing.assert_close(
        at.velocity(with_positions(law, same), tokens), at.velocity(with_positions(law, at.Rotary(100.0)), tokens)
    )
    slower = at.ScaledRotary(100.0, angles=tuple((usual / 4).tolist()))
    apart = at.Tokens(x, positions=[4.0 * i for i in range(N)])
    torch.testing.assert_close(
        at.velocity(with_positions(law, slower), apart), at.velocity(with_positions(law, same), tokens)
    )


@pytest.mark.parametrize("mask", [None, "causal", "window:3", "matrix"])
@pytest.mark.parametrize("weighted", [False, True])
def test_capped_scores(law: at.Attention, x: torch.Tensor, mask: str | None, weighted: bool) -> None:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    visible = {None: i > -1, "causal": j <= i, "window:3": (j <= i) & (i - j < 3), "matrix": (i + j) % 3 != 1}[mask]
    masses = torch.linspace(1, 2, N, dtype=torch.float64) if weighted else torch.ones(N, dtype=torch.float64)
    masses = masses / masses.sum()
    s = 2.0 * torch.tanh(scores(law, x) / 2.0) + masses.log()
    s = s.masked_fill(~visible.expand(N, N), -torch.inf)
    capped = at.Attention(
        law.query,
        law.key,
        law.value,
        scale=law.scale,
        kernel=at.Capped(2.0),
        mask=Visible(visible) if mask == "matrix" else mask,
    )
    tokens = at.Tokens(x, masses=masses if weighted else None)
    torch.testing.assert_close(at.velocity(capped, tokens), moved(law, s.softmax(-1), x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("joint", [False, True])
def test_normalised_queries_and_keys(law: at.Attention, x: torch.Tensor, joint: bool, rng: np.random.Generator) -> None:
    gain = torch.from_numpy(rng.uniform(0.5, 2, H * K if joint else K))
    normed = at.NormedAttention(law, at.RMSNorm(gain), at.RMSNorm(gain.flip(0)), joint)
    q, k = (torch.einsum("hkd,id->ihk", matrix, x) for matrix in (law.query, law.key))
    axes = (-2, -1) if joint else (-1,)
    g = gain.reshape(H, K) if joint else gain
    r = gain.flip(0).reshape(H, K) if joint else gain.flip(0)
    q = q / (q * q).mean(axes, keepdim=True).sqrt() * g
    k = k / (k * k).mean(axes, keepdim=True).sqrt() * r
    w = (law.scale * torch.einsum("ihk,jhk->hij", q, k)).softmax(-1)
    torch.testing.assert_close(at.velocity(normed, at.Tokens(x)), moved(law, w, x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(normed.weights(at.Tokens(x)), w, rtol=1e-12, atol=1e-12)


def test_latent_attention_without_norms_is_attention(
    law: at.Attention, x: torch.Tensor, rng: np.random.Generator
) -> None:
    """Queries, keys and values that read x through an invertible map are those of an ordinary attention."""
    down = torch.from_numpy(rng.standard_normal((D, D)))
    back = torch.linalg.inv(down)
    output, value = torch.eye(D, dtype=torch.float64).expand(H, D, D), law.value @ back
    latent = at.LatentAttention((Feature(down),), law.query @ back, law.key @ back, value, output, scale=law.scale)
    tokens = at.Tokens(x)
    torch.testing.assert_close(at.velocity(latent, tokens), at.velocity(law, tokens), rtol=1e-9, atol=1e-9)


def test_refusals(law: at.Attention, x: torch.Tensor) -> None:
    with pytest.raises(InputError, match="add to scores"):
        with_positions(law, at.Alibi([0.5, 0.25, 0.1]), kernel="l2")
    with pytest.raises(InputError, match="2 slopes for 3 heads"):
        at.velocity(with_positions(law, at.Alibi([0.5, 0.25])), at.Tokens(x))
    with pytest.raises(InputError, match="multiple of 4"):
        at.Relative(torch.zeros(6, H))
    with pytest.raises(InputError, match="must have dimension 4"):
        at.NormedAttention(law, at.RMSNorm(torch.ones(5)), at.RMSNorm(torch.ones(4)))
    with pytest.raises(InputError, match="positive number"):
        at.Capped(0.0)
