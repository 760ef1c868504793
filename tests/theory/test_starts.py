"""Starts that are exceptions of theorems about almost every start."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attractor as at
from attractor.report.pages.theory import add_fates
from attractor.report.report import Report
from attractor.theory.starts import find_fibres, measure_rest, measure_symmetry

GOLDEN = (1 + 5**0.5) / 2


def unit(rows: list[list[float]] | Tensor) -> Tensor:
    points = torch.as_tensor(rows, dtype=torch.float64)
    return points / points.norm(dim=-1, keepdim=True)


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


TETRAHEDRON = unit([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
PRISM = unit([[*row, height] for row in circle(0, 120, 240).tolist() for height in (0.4, -0.4)])
PAIRS = circle(0, 120, 240, 10, 130, 250)  # two triangles: not at rest, but symmetric under thirds of a turn
UNEQUAL = circle(0, 0, 0, 120, 120, 120, 240, 240, 240)
EXCEPTIONS = {"tetrahedron": TETRAHEDRON, "prism": PRISM, "two triangles": PAIRS, "triangle of clusters": UNEQUAL}


@pytest.mark.theorem
@pytest.mark.parametrize("name", EXCEPTIONS)
@pytest.mark.parametrize("beta", [0.0, 1.0, 6.0])
def test_an_exceptional_start_is_not_promised_consensus(name: str, beta: float) -> None:
    """In any basis; the symmetric flow from there does not reach consensus, which its symmetries exclude."""
    points = EXCEPTIONS[name]
    turn = torch.linalg.qr(torch.randn(points.shape[1], points.shape[1], dtype=torch.float64))[0]
    law = at.Attention.isotropic(points.shape[1], beta)
    found = at.predict(law, at.Tokens(points @ turn), "sphere")
    assert "consensus" not in found.fates
    assert [item.theorem.key for item in found.exceptional] == [
        "consensus.clustering" if points.shape[1] == 3 else "consensus.clustering-circle"
    ]
    assert "exceptional start" in repr(found)
    run = at.flow(law, at.Tokens(points), space="sphere", until=2.0, stop=(), merge=False)
    assert float(run.final.points.mean(-2).norm()) < 1e-6  # type: ignore[union-attr]


@pytest.mark.theorem
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_a_start_beside_it_is_generic(name: str) -> None:
    points = EXCEPTIONS[name]
    push = torch.from_numpy(np.random.default_rng(0).standard_normal(tuple(points.shape)))
    law = at.Attention.isotropic(points.shape[1], 1.0)
    found = at.predict(law, at.Tokens(unit(points + 1e-4 * push)), "sphere")
    assert found.fates["consensus"]
    assert found.meanings["consensus"].endswith("from almost every start")
    assert not found.exceptional
    near = at.predict(law, at.Tokens(unit(points + 1e-11 * push)), "sphere")
    assert "consensus" not in near.fates  # rounding cannot tell it from the exception


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_single_precision_cannot_tell_a_start_from_an_exception(name: str) -> None:
    points = EXCEPTIONS[name]
    single = at.Tokens(points, dtype=torch.float32)
    found = at.predict(at.Attention.isotropic(points.shape[1], 1.0), single, "sphere")
    assert "consensus" not in found.fates
    assert found.exceptional


def test_random_starts_are_generic() -> None:
    for seed in range(5):
        for d, n in ((2, 6), (3, 4), (3, 30), (4, 64)):
            found = at.predict(at.Attention.isotropic(d, 2.0), at.Tokens.uniform(n, d, seed=seed), "sphere")
            assert not found.exceptional
            assert "consensus" in found.fates


def test_tokens_that_wait_are_not_called_at_rest() -> None:
    """At beta = 800 velocities are below 1e-300; the pull on each token is one-sided all the same."""
    points = unit([[1.0, 0.0, 0.0], [0.0, 1.0, 0.1], [0.3, -0.2, 1.0]])
    found = at.predict(at.Attention.isotropic(3, 800.0), at.Tokens(points), "sphere")
    assert not found.exceptional
    assert "consensus" in found.fates


def test_an_equilibrium_without_symmetry_is_an_exception() -> None:
    """Under beta = 0 all starts with mean zero rest, and of an odd number of tokens no two are opposite."""
    first = unit(torch.from_numpy(np.random.default_rng(5).standard_normal((2, 2))))
    third = -first.sum(0)  # of length below 2: split into two unit vectors with that sum
    half, across = third / 2, torch.stack((-third[1], third[0])) / third.norm()
    rest = (1 - half.square().sum()).sqrt() * across
    points = torch.cat((first, torch.stack((half + rest, half - rest)), circle(7, 127, 247)))
    assert float(points.sum(0).norm()) < 1e-14
    assert measure_symmetry(points) > 1e-3
    assert measure_rest(points, torch.zeros(1, 7, 7, dtype=torch.float64)) < 1e-14
    found = at.predict(at.Attention.isotropic(2, 0.0), at.Tokens(points), "sphere")
    (item,) = found.exceptional
    assert "no token moves" in str(item.exception)


def test_fibres_are_the_orbits_of_known_polyhedra() -> None:
    square = circle(0, 90, 180, 270)
    assert len(set(find_fibres((square @ square.mT).numpy()))) == 1
    icosahedron = unit(
        [[0, a, b * GOLDEN] for a in (1, -1) for b in (1, -1)]
        + [[a, b * GOLDEN, 0] for a in (1, -1) for b in (1, -1)]
        + [[b * GOLDEN, 0, a] for a in (1, -1) for b in (1, -1)]
    )
    assert len(set(find_fibres((icosahedron @ icosahedron.mT).numpy()))) == 1
    pyramid = torch.cat((circle(0, 120, 240), circle(0)))  # three tokens of the triangle, one of them twice
    assert len(set(find_fibres((pyramid @ pyramid.mT).numpy()))) == 2


def test_the_page_of_an_exceptional_run_calls_no_theorem_contradicted(tmp_path: Path) -> None:
    law, tokens = at.Attention.isotropic(3, 1.0), at.Tokens(TETRAHEDRON)
    run = at.flow(law, tokens, space="sphere", until=50.0)
    report = Report("page", "attractor", kicker="test", lead="")
    add_fates(report.section("Predicted"), at.predict(law, tokens, "sphere", until=50.0), run)
    page = report.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8") if page is None else Path(str(page)).read_text("utf-8")
    assert "contradicted: " not in text
    assert "This start is exceptional" in text


@pytest.mark.theorem
def test_the_triangle_attracts_below_minus_two_thirds() -> None:
    triangle = at.Tokens(circle(10, 130, 250))
    for beta, fate in ((-0.7, True), (-0.64, False)):
        found = at.predict(at.Attention.isotropic(2, beta), triangle, "sphere")
        assert ("consensus.polygons" in {item.theorem.key for item in found.applicable}) == fate


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("beta", "promised"), [(-0.15, True), (0.5, True), (30.0, True), (-0.17, False), (-2.0, False)]
)
def test_tokens_on_the_circle(beta: float, promised: bool) -> None:
    """Also in a plane of a higher dimension, which the tokens do not leave."""
    tokens = at.Tokens.uniform(9, 2, seed=3)
    assert ("consensus" in at.predict(at.Attention.isotropic(2, beta), tokens, "sphere").fates) == promised
    flat = at.Tokens(torch.cat((tokens.points, torch.zeros(9, 1, dtype=torch.float64)), -1))
    found = at.predict(at.Attention.isotropic(3, beta), flat, "sphere")
    assert (found.fates.get("consensus") == ["consensus.clustering-circle"]) == promised
