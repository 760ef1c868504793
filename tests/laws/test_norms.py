"""Norms are those of torch, and their tangent projections those of their images."""

from __future__ import annotations

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
