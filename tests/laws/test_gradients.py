"""Gradients through tokens and every parameter are those of finite differences, for each kernel and each engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad, gradcheck

import attractor as at
from attractor.engines import using
from attractor.laws import (
    L2,
    MLP,
    Absolute,
    Affine,
    Attention,
    Block,
    Exponential,
    Kernel,
    LayerNorm,
    Linear,
    Rotary,
    Schedule,
    Sigmoid,
    Sinkhorn,
    Softmax,
)
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens

KERNELS: tuple[Kernel, ...] = (Softmax(), L2(), Sinkhorn(3.0), Sigmoid(-0.4), Exponential(), Linear())
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def leaves(*shapes: tuple[int, ...], seed: int = 0, size: float = 0.6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [(size * tensor).requires_grad_() for tensor in drawn]


def check(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    assert gradcheck(function, inputs, eps=1e-6, atol=1e-7, rtol=1e-6)


@every_kernel
def test_tokens_and_masses(kernel: Kernel) -> None:
    query, key, value = (part.detach() for part in leaves((2, 2, 3), (2, 2, 3), (2, 3, 3)))
    law = Attention(query, key, value, kernel=kernel)
    (points,) = leaves((4, 3), seed=1, size=1.0)
    (masses,) = leaves((4,), seed=2)
    check(lambda x, m: law.velocity(Tokens(x, masses=m)), [points, masses.detach().abs().add(0.1).requires_grad_()])


@every_kernel
def test_every_parameter(kernel: Kernel) -> None:
    """Query, key, value, output and all biases at once."""
    (points,) = leaves((3, 3), seed=1, size=1.0)
    shapes = ((2, 2, 3), (2, 2, 3), (2, 2, 3), (2, 3, 2), (2, 2), (2, 2), (2, 2), (3,))
    names = ("query", "key", "value", "output", "query_bias", "key_bias", "value_bias", "output_bias")

    def velocity(*parts: Tensor) -> Tensor:
        law = Attention(**dict(zip(names, parts, strict=True)), kernel=kernel, mask="causal")
        return law.velocity(Tokens(points.detach(), masses=[0.2, 0.5, 0.3]))

    check(velocity, leaves(*shapes))


@every_kernel
def test_parameters_at_a_symmetric_point(kernel: Kernel) -> None:
    """Q = K = I, V = I, orthonormal tokens: shortcuts for isotropic laws must not leak into gradients."""
    identity = [torch.eye(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    check(lambda q, k, v, x: Attention(q, k, v, kernel=kernel).velocity(Tokens(x)), identity)


@every_kernel
def test_tokens_of_an_isotropic_law(kernel: Kernel) -> None:
    law = Attention.isotropic(3, 1.5, kernel=kernel)
    check(lambda x: law.velocity(Tokens(x)), [torch.eye(3, dtype=torch.float64, requires_grad=True)])


@every_kernel
def test_positions(kernel: Kernel) -> None:
    """The absolute table, and tokens that turn with their place."""
    query, key, value, points = (part.detach() for part in leaves((2, 3), (2, 3), (3, 3), (4, 3)))
    (table,) = leaves((5, 3), seed=3)
    law = Attention(query, key, value, kernel=kernel)
    places = [0.0, 2.0, 2.0, 4.0]
    for on in ("qkv", "qk"):
        check(
            lambda t, on=on: replace(law, positions=Absolute(t, on=on)).velocity(Tokens(points, positions=places)),
            [table],
        )
    turned = replace(law, positions=Rotary(10.0))
    check(lambda x: turned.velocity(Tokens(x)), [points.clone().requires_grad_()])


@every_kernel
def test_through_the_blocks_of_an_engine(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.engines.blockwise.QUERIES", 2)
    monkeypatch.setattr("attractor.engines.blockwise.PAIRS", 6)
    query, key, value = (part.detach() for part in leaves((2, 3), (2, 3), (3, 3)))
    law = Attention(query, key, value, kernel=kernel, mask="causal")
    with using("blockwise"):
        check(lambda x: law.velocity(Tokens(x)), leaves((5, 3), seed=1, size=1.0))


def test_sinkhorn_with_members_and_a_zero_mass() -> None:
    """The derivative of the potentials is solved for lane by lane; a passenger has one too."""
    query, key, value = leaves((2, 2, 2, 3), (2, 2, 2, 3), (2, 2, 3, 3))
    (points,) = leaves((2, 3, 3), seed=4, size=1.0)
    masses = torch.tensor([[0.2, 0.0, 0.8], [1.0, 2.0, 0.5]], dtype=torch.float64)

    def velocity(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return Attention(q, k, v, kernel=Sinkhorn(3.0)).velocity(Tokens(x, masses=masses))

    check(velocity, [points, query, key, value])


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "tanh", "identity", "relu"])
def test_feedforward(activation: str) -> None:
    points, w1, b1, w2, b2, gate = leaves((2, 3), (4, 3), (4,), (3, 4), (3,), (4, 3))
    check(
        lambda x, *parts: MLP(*parts[:4], activation=activation, gate=parts[4]).velocity(Tokens(x)),
        [points, w1, b1, w2, b2, gate],
    )
    matrix, offset = leaves((3, 3), (3,))
    check(lambda x, m, c: Affine(m, c).velocity(Tokens(x)), [points, matrix, offset])


@pytest.mark.parametrize("placement", ["pre", "post", "peri"])
def test_norms_inside_a_block(placement: str) -> None:
    points, query, key, value, gain, bias, w1, w2 = leaves((3, 4), (2, 4), (2, 4), (4, 4), (4,), (4,), (5, 4), (4, 5))

    def block(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, first: Tensor, second: Tensor) -> Block:
        norm = LayerNorm(1.0 + 0.2 * g, b, eps=1e-3)
        return Block(Attention(q, k, v), MLP(first, None, second), placement, norm)  # type: ignore[arg-type]

    parameters = [query, key, value, gain, bias, w1, w2]
    check(lambda x, *parts: block(*parts).velocity(Tokens(x)), [points, *parameters])
    check(lambda x, *parts: block(*parts).layer(Tokens(x), 0.7, Sphere()), [points, *parameters])


def test_ellipsoid() -> None:
    """Tangent, retraction and W-norm as functions of the point, the vector and the matrix."""
    points, vectors, factor = leaves((3, 4), (3, 4), (4, 4), size=1.0)

    def space(f: Tensor) -> Ellipsoid:
        return Ellipsoid(f @ f.mT + torch.eye(4, dtype=torch.float64))

    check(lambda x, v, f: space(f).tangent(x, v), [points, vectors, factor])
    check(lambda x, f: space(f).retract(x), [points, factor])
    check(lambda x, f: space(f).norm(x), [points, factor])
    check(lambda x, y, f: space(f).distance(space(f).retract(x), space(f).retract(y)), [points, vectors, factor])


def test_interpolated_parameters() -> None:
    points, first, second = leaves((3, 2), (2, 2), (2, 2))
    identity = torch.eye(2, dtype=torch.float64)

    def velocity(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        laws = [Attention(identity, identity, value) for value in (a, b)]
        return Schedule.interpolate([0.0, 1.0], laws).velocity(Tokens(x), 0.3)

    check(velocity, [points, first, second])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own use of it
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_forward_mode_at_a_multiple_of_the_identity(name: str) -> None:
    identity, tokens = torch.eye(3, dtype=torch.float64), at.Tokens.uniform(6, 3, seed=0)
    direction = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def velocity(matrix: torch.Tensor) -> torch.Tensor:
        parts = {"query": identity, "key": identity, "value": identity, name: matrix}
        return at.velocity(at.Attention(**parts), tokens)

    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(velocity(forward_ad.make_dual(2 * identity, direction))).tangent
    step = 1e-6 * direction
    expected = (velocity(2 * identity + step) - velocity(2 * identity - step)) / 2e-6
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
