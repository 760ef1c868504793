"""Laws in time: schedules, stacks and sums are, at every moment, the law they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attractor import Event, flow
from attractor.errors import InputError, UnsupportedError
from attractor.laws import (
    MLP,
    Absolute,
    Affine,
    Attention,
    Block,
    Law,
    LayerNorm,
    Rescaled,
    Rotary,
    Schedule,
    Sigmoid,
    Sinkhorn,
    Stack,
    Total,
)
from attractor.spaces import Euclidean, Sphere
from attractor.states import Tokens

X = Tokens(np.random.default_rng(0).standard_normal((5, 3)))


def attention(seed: int = 0, **options: object) -> Attention:
    rng = np.random.default_rng(seed)
    return Attention(*(rng.standard_normal((3, 3)) for _ in range(3)), **options)  # type: ignore[arg-type]


def turning(time: float) -> Attention:
    return Attention.isotropic(3, 1.0 + math.sin(time))


def same(one: Law, other: Law, time: float = 0.0) -> None:
    torch.testing.assert_close(one.velocity(X, time), other.velocity(X, time), rtol=0, atol=0)


def test_a_function_of_time() -> None:
    law = Schedule(turning)
    assert law.dim == 3
    assert not law.autonomous
    assert law.breaks(0.0, 10.0) == []
    assert law.between(0.0, 1.0) is law
    for time in (-1.0, 0.0, 2.5):
        torch.testing.assert_close(law.velocity(X, time), turning(time).velocity(X), rtol=0, atol=0)
        torch.testing.assert_close(
            law.layer(X, 0.3, Sphere(), time), turning(time).layer(X, 0.3, Sphere()), rtol=0, atol=0
        )


@given(time=st.floats(-2.0, 6.0))
def test_interpolation_is_linear_in_every_parameter_and_constant_outside(time: float) -> None:
    times = [0.0, 1.0, 4.0]
    laws = [attention(seed, scale=0.5 + seed, kernel=Sigmoid(-seed)) for seed in range(3)]
    law = Schedule.interpolate(times, laws).at(time)
    assert isinstance(law, Attention)
    for name in ("query", "key", "value"):
        entries = torch.stack([getattr(one, name) for one in laws]).reshape(3, -1).numpy()
        expected = [np.interp(time, times, column) for column in entries.T]
        np.testing.assert_allclose(getattr(law, name).flatten().numpy(), expected, rtol=0, atol=1e-14)
    assert law.scale == pytest.approx(np.interp(time, times, [0.5, 1.5, 2.5]), abs=1e-14)
    assert isinstance(law.kernel, Sigmoid)
    assert law.kernel.bias == pytest.approx(np.interp(time, times, [0.0, -1.0, -2.0]), abs=1e-14)


def test_interpolation_meets_its_laws_and_breaks_between_them() -> None:
    laws = [attention(seed) for seed in range(3)]
    law = Schedule.interpolate([0.0, 1.0, 4.0], laws)
    for time, one in ((-5.0, laws[0]), (0.0, laws[0]), (1.0, laws[1])):
        torch.testing.assert_close(law.velocity(X, time), one.velocity(X), rtol=0, atol=0)
    torch.testing.assert_close(law.velocity(X, 4.0), laws[2].velocity(X), rtol=0, atol=1e-14)
    assert law.breaks(-1.0, 5.0) == [0.0, 1.0, 4.0]
    assert law.breaks(0.0, 4.0) == [1.0]
    assert law.breaks(1.0, 4.0) == []
    assert law.merge_obstacle() is None


def test_interpolation_reaches_into_blocks_norms_positions_and_feed_forward() -> None:
    def block(seed: int) -> Block:
        rng = np.random.default_rng(seed)
        rotary = Rotary(theta=10.0 + seed)
        law = Attention(*(rng.standard_normal((2, d, 3)) for d in (2, 2, 3)), positions=rotary)
        mlp = MLP(rng.standard_normal((4, 3)), None, rng.standard_normal((3, 4)), activation="tanh")
        return Block(law, mlp, "pre", LayerNorm(rng.standard_normal(3), eps=0.1 * (seed + 1)))

    half = Schedule.interpolate([0.0, 1.0], [block(0), block(1)]).at(0.5)
    assert isinstance(half, Block)
    assert isinstance(half.feedforward, MLP)
    assert isinstance(half.norms, tuple)
    assert half.norms[1].eps == pytest.approx(0.15)
    first, second = block(0).feedforward, block(1).feedforward
    assert isinstance(first, MLP)
    assert isinstance(second, MLP)
    torch.testing.assert_close(half.feedforward.w1, (first.w1 + second.w1) / 2)


def test_schedules_refuse_what_they_cannot_interpolate() -> None:
    with pytest.raises(InputError, match="needs a function of time, or at least two times with one law each"):
        Schedule()
    with pytest.raises(InputError, match="needs a function of time, or at least two times with one law each"):
        Schedule.interpolate([0.0, 1.0], [attention()])
    with pytest.raises(InputError, match="times of a schedule must increase"):
        Schedule.interpolate([1.0, 1.0], [attention(), attention()])
    with pytest.raises(InputError, match="must return a law, it returned int"):
        Schedule(lambda time: 3)  # type: ignore[arg-type, return-value]
    pairs = {
        "differ in shape": (attention(), Attention.isotropic(4, 1.0)),
        "same form": (attention(), attention(mask="causal")),
        "same form.*": (attention(kernel="l2"), attention(kernel=Sinkhorn(1.0))),
        "same form .*": (attention(mask=np.eye(5, dtype=bool)), attention(mask=np.ones((5, 5), dtype=bool))),
    }
    for message, laws in pairs.items():
        with pytest.raises(InputError, match=message):
            Schedule.interpolate([0.0, 1.0], laws).velocity(X, 0.5)


@pytest.mark.parametrize("duration", [1.0, 0.1, 0.3, 1 / 3, 7.0])
def test_a_stack_gives_each_layer_its_time(duration: float) -> None:
    laws = [attention(seed) for seed in range(12)]
    stack = Stack(tuple(laws), duration)
    assert stack.depth == pytest.approx(12 * duration)
    assert stack.dim == 3
    assert not stack.autonomous
    for k, law in enumerate(laws):
        assert stack.at(k * duration) is law
        assert stack.at((k + 0.5) * duration) is law
        assert stack.between(k * duration, (k + 1) * duration) is law
        torch.testing.assert_close(stack.velocity(X, (k + 0.5) * duration), law.velocity(X), rtol=0, atol=0)
        torch.testing.assert_close(
            stack.layer(X, duration, Euclidean(), k * duration), law.layer(X, duration, Euclidean()), rtol=0, atol=0
        )
    assert stack.at(-1.0) is laws[0]
    assert stack.at(100 * duration) is laws[-1]
    assert stack.breaks(0.0, 3 * duration) == [1 * duration, 2 * duration]
    assert stack.breaks(0.5 * duration, 99 * duration) == [k * duration for k in range(1, 12)]
    running = 0.0
    for law in laws:  # times as a loop of layers accumulates them
        assert stack.at(running) is law
        running += duration


def test_a_stack_adds_input_positions_once() -> None:
    table = np.random.default_rng(3).standard_normal((5, 3))
    stack = Stack((attention(positions=Absolute(table, when="input")), attention(1)))
    torch.testing.assert_close(stack.enter(X).points, X.points + torch.from_numpy(table), rtol=0, atol=0)


def test_stacks_of_schedules_break_where_both_do() -> None:
    inner = Schedule.interpolate([0.25, 0.5], [attention(), attention(1)])
    stack = Stack((inner, attention(2)), 1.0)
    assert stack.breaks(0.0, 2.0) == [0.25, 0.5, 1.0]
    assert stack.between(0.0, 0.25) is inner
    with pytest.raises(InputError, match="needs at least one law"):
        Stack(())
    with pytest.raises(InputError, match="positive duration, got 0"):
        Stack((attention(),), 0.0)
    with pytest.raises(InputError, match=r"different dimensions: \[3, 4\]"):
        Stack((attention(), Attention.isotropic(4, 1.0)))


def test_the_sum_of_laws() -> None:
    one, two, three = attention(), Affine(np.eye(3), [1.0, 2.0, 3.0]), Schedule(turning)
    total = one + two + three
    assert isinstance(total, Total)
    assert total.laws == (one, two, three)
    assert (one + (two + three)).laws == (one, two, three)
    assert (one + two).autonomous
    assert not total.autonomous
    assert total.dim == 3
    expected = one.velocity(X) + two.velocity(X) + turning(0.7).velocity(X)
    torch.testing.assert_close(total.velocity(X, 0.7), expected, rtol=0, atol=0)
    torch.testing.assert_close(
        total.layer(X, 0.2, Sphere(), 0.7), Sphere().retract(X.points + 0.2 * expected), rtol=0, atol=0
    )
    with pytest.raises(InputError, match=r"move tokens of different dimensions: \[3, 4\]"):
        one + Attention.isotropic(4, 1.0)
    with pytest.raises(TypeError, match="unsupported operand"):
        one + 3  # type: ignore[operator]


def test_a_sum_breaks_and_restricts_like_its_parts() -> None:
    stack = Stack((attention(), attention(1)), 1.0)
    schedule = Schedule.interpolate([0.5, 1.5], [attention(2), attention(3)])
    total = stack + schedule
    assert total.breaks(0.0, 2.0) == [0.5, 1.0, 1.5]
    same(total.between(0.0, 0.5), attention() + schedule, 0.25)
    same(total.between(1.0, 1.5), attention(1) + schedule, 1.0)
    assert total.merge_obstacle() is None
    assert "causal" in str((stack + attention(mask="causal")).merge_obstacle())
    assert "rotary" in str(Stack((attention(), attention(positions=Rotary(dim=2)))).merge_obstacle())


def test_every_composition_restricts_to_ensemble_members() -> None:
    """``member`` reaches the parameters with a member axis wherever they stand."""
    rng = np.random.default_rng(4)

    def law() -> Attention:
        return Attention(*(rng.standard_normal((4, 2, size, 3)) for size in (2, 2, 3)))

    a, b = law(), law()
    laws: list[Law] = [
        a,
        a + b,
        Stack((a, b)),
        Block(a, Affine(np.eye(3))),
        Schedule.interpolate([0.0, 1.0], [a, b]),
        Schedule(lambda time: a),
    ]
    tokens, index = Tokens(rng.standard_normal((4, 5, 3))), torch.tensor([2, 0])
    for one in laws:
        picked = one.member(index).velocity(Tokens(tokens.points[index]), 0.5)
        torch.testing.assert_close(picked, one.velocity(tokens, 0.5)[index], rtol=0, atol=1e-13)


def test_a_stack_of_very_short_layers_goes_on_with_its_last_law() -> None:
    """The number of the layer, 1e310, is beyond the largest float."""
    first, last = (Affine(rate * np.eye(2)) for rate in (1.0, 2.0))
    stack = Stack((first, last), duration=1e-300)
    assert stack.at(1e10) is last
    assert stack.at(0.0) is first
    assert stack.at(-1.0) is first


@pytest.mark.theorem
@pytest.mark.parametrize(
    "value", [np.eye(2), np.diag([1.0, -0.5]), [[0.6, 0.8], [0.6, 0.7]], [[0.3, 1.0], [-1.0, 0.3]]]
)
@pytest.mark.parametrize("kernel", ["softmax", "sigmoid"])
def test_rescaled_tokens_are_the_solution_of_their_own_law(value: object, kernel: str) -> None:
    law = Attention(np.eye(2), np.eye(2), np.asarray(value), kernel=kernel, mask="causal")
    tokens = Tokens(np.random.default_rng(0).uniform(-2, 2, (6, 2)))
    options = {"until": 2.0, "save": 4, "rtol": 1e-10, "atol": 1e-12, "merge": False, "stop": ()}
    view, direct = flow(law, tokens, **options).rescaled(), flow(Rescaled(law), tokens, **options)
    torch.testing.assert_close(view.points, direct.points, rtol=0, atol=1e-8)
    torch.testing.assert_close(view.final.points, direct.points[-1], rtol=0, atol=1e-8)
    assert "rescaled" in view.scene().title


def test_members_that_ended_early_keep_their_rescaled_end() -> None:
    law = Attention(np.eye(2), np.eye(2), -np.eye(2))
    ones = np.ones((3, 2))
    near = Event(lambda tokens, time: float(tokens.points.norm()) - 0.01, "near zero")
    run = flow(law, Tokens(np.stack([0.1 * ones, ones])), until=8.0, save=8, events=(near,))
    assert run.outcomes[0].time < run.outcomes[1].time
    view = run.rescaled()
    torch.testing.assert_close(view.points[-1, 0], view.final.points[0])
    torch.testing.assert_close(view.final.points[0], run.final.points[0] * math.exp(run.outcomes[0].time))


def test_what_cannot_be_rescaled_says_why() -> None:
    with pytest.raises(UnsupportedError, match="one head"):
        Rescaled(Attention.random(4, 2))
    with pytest.raises(UnsupportedError, match="flat space"):
        flow(attention(), Tokens.uniform(4, 3), space=Sphere(), until=0.1).rescaled()
