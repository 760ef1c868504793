"""What an attention law says about itself: interaction, value map, metric, heads; and how names become objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attractor as at
from attractor import laws
from attractor.errors import InputError
from attractor.laws import L2, Attention, Causal, Kernel, Rotary, Sigmoid, Sinkhorn, Visible, Window
from attractor.serialization import tensors
from attractor.states import Tokens


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_interaction_value_map_and_metric() -> None:
    """Q'K without the scale, O V, and Q'K inv(O V), head by head."""
    query, key, value, output = draw(3, 2, 4), draw(3, 2, 4, seed=1), draw(3, 5, 4, seed=2), draw(3, 4, 5, seed=3)
    law = Attention(query, key, value, output=output, scale=0.5)
    assert (law.heads, law.dim) == (3, 4)
    for h in range(3):
        interaction, value_map = query[h].T @ key[h], output[h] @ value[h]
        np.testing.assert_allclose(law.interaction[h].numpy(), interaction, rtol=0, atol=1e-14)
        np.testing.assert_allclose(law.value_map[h].numpy(), value_map, rtol=0, atol=1e-14)
        np.testing.assert_allclose(law.metric[h].numpy(), interaction @ np.linalg.inv(value_map), rtol=0, atol=1e-11)
    one = Attention(query[0], key[0], value[0, :4])
    assert (one.heads, one.interaction.shape, one.metric.shape) == (1, (4, 4), (4, 4))


@pytest.mark.parametrize("beta", [4.0, -3.0, 0.0])
def test_isotropic_laws(beta: float) -> None:
    law = Attention.isotropic(3, beta, kernel="l2", mask="causal")
    torch.testing.assert_close(law.interaction, beta * torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(law.value_map, torch.eye(3, dtype=torch.float64), rtol=0, atol=0)
    assert isinstance(law.kernel, L2)
    assert isinstance(law.mask, Causal)


@pytest.mark.theorem
@given(seed=st.integers(0, 1000), kernel=st.sampled_from(["softmax", "sinkhorn", "sigmoid", "exponential", "linear"]))
def test_only_the_interaction_matters(seed: int, kernel: str) -> None:
    """Gauge: Q -> S Q, K -> S^-T K changes no dot-product kernel (regimes 4.6)."""
    rng = np.random.default_rng(seed)
    query, key, value = (
        0.5 * rng.standard_normal((3, 3)),
        0.5 * rng.standard_normal((3, 3)),
        rng.standard_normal((3, 3)),
    )
    gauge = np.linalg.qr(rng.standard_normal((3, 3)))[0] @ np.diag([0.5, 1.0, 2.0])
    tokens = Tokens(0.8 * rng.standard_normal((6, 3)))
    one = Attention(query, key, value, kernel=kernel)
    other = Attention(gauge @ query, np.linalg.inv(gauge).T @ key, value, kernel=kernel)
    torch.testing.assert_close(one.velocity(tokens), other.velocity(tokens), rtol=0, atol=1e-11)


@pytest.mark.theorem
@given(seed=st.integers(0, 1000), shift=st.floats(-1e3, 1e3))
def test_l2_does_not_feel_a_common_translation_of_queries_and_keys(seed: int, shift: float) -> None:
    """Q = K: w_ij depends on x_i - x_j alone, also far from the origin."""
    rng = np.random.default_rng(seed)
    points, matrix = rng.standard_normal((6, 3)), rng.standard_normal((3, 3))
    law = Attention(matrix, matrix, np.eye(3), kernel="l2")
    near, far = law.weights(Tokens(points)), law.weights(Tokens(points + shift))
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)


def test_l2_keeps_its_digits_far_from_the_origin_in_single_precision() -> None:
    points = draw(20, 3)
    law = Attention(np.eye(3), np.eye(3), np.eye(3), kernel="l2")
    far = law.weights(Tokens(points + 50.0, dtype=torch.float32)).double()
    torch.testing.assert_close(far, law.weights(Tokens(points)), rtol=0, atol=2e-5)


@pytest.mark.theorem
def test_rotary_scores_depend_on_the_lag_alone() -> None:
    """<R_i q, R_j k> = <q, R_(j-i) k>: moving all places by the same amount changes nothing."""
    points, places = draw(6, 4), np.array([0.0, 1.0, 5.0, 2.5, 7.0, 3.0])
    law = Attention(draw(2, 4, 4, seed=1), draw(2, 4, 4, seed=2), draw(2, 4, 4, seed=3), positions=Rotary(theta=100.0))
    one, other = (law.weights(Tokens(points, positions=places + shift)) for shift in (0.0, 1234.0))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    plain = Attention(law.query, law.key, law.value)
    still = law.weights(Tokens(points, positions=np.zeros(6)))
    torch.testing.assert_close(still, plain.weights(Tokens(points)), rtol=0, atol=1e-15)


@pytest.mark.parametrize("theta", [7.0, 1e4])
def test_rotary_angles(theta: float) -> None:
    rotary = Rotary(theta)
    expected = [theta ** (-2 * p / 8) for p in range(4)]
    np.testing.assert_allclose(rotary.frequencies(8).numpy(), expected, rtol=1e-15)
    np.testing.assert_allclose(Rotary(theta, dim=4).frequencies(8).numpy(), [1.0, theta**-0.5], rtol=1e-15)


def test_names_become_objects() -> None:
    identity = np.eye(2)
    for name in ("softmax", "l2", "sinkhorn", "sigmoid", "exponential", "linear"):
        kernel = Attention(identity, identity, identity, kernel=name).kernel
        assert isinstance(kernel, Kernel)
        assert kernel.name == name
    given_kernel = Sigmoid(-2.0)
    assert Attention(identity, identity, identity, kernel=given_kernel).kernel is given_kernel
    assert Attention(identity, identity, identity, kernel="sinkhorn").kernel == Sinkhorn(1.0)
    masks = {None: None, "none": None, "causal": Causal(), "window:64": Window(64)}
    for mask, expected in masks.items():
        assert Attention(identity, identity, identity, mask=mask).mask == expected
    seen = Attention(identity, identity, identity, mask=np.tri(3, dtype=bool)).mask
    assert isinstance(seen, Visible)
    assert seen.matrix.tolist() == np.tri(3, dtype=bool).tolist()
    listed = Attention(identity, identity, identity, mask=[[True, False], [True, True]]).mask
    assert isinstance(listed, Visible)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_decide_the_precision(dtype: torch.dtype) -> None:
    """Laws are kept in float64 and follow the tokens."""
    law = Attention(
        draw(2, 2, 4),
        draw(2, 2, 4, seed=1),
        draw(2, 4, 4, seed=2),
        mask="causal",
        positions=Rotary(),
        query_bias=draw(2, 2),
    )
    points = draw(6, 4, seed=3)
    got = law.velocity(Tokens(points, masses=np.ones(6), dtype=dtype))
    assert got.dtype == dtype
    error = 1e-5 if dtype == torch.float32 else 1e-13
    torch.testing.assert_close(got.double(), law.velocity(Tokens(points)), rtol=0, atol=error)


def test_merging_is_refused_where_places_matter() -> None:
    identity = np.eye(2)

    def obstacle(**options: object) -> str | None:
        return Attention(identity, identity, identity, **options).merge_obstacle()  # type: ignore[arg-type]

    assert obstacle() is None
    assert "causal" in str(obstacle(mask="causal"))
    assert "rotary" in str(obstacle(positions=Rotary()))


def test_repr_says_what_it_is() -> None:
    law = Attention(draw(2, 3, 4), draw(2, 3, 4), draw(2, 4, 4), kernel="l2", mask="causal")
    assert repr(law) == "Attention(dim=4, heads=2, head_dim=3, kernel=l2, mask=causal)"


def test_repr_of_affine_laws_shows_shapes() -> None:
    total = Attention.isotropic(3, 9.0) + laws.Affine(np.eye(3), np.zeros(3))
    assert repr(total).endswith("Affine(matrix=3x3, offset=3)))")
    assert "beta=9" in repr(total)


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
def test_parameters_in_sixteen_bits_are_kept_in_float32_exactly(short: torch.dtype) -> None:
    """Everything that a law in float32 does works, with the same numbers."""
    parts = [torch.from_numpy(np.random.default_rng(seed).standard_normal((3, 3))).to(short) for seed in range(3)]
    tokens = Tokens.uniform(6, 3, seed=0)
    for kernel in ("softmax", "sinkhorn"):
        law, wide = (Attention(*given, kernel=kernel) for given in (parts, [part.float() for part in parts]))
        assert law.query.dtype == torch.float32
        assert torch.equal(law.velocity(tokens), wide.velocity(tokens))
    assert at.flow(law, tokens, space="sphere", until=0.5).outcome.name == "reached"
    assert at.regime(Attention(*parts)).heads


def test_a_law_moves_to_another_type_and_device() -> None:
    table = np.random.default_rng(0).standard_normal((6, 4))
    law = Attention.random(4, heads=2, seed=0, positions=laws.Absolute(table), mask=np.tri(6, dtype=bool))
    block = laws.Block(law, laws.MLP(np.eye(4), None, np.eye(4)), "pre", laws.RMSNorm(gain=np.ones(4)))
    schedule = at.Schedule.interpolate([0.0, 1.0], [law, law])
    function = at.Schedule(lambda time: law)
    for one in (law, block, law + block, laws.Stack((law, block)), schedule, function):
        tokens = Tokens.gaussian(6, 4, seed=1)
        moved = one.to("cpu", torch.float32)
        assert type(moved) is type(one)
        at_zero = moved.at(0.0) if moved is not one and isinstance(moved, at.Schedule) else moved
        kinds = {tensor.dtype for tensor in tensors(at_zero)}
        assert kinds <= {torch.float32, torch.bool}
        assert torch.float32 in kinds
        torch.testing.assert_close(moved.velocity(tokens), one.velocity(tokens), rtol=0, atol=1e-5)
    assert law.to("cpu") is law
    assert law.to(dtype=torch.float64, device="cpu") is law
    assert law.to(dtype=torch.float32).value.dtype == torch.float32
    assert law.to(torch.float64) is law


def test_gradients_flow_through_a_moved_law() -> None:
    query = torch.eye(3, dtype=torch.float64, requires_grad=True)
    law = Attention(query, torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64)).to(torch.float32)
    law.velocity(Tokens.uniform(4, 3, seed=0)).square().sum().backward()
    assert float(query.grad.abs().max()) > 0


@pytest.mark.parametrize(
    ("target", "words"),
    [(torch.bfloat16, "float64 or float32"), ("nowhere", "takes a device"), (3.5, "takes a device")],
)
def test_targets_that_are_not_possible_are_errors(target: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Attention.isotropic(3, 1.0).to(target)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(InputError, match="the law cannot be put on cuda") as caught:
        Attention.isotropic(3, 1.0).to("cuda")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("beta", [4.0, 0.3, -2.0, 0.0, 1e-9])
def test_isotropic_attention_names_its_beta(beta: float) -> None:
    law = at.Attention.isotropic(3, beta)
    assert law.beta == pytest.approx(beta, rel=1e-11)
    assert f"beta={beta:.6g}" in repr(law)
    assert f"with beta = {beta:.6g}" in law.describe()
    run = at.flow(law, at.Tokens.uniform(4, 3, seed=0), space="sphere", until=0.1)
    assert f"with beta = {beta:.6g}" in run.scene().title
    assert f"beta={beta:.6g}" in run._repr_html_()


def test_other_attention_has_no_beta() -> None:
    generator = np.random.default_rng(0)
    one = generator.normal(size=(2, 2, 3, 3))
    assert at.Attention(one[0, 0], one[0, 1], np.eye(3)).beta is None  # type: ignore[arg-type]
    two = np.stack([np.eye(3), np.eye(3)])
    assert at.Attention(two, two, two).beta is None  # type: ignore[arg-type]
    assert at.Attention(np.eye(3), np.eye(3), np.eye(3), scale=0.5).beta == 0.5  # type: ignore[arg-type]
