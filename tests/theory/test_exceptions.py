"""Cases that look like those of a theorem and are not: nothing may be promised there."""

from __future__ import annotations

import pytest
import torch

import attractor as at
from attractor.errors import InputError

EYE2, EYE3, EYE4 = (torch.eye(d, dtype=torch.float64) for d in (2, 3, 4))
COLLAPSING = at.Attention(EYE4, EYE4, -EYE4)
ZERO = at.Gaussian(torch.zeros(2), EYE2)


def singular_key(**options: object) -> at.Attention:
    rows = ([[1.0, 1.0]], [[1.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]])
    return at.Attention(*(torch.tensor(row, dtype=torch.float64) for row in rows), kernel="l2", **options)  # type: ignore[arg-type]


def test_the_example_of_l2_blow_up_is_one_law() -> None:
    assert "blow-up" in at.predict(singular_key(), ZERO).fates
    for options in ({"output": -EYE2}, {"scale": 0.0}, {"query_bias": torch.ones(1, dtype=torch.float64)}):
        assert not at.predict(singular_key(**options), ZERO).fates


def test_relative_positions_are_not_certified() -> None:
    table = torch.zeros(4, 1, dtype=torch.float64)
    table[0] = -8.0
    law = at.Attention(EYE4, EYE4, -EYE4, positions=at.Relative(table))
    found = at.regime(law)
    assert found.label == "convergent"
    assert found.certificate is None
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0], [-2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert at.flow(law, at.Tokens(x), until=50.0).final.points.norm(dim=-1).min() > 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "block",
    [
        at.Block(COLLAPSING, at.Affine(5 * EYE4), placement="none"),
        at.Block(COLLAPSING, norms=at.RMSNorm(), placement="pre"),
    ],
)
def test_blocks_are_not_certified(block: at.Block) -> None:
    assert at.regime(block).certificate is None
    assert "nothing is proved of a block" in at.regime(block).why


def test_a_value_that_rests_somewhere_is_undetermined_under_a_mask() -> None:
    value = torch.diag(torch.tensor([-1.0, -1.0, -1.0, 0.0], dtype=torch.float64))
    assert at.regime(at.Attention(EYE4, EYE4, value, mask="causal")).label == "undetermined"


def test_tokens_that_nobody_sees_are_in_no_theorem() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weightless = at.Tokens(x, masses=torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert "collapse" in at.predict(COLLAPSING, at.Tokens(x)).fates
    assert not at.predict(COLLAPSING, weightless).fates


@pytest.mark.parametrize("mask", [None, "causal"])
def test_opposite_tokens_are_not_promised_consensus(mask: str | None) -> None:
    x = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    law = at.Attention(EYE3, EYE3, EYE3, mask=mask)
    assert "consensus" not in at.predict(law, at.Tokens(x), "sphere").fates
    x = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.1, 0.0]], dtype=torch.float64)
    assert "consensus" in at.predict(law, at.Tokens(x), "sphere").fates


def test_predictions_see_the_points_that_a_flow_would() -> None:
    x = torch.tensor([[1.0, 0.0], [-3.0, 0.0]], dtype=torch.float64)
    assert "consensus" not in at.predict(at.Attention.isotropic(2, 1.0), at.Tokens(x), "sphere").fates


def test_a_mean_may_run_away_while_the_covariance_shrinks() -> None:
    law = at.Attention(EYE2, -EYE2, EYE2)
    assert "bounded" in at.predict(law, ZERO).fates
    assert "bounded" not in at.predict(law, at.Gaussian(torch.ones(2), EYE2)).fates


def test_gaussians_are_flat() -> None:
    assert not at.predict(at.Attention(EYE2, EYE2, EYE2), ZERO, "sphere").fates


def test_statements_about_layers_are_not_about_flows() -> None:
    tokens = at.Tokens.hemisphere(6, 3, seed=0)
    law = at.Attention.isotropic(3, 1.0)
    keys = {finding.theorem.key for finding in at.predict(law, tokens, "sphere").applicable}
    assert not {key for key in keys if "layer" in key or "rank-collapse" in key}
    stepped = {finding.theorem.key for finding in at.predict(law, tokens, "sphere", step=0.5).applicable}
    assert "consensus.T2-layer-rate" in stepped
    assert "meanfield.T11" not in stepped


def test_bad_questions_get_a_sentence() -> None:
    law = at.Attention(EYE2, EYE2, EYE2)
    with pytest.raises(InputError, match="2 coordinates, the Gaussian has 3"):
        at.predict(law, at.Gaussian(torch.zeros(3), EYE3))
    with pytest.raises(InputError, match="space must be"):
        at.predict(law, space=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="consensus, meanfield, regimes"):
        at.predict(law, paper="foo")


def test_predictions_can_be_read() -> None:
    text = repr(at.predict(at.Attention.isotropic(3, 1.0), at.Tokens.hemisphere(6, 3, seed=0), "sphere"))
    assert "consensus (all tokens tend to one point): consensus.T2" in text
    assert len(text) < 2000


def test_covariances_in_single_precision_are_taken() -> None:
    root = torch.randn(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    assert at.Gaussian(torch.zeros(6), root @ root.mT).dim == 6
    with pytest.raises(InputError, match="smallest eigenvalue is -1"):
        at.Gaussian(torch.zeros(2, 2), torch.stack([1e14 * EYE2, torch.diag(torch.tensor([1.0, -1.0])).double()]))


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_one_token_and_one_dimension_are_answered(n: int, d: int, mask: str | None) -> None:
    for beta in (-1.0, 0.0, 2.0):
        for space in ("sphere", "euclidean", at.Ellipsoid(2 * torch.eye(d, dtype=torch.float64))):
            for step in (None, 0.5):
                found = at.predict(
                    at.Attention.isotropic(d, beta, mask=mask), at.Tokens.uniform(n, d), space, step=step
                )
                assert found.contradictions == ()


def test_an_ensemble_is_not_answered_by_silence() -> None:
    with pytest.raises(InputError, match=r"one start, got an ensemble of shape \(4,\)"):
        at.predict(at.Attention.isotropic(3, 1.0), at.Tokens.uniform(5, 3, ensemble=4), "sphere")


@pytest.mark.parametrize("size", [0.2, 5.0])
def test_positions_of_the_input_are_added_before_tokens_are_put_on_the_sphere(size: float) -> None:
    """``flow`` starts from N(x + p), whatever the length of x: a prediction is about the same points."""
    x = torch.tensor([[1.0, 0.2, 0.0], [-1.0, 0.3, 0.1], [-1.0, -0.4, 0.0]], dtype=torch.float64)
    law = at.Attention.isotropic(3, 1.0)
    moved = at.Attention(EYE3, EYE3, EYE3, positions=at.Absolute(torch.tensor([[0.0, 0.0, 2.0]] * 3), when="input"))
    tokens = at.Tokens(size * x)
    start = at.flow(moved, tokens, space="sphere", until=1.0, save=[0.0, 1.0]).points[0]
    direct = at.predict(law, at.Tokens(start), "sphere").row()
    added = at.predict(moved, tokens, "sphere").row()
    assert set(added["fates"]) == set(direct["fates"])
    (margin,), (wanted,) = (
        [
            condition["margin"]
            for item in (*found["applicable"], found["nearest"])
            if item["theorem"] == "consensus.T2-margin"
            for condition in item["conditions"]
            if condition["name"] == "open hemisphere"
        ]
        for found in (added, direct)
    )
    assert margin == pytest.approx(wanted, abs=1e-12)
