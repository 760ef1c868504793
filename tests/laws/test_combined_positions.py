"""Absolute and rotary positions together: points are shifted, then queries and keys rotated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.laws import Absolute, Alibi, Attention, Combined, LatentAttention, Relative, Rotary, rotary_of

N, D, HEADS = 5, 4, 2
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((N, D))


def attention(positions: object, **options: object) -> Attention:
    return Attention.random(D, heads=HEADS, seed=1, head_dim=2, positions=positions, **options)


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "l2", "sinkhorn", "sigmoid"])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_absolute_and_rotary_is_the_rotary_law_at_x_plus_p(kernel: str, mask: str | None) -> None:
    """Check A36 of the theory: equal to rounding."""
    tokens = at.Tokens.gaussian(N, D, seed=2, ensemble=3)
    options = {"kernel": kernel, "mask": mask}
    both = attention([Absolute(TABLE), Rotary(10.0)], **options)
    shifted = at.Tokens(tokens.points + torch.from_numpy(TABLE))
    wanted = attention(Rotary(10.0), **options).velocity(shifted)
    torch.testing.assert_close(both.velocity(tokens), wanted, rtol=0, atol=1e-14)


def test_values_are_shifted_or_not() -> None:
    """qk: s_ij at x + p, values V x_j; written out with plain matrices."""
    tokens = at.Tokens.gaussian(N, D, seed=2)
    law = attention([Absolute(TABLE, on="qk"), Rotary(10.0)])
    y, x = tokens.points.numpy() + TABLE, tokens.points.numpy()
    total = np.zeros((N, D))
    for h in range(HEADS):
        q, k = y @ law.query[h].numpy().T, y @ law.key[h].numpy().T
        for i in range(N):
            turn = np.array([[np.cos(i), -np.sin(i)], [np.sin(i), np.cos(i)]])
            q[i], k[i] = turn @ q[i], turn @ k[i]
        weights = np.exp(q @ k.T)
        total += weights / weights.sum(1, keepdims=True) @ x @ law.value[h].numpy().T
    np.testing.assert_allclose(law.velocity(tokens).numpy(), total, rtol=0, atol=1e-13)


def test_rotating_before_adding_is_another_law_and_the_order_of_the_list_does_not_matter() -> None:
    tokens = at.Tokens.gaussian(N, D, seed=2)
    law = attention([Absolute(TABLE), Rotary(10.0)])
    other = attention((Rotary(10.0), Absolute(TABLE)))
    assert torch.equal(law.velocity(tokens), other.velocity(tokens))
    turned = torch.from_numpy(TABLE) + Rotary(10.0).turn(tokens.points.unsqueeze(-3), tokens).squeeze(-3)
    assert float((law.velocity(tokens) - attention(None).velocity(at.Tokens(turned))).abs().max()) > 0.1


@pytest.mark.parametrize("space", ["euclidean", "sphere"])
def test_a_table_at_the_input_is_added_once(space: str) -> None:
    tokens = at.Tokens.gaussian(N, D, seed=2)
    options = {"space": space, "until": 1.0, "stop": ()}
    both = at.flow(attention([Absolute(TABLE, when="input"), Rotary(10.0)]), tokens, **options)
    plain = at.flow(attention(Rotary(10.0)), at.Tokens(tokens.points + torch.from_numpy(TABLE)), **options)
    torch.testing.assert_close(both.final.points, plain.final.points, rtol=0, atol=1e-12)


def test_tables_add_up_and_biases_come_last() -> None:
    tokens = at.Tokens.gaussian(N, D, seed=2)
    halves = attention([Absolute(0.5 * TABLE), Rotary(10.0), Absolute(0.5 * TABLE)])
    torch.testing.assert_close(
        halves.velocity(tokens), attention([Absolute(TABLE), Rotary(10.0)]).velocity(tokens), rtol=0, atol=1e-13
    )
    biases = RNG.standard_normal((8, HEADS))
    slopes = Alibi.usual(HEADS)
    law = attention([slopes, Rotary(10.0), Relative(biases)])
    scores = law.weights(tokens).log() - attention(Rotary(10.0)).weights(tokens).log()
    places = torch.arange(N, dtype=torch.float64)
    ahead = places - places.unsqueeze(-1)
    wanted = slopes.slopes[:, None, None] * ahead
    wanted = wanted + torch.from_numpy(biases)[Relative(biases).bucket(ahead)].movedim(-1, 0)
    difference = scores - wanted
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference), rtol=0, atol=1e-12)


def test_heads_of_the_list_are_those_of_its_encodings() -> None:
    tokens = at.Tokens.gaussian(N, D, seed=2)
    law = attention([Absolute(TABLE), Rotary(10.0), Alibi.usual(HEADS)])
    alone = [
        Attention(law.query[h : h + 1], law.key[h : h + 1], law.value[h : h + 1], positions=law.positions.head(h))
        for h in range(HEADS)
    ]
    total = sum(one.velocity(tokens) for one in alone)
    torch.testing.assert_close(total, law.velocity(tokens), rtol=0, atol=1e-13)


def test_gradients_reach_the_table_and_the_tokens() -> None:
    points = at.Tokens.gaussian(N, D, seed=2).points.requires_grad_()
    table = torch.from_numpy(TABLE.copy()).requires_grad_()

    def move(points: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return attention([Absolute(table), Rotary(10.0)]).velocity(at.Tokens(points))

    assert torch.autograd.gradcheck(move, (points, table))


def test_a_run_is_stored_and_read_back(tmp_path) -> None:
    law = attention([Absolute(TABLE), Rotary(10.0)], mask="causal")
    tokens = at.Tokens.gaussian(N, D, seed=2, ensemble=2)
    run = at.flow(law, tokens, until=0.5, store=tmp_path / "run.zarr")
    again = at.load(tmp_path / "run.zarr")
    assert isinstance(again.law.positions, Combined)
    assert torch.equal(again.law.velocity(tokens), law.velocity(tokens))
    assert "positions=absolute and rotary" in repr(law) == run.summary()["law"]
    assert "absolute and rotary" in law._repr_html_()
    half = law.to(torch.float32)
    assert half.positions.encodings[0].table.dtype == torch.float32


def test_predictions_name_the_positions_and_regimes_see_the_rotation() -> None:
    eye = np.eye(D)
    law = Attention(eye, eye, -eye, positions=[Absolute(TABLE), Rotary(10.0)])
    found = at.predict(law, at.Tokens.gaussian(N, D, seed=2), at.Euclidean())
    for key in ("regimes.T1", "regimes.T2"):  # of x' without positions
        finding = next(one for one in found.findings if one.theorem.key == key)
        (missing,) = [one for one in finding.missing if one.name == "no positions"]
        assert "absolute and rotary positions" in str(missing)
    assert rotary_of(law.positions) == Rotary(10.0)
    assert at.regime(law).heads[0].label.certificate is None
    assert at.regime(law).heads[0].offsets


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ([Rotary(), Rotary(10.0)], "at most one rotary"),
        ([Rotary(), "absolute"], "a list of positions holds"),
        ([Absolute(TABLE), [Rotary()]], "a list of positions holds"),
        ([Absolute(TABLE[:, :3]), Rotary()], "dimension 3"),
        ([Absolute(TABLE), Rotary(dim=8)], "turn 8 coordinates"),
        ("absolute,rotary", "positions must be None"),
    ],
)
def test_lists_that_make_no_sense_are_errors(positions: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        attention(positions)
    with pytest.raises(InputError, match="distances instead"):
        attention([Rotary(), Alibi.usual(HEADS)], kernel="l2")


def test_short_lists() -> None:
    assert attention([]).positions is None
    assert attention([Rotary(10.0)]).positions == Rotary(10.0)


def test_a_latent_attention_takes_no_absolute_positions() -> None:
    features = (at.laws.Feature(np.eye(D)),)
    parts = [RNG.standard_normal((1, 2, D)), RNG.standard_normal((1, 2, D)), RNG.standard_normal((1, 2, D))]
    with pytest.raises(InputError, match="not absolute ones"):
        LatentAttention(features, *parts, RNG.standard_normal((1, D, 2)), positions=[Absolute(TABLE), Rotary()])
