"""Runs at the edges of floating-point numbers end with the last finite state, and no saved state is NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError
from attractor.laws import Affine, Attention, Block, LayerNorm, RMSNorm
from attractor.states import Tokens, split_scale, vector_norm

METHODS: tuple[dict[str, Any], ...] = (
    {},
    {"method": "dopri5"},
    {"engine": "reference"},
    {"method": "euler", "step": 0.25},
    {"method": "rk4", "step": 0.25},
    {"method": "layers", "step": 0.25},
    {"method": "dopri5", "step": 0.25, "adaptive": False},
)
SAVES = (None, 3, [0.0, 0.1, 0.9, 1.0])


@pytest.mark.parametrize("norm", [RMSNorm(), LayerNorm(), RMSNorm(bias=torch.ones(3))])
@pytest.mark.parametrize("placement", ["pre", "post", "peri"])
def test_a_block_whose_values_vanish(placement: str, norm: Any) -> None:
    """V = 0: attention adds nothing, and its norm is the bias. The start was saved as NaN."""
    law = Attention(torch.eye(3), torch.eye(3), torch.zeros(3, 3))
    block = Block(law, placement=placement, norms=norm)
    start = Tokens(norm(Tokens.gaussian(4, 3, seed=1).points))
    bias = torch.zeros(3) if norm.bias is None or placement != "peri" else norm.bias
    for method in METHODS:
        if method.get("method") == "layers" and placement == "post" and norm.bias is not None:
            continue  # its layer N(x) is not the identity on the image of N
        for save in SAVES if method.get("method") != "layers" else (None,):
            run = at.flow(block, start, until=1.0, save=save, stop=(), **method)
            assert run.outcome.name == "reached"
            expected = start.points + run.times.view(-1, 1, 1) * bias
            torch.testing.assert_close(run.points, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_field_that_is_not_finite_at_the_start(method: dict[str, Any]) -> None:
    """The exponential kernel overflows: the start is saved, and the message does not advise a smaller step."""
    law = Attention(40.0 * torch.eye(2), 40.0 * torch.eye(2), torch.eye(2), kernel="exponential")
    start = Tokens.uniform(5, 2, seed=0)
    for space in ("euclidean", "sphere"):
        run = at.flow(law, start, until=1.0, space=space, **method)
        assert run.outcome.name == "stalled"
        assert run.outcome.time == 0.0
        assert "velocities are not finite here" in run.outcome.message or method.get("method") == "layers"
        torch.testing.assert_close(run.points, start.points.expand_as(run.points), rtol=0, atol=1e-15)
        torch.testing.assert_close(run.final.points, start.points, rtol=0, atol=1e-15)


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("method", METHODS[3:])
def test_fixed_steps_that_overflow(method: dict[str, Any], save: Any) -> None:
    """x' = 1e200 x: the first steps overflow. Every saved state is finite and lies before the end."""
    if method["method"] == "layers" and save is not None:
        save = 4
    run = at.flow(
        Affine(1e200 * torch.eye(2, dtype=torch.float64)), Tokens.uniform(3, 2), until=1.0, save=save, stop=(), **method
    )
    assert run.outcome.name in ("stalled", "diverged", "blow_up")
    assert torch.isfinite(run.points).all()
    assert torch.isfinite(run.final.points).all()


@pytest.mark.parametrize("engine", [None, "reference"])
@pytest.mark.parametrize("size", [1e-250, 1e-170, 1.0, 1e60])
def test_linear_flows_of_any_size(size: float, engine: str | None) -> None:
    """x' = A x from s x(0) is s times the flow from x(0), with an absolute tolerance that scales too."""
    rng = np.random.default_rng(2)
    A = rng.standard_normal((3, 3)) - 2.0 * np.eye(3)
    law = Attention(torch.zeros(3, 3), torch.zeros(3, 3), torch.from_numpy(A), mask=torch.eye(4, dtype=torch.bool))
    start = torch.from_numpy(rng.standard_normal((4, 3)))
    run = at.flow(law, Tokens(size * start), until=2.0, save=4, stop=(), atol=1e-300, engine=engine)
    from scipy.linalg import expm

    for time, points in zip(run.times, run.points, strict=True):
        expected = start @ torch.from_numpy(expm(float(time) * A)).mT
        torch.testing.assert_close(points / size, expected, rtol=1e-6, atol=1e-9)


def test_lengths_of_any_size() -> None:
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((6, 4)))
    sizes = torch.tensor([1e-310, 1e-300, 1e-160, 1.0, 1e160, 1e300], dtype=torch.float64).unsqueeze(-1)
    expected = sizes.squeeze(-1) * torch.linalg.vector_norm(x, dim=-1)
    torch.testing.assert_close(vector_norm(sizes * x), expected, rtol=1e-12, atol=0)
    assert torch.equal(vector_norm(x), torch.linalg.vector_norm(x, dim=-1))
    assert torch.equal(vector_norm(0 * x), torch.zeros(6, dtype=torch.float64))
    assert vector_norm(torch.tensor([torch.inf, 1.0])) == torch.inf
    assert torch.isnan(vector_norm(torch.tensor([torch.nan, 1.0])))
    unit, scale = split_scale(1e-200 * x)
    assert torch.equal(unit * scale, 1e-200 * x)
    assert 1.0 <= float(unit.abs().max()) < 2.0


@pytest.mark.parametrize("name", ["diameter", "sharpness", "cosine", "effective_rank", "consensus_gap", "token_norm"])
def test_observables_of_any_size(name: str) -> None:
    tokens = Tokens.gaussian(7, 3, seed=4)
    plain = at.observables.find_observable(name)(tokens)
    grows = name in ("diameter", "consensus_gap", "token_norm")
    for size in (1e-170, 1e-300, 1e170, 1e300):
        found = at.observables.find_observable(name)(Tokens(size * tokens.points))
        torch.testing.assert_close(found, size * plain if grows else plain, rtol=1e-12, atol=0)


def test_a_fixed_step_whose_interpolant_overflows_has_failed() -> None:
    """The end of the step is finite, a coefficient of the interpolant is not."""

    class Pulse(at.Law):
        """x' = 1e307 sin(40 t): the sums of stages overflow, their end does not."""

        autonomous = False

        def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> torch.Tensor:
            return torch.full_like(tokens.points, 1e307 * np.sin(40.0 * time))

    run = at.flow(Pulse(), at.Tokens(np.ones((1, 1))), until=1.0, method="dop853", step=1.0, adaptive=False, stop=())
    assert not bool(torch.isnan(run.points).any())
    assert bool(torch.isfinite(run.final.points).all())


def test_positions_that_overflow_are_an_error() -> None:
    """A table in float64 whose sum with float32 tokens is infinite."""
    table = at.Absolute(torch.full((3, 2), 1e150, dtype=torch.float64), when="input")
    law = at.Attention.isotropic(2, 1.0, positions=table)
    with pytest.raises(InputError, match="leave the numbers of float32"):
        at.flow(law, at.Tokens.uniform(3, 2, dtype=torch.float32), until=1.0)


def test_scores_that_overflow_are_not_symmetric() -> None:
    """Q'K = infinity everywhere equals its transpose, and has no eigenvalues: fuzz seed 710644 raised LinAlgError."""
    one = torch.eye(2, dtype=torch.float64)
    law = Attention(1e200 * one, 1e200 * one, one, kernel="sinkhorn")
    assert not law._symmetric_scores
    spread = Attention(1e200 * torch.ones_like(one), 1e200 * torch.ones_like(one), one, kernel="sinkhorn")
    assert not spread._symmetric_scores


def test_an_adaptive_step_with_infinite_slopes_inside_is_rejected() -> None:
    """Fuzz seed 717923: slopes for dense output were not finite, and states saved inside the step were NaN."""
    calls: list[float] = []

    class Hole(at.Law):
        """x' = 1, and infinite in a short interval that contains no stage of the step itself."""

        autonomous = False

        def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> torch.Tensor:
            calls.append(time)
            return torch.full_like(tokens.points, np.inf if 0.0999 < time < 0.1001 else 1.0)

    save = [0.3 * k / 7 for k in range(8)]
    run = at.flow(Hole(), at.Tokens(np.ones((1, 1))), until=1.0, method="dop853", step=1.0, save=save, stop=())
    assert 0.1 in calls  # the first slope of dense output
    assert bool(torch.isfinite(run.points).all())
    assert run.points.flatten().tolist() == pytest.approx([1.0 + time for time in save])
