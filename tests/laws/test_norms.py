"""Norms are those of torch, and their tangent projections those of their images."""

from __future__ import annotations

import mpmath
import pytest
import torch

from attractor.errors import InputError
from attractor.laws import LayerNorm, Norm, RMSNorm


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_layernorm_is_torchs(eps: float) -> None:
    theirs = torch.nn.LayerNorm(8, eps=eps, dtype=torch.float64)
    torch.nn.init.normal_(theirs.weight)
    torch.nn.init.normal_(theirs.bias)
    x = 3 * draw(4, 5, 8) + 1
    ours = LayerNorm(theirs.weight.detach(), theirs.bias.detach(), eps)
    torch.testing.assert_close(ours(x), theirs(x).detach(), rtol=0, atol=1e-13)
    plain = torch.nn.functional.layer_norm(x, (8,), eps=eps)
    torch.testing.assert_close(LayerNorm(eps=eps)(x), plain, rtol=0, atol=1e-13)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_rmsnorm_is_torchs(eps: float) -> None:
    theirs = torch.nn.RMSNorm(8, eps=eps, dtype=torch.float64)
    torch.nn.init.normal_(theirs.weight)
    x = 3 * draw(4, 5, 8) + 1
    torch.testing.assert_close(RMSNorm(theirs.weight.detach(), eps=eps)(x), theirs(x).detach(), rtol=0, atol=1e-13)


@pytest.mark.theorem
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_tangent_is_a_projection_onto_velocities_of_the_image(kind: type[Norm]) -> None:
    """Any curve N(y(t)) has a velocity that the projection keeps; and it projects: P P = P."""
    gain, bias = draw(6).abs() + 0.5, draw(6)
    norm = kind(gain, bias)
    y, w, v = draw(3, 6), 2 * draw(3, 6).flip(0), draw(3, 6).flip(1)
    x, velocity = torch.autograd.functional.jvp(norm, y, w)
    torch.testing.assert_close(norm.tangent(x, velocity), velocity, rtol=0, atol=1e-13)
    once = norm.tangent(x, v)
    torch.testing.assert_close(norm.tangent(x, once), once, rtol=0, atol=1e-13)


@pytest.mark.theorem
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_at_unit_gain_the_tangent_projection_is_the_derivative_of_the_norm(kind: type[Norm]) -> None:
    norm = kind()
    x, v = norm(draw(3, 6)), draw(3, 6).flip(1)
    _, derivative = torch.autograd.functional.jvp(norm, x, v)
    torch.testing.assert_close(norm.tangent(x, v), derivative, rtol=0, atol=1e-14)


def test_norms_refuse_bad_parameters() -> None:
    with pytest.raises(InputError, match=r"gain has shape \(d,\), got \(2, 2\)"):
        LayerNorm(torch.eye(2))
    with pytest.raises(InputError, match="bias holds NaN at index"):
        RMSNorm(None, [0.0, float("nan")])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"eps must not be negative, got -1"):
        RMSNorm(eps=-1.0)
    flat = LayerNorm([1.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="zero gain flattens a coordinate"):
        flat.tangent(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(InputError, match=r"gain has shape \(3,\).*bias.*\(2,\)"):
        LayerNorm([1.0, 2.0, 3.0], [1.0, 2.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("eps", [0.0, 1e-300, 1e-5])
@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_norms_of_vectors_of_any_size(kind: type[Norm], size: float, eps: float) -> None:
    """Squares overflow or underflow; the norm does not."""
    norm, x = kind(gain=draw(5), bias=draw(5), eps=eps), draw(4, 5)
    exact = []
    with mpmath.workdps(700):
        for row in (size * x).tolist():
            row = [mpmath.mpf(entry) for entry in row]
            mean = mpmath.fsum(row) / 5 if kind is LayerNorm else 0
            root = mpmath.sqrt(mpmath.fsum((entry - mean) ** 2 for entry in row) / 5 + mpmath.mpf(eps))
            exact.append([float((entry - mean) / root) for entry in row])
    expected = torch.tensor(exact, dtype=torch.float64) * norm.gain + norm.bias
    torch.testing.assert_close(norm(size * x), expected, rtol=1e-13, atol=1e-13)
    mixed = torch.stack((size * x[0], x[1]))  # rows of the usual size keep their bits
    assert torch.equal(norm(mixed)[1], norm(x)[1])


@pytest.mark.parametrize("kind", [RMSNorm, LayerNorm])
def test_the_norm_of_zero_is_its_bias(kind: type[Norm]) -> None:
    """The limit of a small eps, without which it is 0/0."""
    zero, bias = torch.zeros(3, 5, dtype=torch.float64), draw(5)
    for eps in (0.0, 1e-300, 1e-5):
        assert torch.equal(kind(gain=draw(5), bias=bias, eps=eps)(zero), bias.expand(3, 5))
        assert torch.equal(kind(eps=eps)(zero), zero)
    assert torch.equal(LayerNorm()(torch.full((2, 1), 3.0)), torch.zeros(2, 1))  # one coordinate, less its mean


def test_scaled_norms_have_derivatives() -> None:
    norm, x = LayerNorm(gain=draw(5), eps=1e-5), draw(4, 5)
    jacobian = torch.func.vmap(torch.func.jacrev(norm))(x)
    expected = torch.stack([torch.autograd.functional.jacobian(norm, row) for row in x])
    torch.testing.assert_close(jacobian, expected)
    assert torch.autograd.gradcheck(norm, x.requires_grad_())
