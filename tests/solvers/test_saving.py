"""Saved states: at the times asked for, as accurate as steps are, and free of extra evaluations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import InputError

ISOTROPIC = at.Attention.isotropic(3, 2.0)
TOKENS = at.Tokens.uniform(8, 3, seed=3)
ROUNDING = 4e-16


def go(**options: object) -> at.Trajectory:
    return at.flow(ISOTROPIC, TOKENS, space="sphere", stop=(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "extra"), [("dopri5", 0), ("dop853", 3)])
def test_saved_times_cost_no_steps(method: str, extra: int) -> None:
    """The steps do not know how many times are saved; DOP853 adds three evaluations to a step that holds any."""
    few, many = (go(save=np.linspace(0, 20, count), method=method) for count in (3, 300))
    assert few.stats.accepted == many.stats.accepted
    assert many.stats.evaluations - few.stats.evaluations <= extra * many.stats.accepted
    assert torch.equal(few.final.points, many.final.points)
    assert torch.equal(few.points[-1], many.points[-1])
    bare = go(until=20.0, save=[], method=method)
    assert few.stats.evaluations <= 1.3 * bare.stats.evaluations


def test_saved_times_are_those_asked_for() -> None:
    times = [0.1, 0.2, 0.30000000000000004, 1 / 3, 7.77]
    run = go(save=times)
    assert run.times.tolist() == times
    assert run.outcome.time == 7.77


def test_start_and_end_are_states_like_others() -> None:
    run = go(start=-1.0, until=2.0, save=[-1.0, 0.5, 2.0])
    torch.testing.assert_close(run.points[0], TOKENS.points, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(run.points[-1], run.final.points, rtol=0, atol=ROUNDING)
    assert run.times.tolist() == [-1.0, 0.5, 2.0]


def test_a_number_of_intervals() -> None:
    assert go(until=2.0, save=4).times.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_no_saved_states() -> None:
    run = go(until=2.0, save=[])
    assert run.points.shape == (0, 8, 3)
    assert run.times.shape == (0,)
    assert torch.equal(run.final.points, go(until=2.0, save=[2.0]).final.points)


def test_the_grid_by_default_begins_at_the_start_and_ends_at_the_end() -> None:
    run = go(until=1e4)
    assert run.times[0] == 0.0
    assert run.times[-1] == 1e4
    assert bool((run.times.diff() > 0).all())
    assert 100 < len(run.times) < 300
    assert float(run.times[5]) < 0.2  # fast at first, decades later


def test_the_grid_by_default_ends_where_the_run_ends() -> None:
    run = at.flow(ISOTROPIC, TOKENS, space="sphere", until=1e4)
    assert run.outcome.name == "consensus"
    assert float(run.times[-1]) == run.outcome.time
    assert torch.equal(run.points[-1], run.final.points)


def test_tensors_and_arrays_of_times_are_equal() -> None:
    times = [0.5, 1.0]
    runs = [go(save=kind) for kind in (times, tuple(times), np.array(times), torch.tensor(times, dtype=torch.float64))]
    assert all(torch.equal(run.points, runs[0].points) for run in runs)


def test_saved_states_are_on_the_space() -> None:
    run = go(until=5.0, save=37)
    assert bool(at.Sphere().contains(run.points, 1e-14).all())


def test_a_token_at_rest_is_saved_where_it_is() -> None:
    """The first token under a causal mask never moves, so its saved states are equal to the bit."""
    run = at.flow(at.Attention.isotropic(3, 2.0, mask="causal"), TOKENS, space="sphere", until=9.0, save=50, stop=())
    assert bool((run.points[:, 0] == run.points[0, 0]).all())


@pytest.mark.parametrize("method", ["dopri5", "dop853", "rk4", "euler", "layers"])
def test_every_method_saves_its_start_and_end(method: str) -> None:
    options = {} if method in ("dopri5", "dop853") else {"step": 0.25}
    run = go(until=2.0, save=[0.0, 2.0], method=method, **options)
    torch.testing.assert_close(run.points[1], run.final.points, rtol=0, atol=ROUNDING)
    assert float((run.points[0] - run.points[1]).abs().max()) > 0.1


def test_layers_are_saved_where_they_end() -> None:
    """States of discrete layers are the iterates themselves, not interpolated between them."""
    run = go(until=1.0, save=np.arange(11) * 0.1, method="layers", step=0.1)
    points = at.Sphere().enter(TOKENS.points)
    for row in run.points:
        torch.testing.assert_close(row, points, rtol=0, atol=1e-15)
        points = ISOTROPIC.layer(at.Tokens(points), 0.1, at.Sphere())
    with pytest.raises(InputError, match="whole layers"):
        go(until=1.0, save=[0.15], method="layers", step=0.1)


@pytest.mark.parametrize(
    ("save", "words"),
    [
        ([1.0, 0.5], "increasing"),
        ([0.5, 0.5], "increasing"),
        ([0.5, float("nan")], "finite"),
        ([-0.5, 1.0], "between the start 0 and until 2"),
        ([0.5, 2.5], "between the start 0 and until 2"),
        (0, "at least one"),
        ("often", "number of intervals or a list"),
        (1.5, "number of intervals or a list"),
        (True, "number of intervals or a list"),
    ],
)
def test_times_that_make_no_sense_are_refused(save: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        go(until=2.0, save=save)


@pytest.mark.parametrize("method", ["dop853", "dopri5"])
def test_save_times_outside_by_rounding_are_the_ends(method: str) -> None:
    """0.1 + 0.2 is larger than 0.3, and a sum of thousands of steps is off by more than one spacing."""
    for save, start, until in (
        ([0.1, 0.2, 0.1 + 0.2], 0.0, 0.3),
        (np.cumsum(np.full(7000, 1e-3))[6::7], 0.0, float(np.cumsum(np.full(7000, 1e-3))[-1]) * (1 - 3e-13)),
        ([0.3, 1.0], 0.1 + 0.2, 1.0),
        ([-0.3, 0.0], -0.3 * (1 - 1e-16), 0.0),
    ):
        run = go(save=save, start=start, until=until, method=method)
        assert len(run.times) == len(save)
        assert run.outcome.name == "reached"
        assert start <= float(run.times[0])
        assert float(run.times[-1]) == until
        torch.testing.assert_close(run.points[-1], run.final.points, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("save", "start", "until"),
    [
        ([0.1, 0.3 + 1e-9], 0.0, 0.3),
        ([-1e-9, 0.3], 0.0, 0.3),
        ([1e6 + 2e-6], 1e6, 1e6 + 1e-6),
        ([0.3, 0.1 + 0.2], 0.0, 0.3),
        ([0.1, 0.1], 0.0, 0.3),
    ],
)
def test_save_times_outside_by_more_than_rounding_are_errors(save: list[float], start: float, until: float) -> None:
    with pytest.raises(InputError, match="save times must"):
        go(save=save, start=start, until=until)
