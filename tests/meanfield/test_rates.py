"""Measured rates: the protocols of T1 and T15, slopes and their intervals, the diagnostic of T2."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from attractor import L2, Attention, Gaussian, Tokens
from attractor.errors import InputError, UnsupportedError
from attractor.meanfield import measure_rates
from attractor.meanfield.convergence import fit_slope
from attractor.observables.energies import tilt


def disc(n: int, seed: int, ensemble: int) -> Tokens:
    return Tokens.sample("ball", n, 2, seed, ensemble=ensemble)


@pytest.mark.theorem
def test_two_samples_of_a_compact_law() -> None:
    """T15: in the plane all five distances fall like n^-1/2."""
    law = Attention.random(2, seed=1)
    found = measure_rates(law, disc, until=1.0, sizes=(50, 150, 450), repeats=16, against="pair")
    for name, slope in found.slopes.items():
        assert -0.65 <= slope.value <= -0.35, name
        assert slope.low < slope.value < slope.high


@pytest.mark.theorem
@pytest.mark.parametrize("kernel", ["softmax", "l2"])
def test_moments_of_tokens_approach_the_closure(kernel: str) -> None:
    """T1: whitened samples; 48 repeats, because slopes of 12 still scatter by 0.1."""
    law = Attention.random(2, seed=2, scale=0.6, kernel=kernel)
    start = Gaussian(np.array([0.3, -0.2]), np.array([[0.5, 0.1], [0.1, 0.3]]))
    options = {"measures": ("mean", "covariance"), "rtol": 1e-4, "method": "dopri5"}
    found = measure_rates(law, start, until=0.4, sizes=(100, 1600), repeats=48, **options)
    for name, slope in found.slopes.items():
        assert -0.7 <= slope.value <= -0.35, name
        assert found.rms(name)[-1] < 4e-3
    assert found.tilt.max() < 0.4


def test_linear_attention_is_closed_at_every_n() -> None:
    law = Attention.random(2, seed=0, kernel="linear")
    start = Gaussian(np.array([0.3, -0.2]), 0.4 * np.eye(2))
    found = measure_rates(
        law, start, until=0.5, sizes=(5, 20), repeats=2, measures=("mean", "covariance"), rtol=1e-12, atol=1e-14
    )
    assert max(float(found.rms(name).max()) for name in found.errors) < 1e-12


def test_a_larger_system_stands_for_the_limit() -> None:
    law = Attention.random(2, seed=1, kernel="sigmoid")
    found = measure_rates(law, disc, until=0.5, sizes=(20, 80), repeats=6, against=640, measures=("w2", "energy"))
    assert found.errors["w2"].shape == (2, 6)
    assert all(slope.value < -0.2 for slope in found.slopes.values())


def test_a_power_is_found_and_its_interval_covers_it() -> None:
    generator, sizes = np.random.default_rng(0), np.array([100.0, 400.0, 1600.0])
    covered = 0
    for _ in range(400):
        errors = sizes[:, None] ** -0.5 * np.abs(generator.standard_normal((3, 12)))
        slope = fit_slope(sizes, errors)
        covered += slope.low <= -0.5 <= slope.high
    assert 0.90 <= covered / 400 <= 0.98
    exact = fit_slope(sizes, np.repeat(sizes[:, None] ** -0.7, 2, axis=1))
    assert exact.value == exact.low == exact.high == pytest.approx(-0.7, abs=1e-12)
    assert np.isnan(fit_slope(sizes, np.zeros((3, 2))).value)
    assert np.isnan(fit_slope(sizes, np.ones((3, 1))).low)


def test_scores_that_spread_too_far_are_noted() -> None:
    law = Attention.isotropic(1, 1.0)
    start = Gaussian(np.zeros(1), np.array([[0.4]]))
    found = measure_rates(law, start, until=0.5, sizes=(20, 40), repeats=6, measures=("mean",))
    closed = 0.4 / (1 - 2 * 0.4 * found.tilt_times)
    np.testing.assert_allclose(found.tilt, closed, rtol=1e-4)
    assert len(found.notes) == 1
    assert "0.5 or more from t =" in found.notes[0]
    bounded = Attention(law.query, law.key, law.value, kernel=L2())
    assert measure_rates(bounded, start, until=0.5, sizes=(20, 40), repeats=6, measures=("mean",)).notes == ()


def test_tilt_is_that_of_the_symmetric_root() -> None:
    law, state = Attention.random(3, heads=3, seed=2, scale=-0.7), Gaussian(np.zeros(3), np.diag([1.0, 2.0, 0.0]))
    root = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64).sqrt())
    A = -0.7 * law.key.mT @ law.query
    wanted = torch.linalg.svdvals(root @ A @ root)[..., 0]
    torch.testing.assert_close(tilt(state, law), wanted)
    assert tilt(Tokens.gaussian(9, 3, ensemble=4), law).shape == (4, 3)


def test_refusals() -> None:
    law, start = Attention.isotropic(2, 1.0), Gaussian(np.zeros(2), np.eye(2))
    with pytest.raises(InputError, match="increasing"):
        measure_rates(law, start, until=0.1, sizes=(40, 20))
    with pytest.raises(InputError, match="it gave"):
        measure_rates(law, lambda n, seed, ensemble: Tokens.gaussian(n, 2), until=0.1, sizes=(20, 40), against="pair")
    with pytest.raises(InputError, match="got Tokens"):
        measure_rates(law, Tokens.gaussian(5, 2), until=0.1, sizes=(20, 40))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="belongs to a Gaussian start"):
        measure_rates(law, disc, until=0.1, sizes=(20, 40))
    with pytest.raises(InputError, match="'distance' is not known"):
        measure_rates(law, start, until=0.1, sizes=(20, 40), measures=("distance",))
    with pytest.raises(InputError, match="larger than 40"):
        measure_rates(law, start, until=0.1, sizes=(20, 40), against=30)
    with pytest.raises(InputError, match="out of reach"):
        measure_rates(law, start, until=0.1, sizes=(20, 40_000))
    with pytest.raises(UnsupportedError, match="not affine"):
        measure_rates(Attention.isotropic(2, 1.0, kernel="sigmoid"), start, until=0.1, sizes=(20, 40), repeats=1)
    with pytest.raises(InputError, match="the Gaussian does not reach t = 3"):
        measure_rates(law, start, until=3.0, sizes=(20, 40), repeats=1, measures=("mean",))


def test_the_picture(tmp_path: Path) -> None:
    law = Attention.random(2, seed=1)
    found = measure_rates(law, disc, until=0.2, sizes=(10, 20), repeats=2, against="pair")
    assert found.plot(tmp_path / "rates.svg") == tmp_path / "rates.svg"
    assert "slope" in (tmp_path / "rates.svg").read_text() or (tmp_path / "rates.svg").stat().st_size > 10_000
    figure = found.plot()
    assert [axes.get_title().split("\n")[0] for axes in figure.axes] == [
        "W2",
        "sliced W2",
        "energy distance",
        "mean",
        "covariance",
    ]
    assert "slope" in figure.axes[0].get_title()
