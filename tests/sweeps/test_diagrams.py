"""Phase diagrams: values in their cells, predictions, boundaries that are refined, pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attractor as at
from attractor.errors import InputError
from attractor.plotting import HeatMap, draw_heat_maps
from attractor.plotting.heat_maps import fill_gaps
from attractor.sweeps import Theory, diagram, refine_cells, rerun_command, sweep


def step(a: float, b: float, seed: int) -> dict[str, float]:
    """One above the line a + b = 1 and zero below, with noise."""
    return {"value": float(a + b > 1.0), "noisy": a + (seed % 100) / 100, "never": np.inf if a < 0.5 else b}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> at.sweeps.Sweep:
    folder = tmp_path_factory.mktemp("diagram") / "cells"
    over = {"a": at.grid(0, 1, 5), "b": at.grid(0, 1, 4)}
    return sweep(step, over, observe=None, starts=4, folder=folder, workers=1)


def test_values_are_in_their_cells(found: at.sweeps.Sweep) -> None:
    drawn = diagram(found, "value", "b", "a")
    assert (drawn.x, drawn.y) == ("b", "a")
    for j, b in enumerate(drawn.maps[0].x):
        for i, a in enumerate(drawn.maps[0].y):
            assert drawn.maps[0].values[i, j] == float(a + b > 1.0)
    turned = diagram(found, "value", y="b")
    assert np.array_equal(turned.maps[0].values, drawn.maps[0].values.T)
    noisy = diagram(found, "noisy").maps[0]
    assert noisy.low is not None
    assert noisy.high is not None
    assert (noisy.low <= noisy.values).all()
    assert (noisy.values <= noisy.high).all()
    assert np.isinf(diagram(found, "never", "a", "b").maps[0].values[:, :2]).all()


def test_small_multiples_and_time(tmp_path: Path) -> None:
    def make(beta: float, dim: int, seed: int, starts: int) -> Any:
        return at.Attention.isotropic(dim, beta), at.Tokens.uniform(6, dim, seed=seed, ensemble=starts), at.Sphere()

    over = {"beta": [1.0, 4.0, 9.0], "dim": [2, 3]}
    run = sweep(
        make, over, starts=3, observe=["clusters", "pair_fraction"], until=6.0, save=3, folder=tmp_path / "a", workers=1
    )
    drawn = diagram(run, "pair_fraction", "time", "beta", levels=[0.5])
    assert [one.title for one in drawn.maps] == ["dim = 2", "dim = 3"]
    assert drawn.maps[1].values[2, 1] == run.values("pair_fraction", beta=9.0, dim=3)[1].mean()
    middle = diagram(run, "clusters", time=2.0).maps[0]
    assert middle.values[1, 0] == run.values("clusters", beta=1.0, dim=3)[1].mean()
    assert drawn.plot(tmp_path / "a.pdf") == tmp_path / "a.pdf"
    outcomes = diagram(run, "outcome_consensus").maps[0].values
    assert ((outcomes >= 0) & (outcomes <= 1)).all()
    for options, message in (
        ({"time": 2.5}, "did not save t = 2.5"),
        ({"x": "bta"}, "did you mean 'beta'"),
        ({"theory": "cluster_cont"}, "did you mean 'cluster_count'"),
        ({"theory": lambda n: n}, "depends on n"),
    ):
        with pytest.raises(InputError, match=message):
            diagram(run, "clusters", **options)
    with pytest.raises(InputError, match="did you mean 'clusters'"):
        diagram(run, "cluster")


def test_predictions(found: at.sweeps.Sweep) -> None:
    drawn = diagram(found, "value", "a", "b", theory=lambda a, b: float(a + b > 1.0)).maps[0]
    assert np.array_equal(drawn.predicted, drawn.values)
    line = diagram(found, "value", "a", "b", theory=Theory("the line", threshold=lambda a: 1.0 - a)).maps[0]
    assert line.curve is not None
    assert np.allclose(line.curve[0] + line.curve[1], 1.0)


def test_new_cells_are_at_the_boundary(tmp_path: Path) -> None:
    over = {"a": at.grid(0, 1, 5), "b": at.grid(0, 1, 5)}
    run = sweep(step, over, observe={"value": None}, starts=2, folder=tmp_path / "a", workers=1, refine=2)
    rounds = [cell.arguments for cell in run.cells if not float(cell.arguments["a"] * 4).is_integer()]  # type: ignore[operator]
    assert len(run.cells) > 25
    assert all(abs(float(row["a"]) + float(row["b"]) - 1.0) <= 0.25 for row in rounds)  # type: ignore[arg-type]
    again = refine_cells(run, "value")
    assert all(abs(float(row["a"]) + float(row["b"]) - 1.0) <= 1 / 16 + 1e-9 for row in again)  # type: ignore[arg-type]
    costs: list[Any] = []
    sweep(
        step,
        over,
        observe={"value": None},
        starts=2,
        folder=tmp_path / "a",
        workers=1,
        confirm=lambda cost: not costs.append(cost),
    )
    assert costs[0].cells == 0


def test_cells_may_be_listed(tmp_path: Path) -> None:
    run = sweep(step, [{"a": 0.0, "b": 1.0}, {"b": 0.5, "a": 1.0}], observe=None, folder=tmp_path / "a", workers=1)
    assert [cell.arguments for cell in run.cells] == [{"a": 0.0, "b": 1.0}, {"a": 1.0, "b": 0.5}]
    with pytest.raises(InputError, match="same axes"):
        sweep(step, [{"a": 0.0, "b": 1.0}, {"a": 0.5}], observe=None, workers=1)


def test_the_page_has_the_command_of_every_cell(found: at.sweeps.Sweep, tmp_path: Path) -> None:
    cell = found.cell(a=0.5, b=1.0)
    line = rerun_command(found, cell)
    assert line == f"step(a=0.5, b=1.0, seed={found.seed(cell, 0)})"
    assert eval(line, {"step": step})["noisy"] == found.values("noisy", a=0.5, b=1.0)[0, 0]
    path = diagram(found, "noisy").report("attractor sweep diagram cells").write(tmp_path / "page.html")
    assert str(found.seed(cell, 0)) in path.read_text(encoding="utf-8")


def test_gaps_are_filled_from_the_nearest_cell() -> None:
    values = np.array([[1.0, np.nan, np.nan, 4.0], [np.nan, np.nan, np.nan, np.nan]])
    assert fill_gaps(values, np.isnan(values))[0].tolist() == [1.0, 1.0, 4.0, 4.0]
    assert np.isnan(fill_gaps(np.full((2, 2), np.nan), np.ones((2, 2), dtype=bool))).all()


def test_cells_that_failed_are_not_coloured() -> None:
    """Neither from a neighbour nor as a value; a cell that a refined grid does not have takes the nearest colour."""

    def make(a: float, b: float) -> dict[str, float]:
        if (a, b) == (0.5, 0.5):
            raise ValueError("no such cell")
        return {"value": a + 10 * b}

    cells = [{"a": a, "b": b} for a in (0.0, 0.5, 1.0) for b in (0.0, 0.5, 1.0) if (a, b) != (0.0, 1.0)]
    drawn = diagram(sweep(make, cells, observe=None, workers=1), "value", "a", "b")
    figure = drawn.plot()
    shown = figure.axes[0].collections[0].get_array().reshape(3, 3)
    assert np.ma.getmaskarray(shown).tolist() == [[False, False, False], [False, True, False], [False, False, False]]
    assert shown[2, 0] in (5.0, 10.5)  # from a = 0, b = 0.5 or a = 0.5, b = 1
    assert "Grey" in drawn.caption


def test_a_time_is_that_of_each_cell(tmp_path: Path) -> None:
    def make(until: float, beta: float) -> Any:
        law, tokens = at.Attention.isotropic(3, beta), at.Tokens.uniform(6, 3)
        return at.sweeps.System(law, tokens, at.Sphere(), options={"until": until})

    run = sweep(make, {"until": [2.0, 4.0], "beta": [1.0, 3.0]}, observe="cosine", save=2, workers=1)
    found = diagram(run, "cosine", "until", "beta", time=2.0)
    assert "at t = 2" in found.caption
    assert found.maps[0].values[:, 1].tolist() == [
        run.values("cosine", until=4.0, beta=beta)[1, 0] for beta in (1.0, 3.0)
    ]
    assert found.maps[0].values[:, 0].tolist() == [
        run.values("cosine", until=2.0, beta=beta)[2, 0] for beta in (1.0, 3.0)
    ]
    assert np.isnan(diagram(run, "cosine", "until", "beta", time=1.0).maps[0].values[:, 1]).all()
    assert "at the end of each run" in diagram(run, "cosine", "until", "beta").caption
    with pytest.raises(InputError, match="different saved times"):
        diagram(run, "cosine", "time", "beta")


@pytest.mark.parametrize("x", [[1.0, 10.0, 100.0], ["one", "two", "three"], [1, 2, 4]])
def test_axes_of_numbers_and_texts(x: list[Any], tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(2, 3)
    one = HeatMap(x, [0.0, 1.0], values, values - 1, values + 1, levels=(2.5,))
    path = draw_heat_maps([one], ("x", "y"), "value", tmp_path / "map.svg", title="Map", caption="Caption.")
    assert re.search(r"<svg", Path(path).read_text(encoding="utf-8"))


@pytest.mark.theorem
def test_orthogonal_tokens_meet_at_the_predicted_time() -> None:
    """In high dimension random tokens are nearly orthogonal (arXiv 2312.10794); the curve is drawn along either axis."""

    def make(beta: float, tokens: int) -> Any:
        return at.Attention.isotropic(tokens, beta), at.Tokens.orthonormal(tokens, tokens), at.Sphere()

    run = sweep(
        make,
        {"beta": [1.0, 5.0], "tokens": [12]},
        observe="pair_fraction(threshold=0.999)",
        until=20.0,
        save=40,
        workers=1,
    )
    turned = diagram(run, x="beta", y="time", theory="orthogonal_tokens").maps[0].curve
    drawn = diagram(run, x="time", y="beta", theory="orthogonal_tokens").maps[0]
    assert turned is not None
    assert drawn.curve is not None
    assert np.array_equal(drawn.curve[0], turned[1])
    for row, beta in enumerate(drawn.y):
        early = np.array(drawn.x)[drawn.values[row] < 0.5].max()
        assert early < np.interp(beta, drawn.curve[1], drawn.curve[0]) <= early + 0.5
    exact = at.flow(
        at.Attention.isotropic(12, 5.0), at.Equiangular(0.0, 12), space="sphere", until=float(drawn.curve[0][-1])
    )
    assert float(exact.final.rho) == pytest.approx(0.999, abs=1e-8)  # type: ignore[union-attr]


def test_predictions_and_outcomes_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    def make(beta: float, dim: int) -> tuple[at.Law, at.Tokens, at.Space]:
        return at.Attention.isotropic(dim, beta), at.Tokens.uniform(4, dim), at.Sphere()

    found = at.sweep(
        make, over={"beta": [1.0, 4.0], "dim": [2, 3]}, until=1.0, observe=["clusters"], folder=tmp_path / "s"
    )
    with pytest.raises(InputError, match="did you mean 'outcome_consensus'"):
        diagram(found, "outcome_consensuss", "beta", "dim")
    with pytest.raises(InputError, match="in dimension 2"):
        diagram(found, "clusters", "beta", "dim", theory="cluster_count")
    with pytest.raises(InputError, match="a place on the axis noise, and the axes are beta and dim"):
        diagram(found, "clusters", "beta", "dim", theory="critical_noise")
