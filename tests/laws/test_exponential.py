"""The shifted exponential kernel: the plain one in another unit of time, for any beta."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from attractor import Attention, Exponential, Sphere, Tokens, energy, flow
from attractor.engines import using
from attractor.errors import InputError, UnsupportedError
from attractor.laws import has_kernel
from attractor.meanfield import free_energy
from attractor.observables import energy_rate
from attractor.states import Density

BETA = 3.0
PLAIN = Attention.isotropic(3, BETA, kernel="exponential")
SHIFTED = Attention.isotropic(3, BETA, kernel=Exponential(shift=BETA))
TOKENS = Tokens.uniform(24, 3, seed=1, masses=np.random.default_rng(0).dirichlet(np.ones(24)))
UNIT = math.exp(-BETA)


@pytest.mark.theorem
def test_it_is_the_plain_kernel_in_another_unit_of_time() -> None:
    torch.testing.assert_close(SHIFTED.velocity(TOKENS), UNIT * PLAIN.velocity(TOKENS), rtol=1e-13, atol=0)
    options = {"space": Sphere(), "save": 4, "rtol": 1e-10, "atol": 1e-12}
    slow, fast = flow(SHIFTED, TOKENS, until=2.0, **options), flow(PLAIN, TOKENS, until=2.0 * UNIT, **options)
    torch.testing.assert_close(slow.points, fast.points, rtol=0, atol=1e-9)
    torch.testing.assert_close(energy(TOKENS, SHIFTED), UNIT * energy(TOKENS, PLAIN), rtol=1e-12, atol=0)
    rates = energy_rate(TOKENS, SHIFTED, Sphere()), UNIT**2 * energy_rate(TOKENS, PLAIN, Sphere())
    torch.testing.assert_close(*rates, rtol=1e-12, atol=0)


@pytest.mark.parametrize("engine", ["reference", "fused", "blockwise"])
def test_weights_beyond_the_range_of_floats_are_those_of_the_formula(engine: str) -> None:
    beta = 4000.0
    law = Attention.isotropic(2, beta, kernel=Exponential(shift=beta))
    angles = torch.linspace(0.0, 0.1, 6, dtype=torch.float64)
    points = torch.stack((angles.cos(), angles.sin()), dim=-1)
    weights = torch.exp(beta * (torch.cos(angles[:, None] - angles) - 1.0)) / 6
    with using(engine):
        torch.testing.assert_close(law.velocity(Tokens(points)), weights @ points, rtol=1e-9, atol=1e-14)
    run = flow(law, Tokens(points), space=Sphere(), until=1.0)
    assert bool(run.points.isfinite().all())
    assert run.outcome.name in ("reached", "consensus", "steady")


def test_statements_about_the_plain_kernel_do_not_apply() -> None:
    """A shift changes the unit of time, and with it critical noise, free energy and logarithmic time."""
    assert has_kernel(PLAIN, "exponential")
    assert not has_kernel(SHIFTED, "exponential")
    with pytest.raises(UnsupportedError, match="exponential\\(shift=3"):
        flow(SHIFTED, TOKENS, space=Sphere(), method="clusters", until=1.0)
    circle = Attention.isotropic(2, BETA, kernel=Exponential(shift=BETA))
    with pytest.raises(UnsupportedError):
        free_energy(circle, Density.uniform(64), 0.1)


def test_a_shift_is_a_number() -> None:
    with pytest.raises(InputError, match="finite shift"):
        Exponential(shift=math.inf)
