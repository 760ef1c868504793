"""Tokens near and past the time at which their Gaussian is infinite, and densities along the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attractor import Attention, Gaussian, Tokens, flow
from attractor.errors import InputError, UnsupportedError
from attractor.meanfield import plot_densities, simulate_past_blow_up
from attractor.meanfield.perturbations import support_bound, support_radius
from attractor.plotting.covariances import kernel_estimate


def half(dim: int = 1) -> Gaussian:
    return Gaussian(np.zeros(dim), 0.5 * np.eye(dim))


def test_tokens_survive_the_blow_up() -> None:
    """d = 1, v = a = 1, variance 1/2: T* = 1 and the Gaussian has variance 0.5 / (1 - t)."""
    found = simulate_past_blow_up(Attention.isotropic(1, 1.0), half(), sizes=(50, 200), repeats=3)
    assert found.blow_up == pytest.approx(1.0, rel=1e-7)
    before = found.times < 1 - 1e-6
    np.testing.assert_allclose(found.gaussian[before], 0.5 / (1 - found.times[before]), rtol=1e-5)
    assert np.isinf(found.gaussian[~before]).all()
    assert np.isfinite(found.variance).all()
    at = int(np.abs(found.times - 1.0).argmin())
    assert ((found.variance[:, :, at] > 0.5) & (found.variance[:, :, at] < 20)).all()
    # T12: no token outruns the growth of the support
    reached = [float(support_radius(found.run.state(k))) for k in range(len(found.times))]  # type: ignore[arg-type]
    assert np.all(np.array(reached) <= support_bound(Attention.isotropic(1, 1.0), reached[0], found.times) * (1 + 1e-6))


def test_early_on_tokens_are_the_gaussian() -> None:
    found = simulate_past_blow_up(Attention.isotropic(1, 1.0), half(), sizes=(1500,), repeats=4, shares=(0.1, 0.3, 1.1))
    np.testing.assert_allclose(found.median[0, :2], found.gaussian[:2], rtol=0.1)


def test_refusals() -> None:
    law = Attention.isotropic(1, 1.0)
    with pytest.raises(InputError, match="does not blow up"):
        simulate_past_blow_up(Attention.isotropic(1, -1.0), half(), sizes=(10,))
    with pytest.raises(InputError, match="between 0 and 1"):
        simulate_past_blow_up(law, half(), sizes=(10,), shares=(1.1,))
    with pytest.raises(InputError, match="at least 2"):
        simulate_past_blow_up(law, half(), sizes=(1,))
    with pytest.raises(InputError, match="one Gaussian"):
        simulate_past_blow_up(law, Tokens.gaussian(5, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_picture_of_the_blow_up(dim: int, tmp_path: Path) -> None:
    found = simulate_past_blow_up(
        Attention.isotropic(dim, 1.0), half(dim), sizes=(20, 40), repeats=2, shares=(0, 0.5, 0.9, 1.0, 1.1)
    )
    figure = found.plot()
    assert len(figure.axes) == (1 if dim == 3 else 6)
    assert found.plot(tmp_path / "past.png") == tmp_path / "past.png"


def test_a_kernel_estimate_is_a_density() -> None:
    generator = np.random.default_rng(0)
    x, weights = generator.standard_normal(4000), generator.random(4000)
    grid = np.linspace(-6, 6, 400)
    values = kernel_estimate(x, weights / weights.sum(), grid)
    assert np.trapezoid(values, grid) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(values, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), atol=0.03)


@pytest.mark.parametrize("dim", [1, 2])
def test_densities_along_a_run(dim: int, tmp_path: Path) -> None:
    """A Gaussian beside it is drawn while it exists, and not after its blow-up."""
    law, times = Attention.isotropic(dim, 1.0), [0.0, 0.4, 0.8, 1.2]
    run = flow(law, Tokens.sample("mixture:2", 60, dim, masses=np.arange(1.0, 61.0)), save=times)
    beside = flow(law, half(dim), save=times, until=1.2)
    figure = plot_densities(run, times=times, gaussian=beside)
    assert [axes.get_title() for axes in figure.axes] == ["t = 0", "t = 0.4", "t = 0.8", "t = 1.2"]
    dashed = [len(axes.lines) + len(axes.collections) for axes in figure.axes]
    assert dashed[0] == dashed[2] == dashed[3] + 1
    assert plot_densities(run, tmp_path / "density.svg", snapshots=2) == tmp_path / "density.svg"


def test_refusals_of_densities(tmp_path: Path) -> None:
    law = Attention.isotropic(3, 1.0)
    with pytest.raises(UnsupportedError, match="not in 3"):
        plot_densities(flow(law, Tokens.gaussian(5, 3), until=0.1))
    with pytest.raises(InputError, match=r"run\.member"):
        plot_densities(flow(law, Tokens.gaussian(5, 3, ensemble=2), until=0.1))
    with pytest.raises(InputError, match="one snapshot"):
        plot_densities(flow(Attention.isotropic(1, 1.0), Tokens.gaussian(5, 1), until=0.1), snapshots=0)
    with pytest.raises(InputError, match=r"\.png, \.pdf, \.svg"):
        plot_densities(flow(Attention.isotropic(1, 1.0), Tokens.gaussian(5, 1), until=0.1), tmp_path / "density.gif")
