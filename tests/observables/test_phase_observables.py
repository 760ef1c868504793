"""Observables of phase diagrams: close pairs, clusters at the scale of the kernel, entropy of their masses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError, UnsupportedError


def circle(angles: torch.Tensor) -> torch.Tensor:
    return torch.stack((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize("weighted", [False, True])
def test_pair_fraction_counts_pairs(weighted: bool) -> None:
    generator = np.random.default_rng(3)
    points, masses = (
        generator.standard_normal((5, 9, 3)),
        generator.random((5, 9)) if weighted else np.full((5, 9), 1 / 9),
    )
    units = points / np.linalg.norm(points, axis=-1, keepdims=True)
    wanted = []
    for x, m in zip(units, masses, strict=True):
        pairs = [(m[i] * m[j], float(x[i] @ x[j] > 0.3)) for i in range(9) for j in range(9) if i != j]
        wanted.append(sum(w * close for w, close in pairs) / sum(w for w, _ in pairs))
    tokens = at.Tokens(points, masses if weighted else None)
    np.testing.assert_allclose(at.pair_fraction(tokens, threshold=0.3).numpy(), wanted, rtol=1e-13)
    with pytest.raises(InputError, match="between -1 and 1"):
        at.pair_fraction(tokens, threshold=1.5)


def test_blocks_of_pairs_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = at.Tokens.gaussian(11, 3, seed=1, ensemble=(3, 2))
    law = at.Attention.isotropic(3, 4.0)
    wanted = at.pair_fraction(tokens, threshold=0.2), at.kernel_clusters(tokens, law)
    monkeypatch.setattr("attractor.observables.geometry.PAIRS", 40)
    monkeypatch.setattr("attractor.observables.clustering.PAIRS", 40)
    assert torch.equal(at.pair_fraction(tokens, threshold=0.2), wanted[0])
    assert torch.equal(at.kernel_clusters(tokens, law), wanted[1])


@pytest.mark.theorem
@pytest.mark.parametrize("beta", [4.0, 25.0, 100.0])
def test_two_points_are_two_clusters_beyond_two_widths(beta: float) -> None:
    """The density of two equal Gaussians of width s has two maxima exactly if they are more than 2 s apart."""
    law = at.Attention.isotropic(2, beta)
    for factor, wanted in ((0.99, 1), (1.01, 2)):
        half = math.asin(factor / beta**0.5)  # half the angle of a chord of two widths, 2 / sqrt(beta)
        tokens = at.Tokens(circle(torch.tensor([-half, half], dtype=torch.float64)))
        assert int(at.kernel_clusters(tokens, law)) == wanted


def test_uniform_tokens_are_not_one_cluster() -> None:
    """A thousand tokens on the circle: single linkage joins them all, the kernel's width does not."""
    tokens = at.Tokens.uniform(1000, 2, seed=0)
    assert int(at.clusters(tokens)) == 1
    counts = [int(at.kernel_clusters(tokens, at.Attention.isotropic(2, beta))) for beta in (1.0, 9.0, 81.0)]
    assert 1 < counts[1] < counts[2] < 100


def test_the_count_agrees_with_the_tokens_that_have_merged() -> None:
    """Once clusters have formed, peaks of the kernel's density are the points that tokens have merged to."""
    beta = torch.linspace(2.0, 20.0, 60, dtype=torch.float64)
    root = beta.sqrt()[:, None, None, None] * torch.eye(2, dtype=torch.float64)
    law = at.Attention(root, root, torch.eye(2, dtype=torch.float64).expand(60, 1, 2, 2))
    run = at.flow(law, at.Tokens.uniform(24, 2, seed=1, ensemble=60), space="sphere", until=200.0, save=[200.0])
    peaks, points = run.observe(at.kernel_clusters)[0], run.observe(at.clusters, radius=1e-6)[0]
    assert float((peaks == points).double().mean()) > 0.95
    assert len(peaks.unique()) > 2


def test_entropy_of_cluster_masses() -> None:
    tokens = at.Tokens(circle(torch.tensor([0.0, 0.01, 1.0, 2.0], dtype=torch.float64)), [0.25, 0.25, 0.3, 0.2])
    wanted = -sum(p * math.log(p) for p in (0.5, 0.3, 0.2))
    assert float(at.cluster_entropy(tokens)) == pytest.approx(wanted, rel=1e-14)
    assert float(at.cluster_entropy(at.Tokens(torch.ones(3, 2)))) == 0.0


def test_kernels_without_a_width() -> None:
    tokens = at.Tokens.uniform(5, 2)
    with pytest.raises(UnsupportedError, match="radius"):
        at.kernel_clusters(tokens, at.Attention.isotropic(2, 1.0, kernel="linear"))
    with pytest.raises(InputError, match="kernel_clusters"):
        at.kernel_clusters(tokens)
    with pytest.raises(InputError, match="widths"):
        at.kernel_clusters(tokens, at.Attention.isotropic(2, 1.0), widths=0.0)
    assert int(at.kernel_clusters(tokens, at.Attention.isotropic(2, 1e4, kernel="l2"))) == 5
