"""What cannot be done is refused in one sentence, before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attractor as at
from attractor.errors import AttractorError, InputError

LAW = at.Attention.isotropic(3, 1.0)
TOKENS = at.Tokens.uniform(4, 3)
GIVEN: dict[str, Any] = {"law": LAW, "state": TOKENS, "space": "sphere", "until": 1.0}

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no end": ({"until": None}, "give until"),
    "an end in the past": ({"until": -1.0}, "not after the start"),
    "an end at the start": ({"start": 1.0}, "not after the start"),
    "an infinite end": ({"until": float("inf")}, "finite"),
    "an end that is not a number": ({"until": float("nan")}, "finite"),
    "an end too near to the start": ({"until": 5e-324}, "between 1e-290 and 1e"),
    "an end too far from the start": ({"start": -1e308, "until": 1e308}, "between 1e-290 and 1e"),
    "too many steps": ({"method": "rk4", "step": 1e-300}, r"steps of 1e-300 until t = 1 are 1e\+300 steps"),
    "too many layers": ({"method": "layers", "step": 1e-10}, r"are 1e\+10 steps, and a run takes at most 1e\+09"),
    "too many steps of an adaptive method": (
        {"method": "dopri5", "adaptive": False, "step": 5e-324},
        "steps, and a run takes at most",
    ),
    "an infinite start": ({"start": float("-inf")}, "finite"),
    "an end in words": ({"until": "soon"}, "until"),
    "an unknown method": ({"method": "leapfrog"}, "'leapfrog' is not known; the methods are dopri5, dop853"),
    "an unknown space": ({"space": "torus"}, "'torus' is not known; the spaces are euclidean, sphere"),
    "a space that is none": ({"space": 3}, "space must be"),
    "an unknown stop": ({"stop": "bored"}, "'bored' is not known; the stops are consensus, collapsed, steady"),
    "an unknown stop among known ones": ({"stop": ["steady", "bored"]}, "'bored' is not known"),
    "a stop that is none": ({"stop": [3]}, "a stop is one of"),
    "an event that is none": ({"events": ["noon"]}, "[Ee]vent"),
    "an unknown engine": ({"engine": "warp"}, "'warp' is not known; the engines are"),
    "rk4 without a step": ({"method": "rk4"}, "'rk4' takes steps of one size: give step"),
    "euler without a step": ({"method": "euler"}, "'euler' takes steps of one size: give step"),
    "a fixed step without a step": ({"method": "dopri5", "adaptive": False}, "give step"),
    "a negative step": ({"step": -0.1}, "step must be positive, got -0.1"),
    "a step of zero": ({"step": 0.0}, "step must be positive"),
    "an infinite step": ({"step": float("inf")}, "step must be"),
    "a tolerance below rounding": ({"rtol": 1e-17}, "rtol must be between 2.2e-15"),
    "a tolerance of one": ({"rtol": 1.0}, "rtol must be between"),
    "a negative tolerance": ({"rtol": -1e-6}, "rtol must be between"),
    "no absolute tolerance": ({"atol": 0.0}, "atol must be positive"),
    "another dimension": ({"state": at.Tokens.uniform(4, 2)}, "dimension 3, the state has dimension 2"),
    "another dimension of the space": ({"space": at.Ellipsoid(np.eye(2))}, "dimension 2, the tokens in dimension 3"),
    "a negative distance to merge": ({"merge": -1.0}, "merge must be a positive distance"),
    "no law": ({"law": "attention"}, "needs a law such as Attention"),
    "a function for a law": ({"law": lambda x: x}, "needs a law such as Attention"),
    "no tokens": ({"state": np.eye(3)}, "moves Tokens"),
    "a zero vector on the sphere": ({"state": at.Tokens(np.array([[1.0, 0, 0], [0, 0, 0]]))}, "zero vector"),
    "a mask for another number": (
        {"law": at.Attention.isotropic(3, 1.0, mask=torch.eye(5, dtype=torch.bool))},
        "mask is for 5 tokens",
    ),
    "places beyond the table": (
        {"law": at.Attention.isotropic(3, 1.0, positions=at.Absolute(np.zeros((2, 3))))},
        "places 0 to 1",
    ),
    "no evaluations": ({"max_evaluations": -1}, "max_evaluations"),
    "no seconds": ({"max_seconds": float("nan")}, "max_seconds"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case: str) -> None:
    change, words = BAD[case]
    options = GIVEN | change
    with pytest.raises(InputError, match=words) as error:
        at.flow(options.pop("law"), options.pop("state"), **options)
    message = str(error.value)
    assert isinstance(error.value, AttractorError)
    assert isinstance(error.value, ValueError)
    assert "\n" not in message
    assert 10 < len(message) < 220


def test_single_precision_cannot_hold_small_tolerances() -> None:
    tokens = at.Tokens(TOKENS.points, dtype=torch.float32)
    with pytest.raises(InputError, match=r"float32 can hold"):
        at.flow(LAW, tokens, space="sphere", until=1.0, rtol=1e-7)


def test_an_ensemble_that_does_not_fit_the_law() -> None:
    root = np.ones((3, 1, 1, 1)) * np.eye(3)
    law = at.Attention(root, root, root)
    with pytest.raises(InputError, match="3 ensemble members, the state has 2"):
        at.flow(law, at.Tokens.uniform(4, 3, ensemble=2), space="sphere", until=1.0)


@pytest.mark.parametrize("space", ["sphere", "euclidean", None, at.Sphere(2.0), at.Ellipsoid(np.diag([1.0, 2.0, 3.0]))])
def test_velocity_is_tangent(space: at.Space | str | None) -> None:
    """One evaluation, for anyone who wants to step by themselves."""
    place = at.Euclidean() if space in ("euclidean", None) else at.Sphere() if space == "sphere" else space
    assert isinstance(place, at.Space)
    tokens = at.Tokens(place.random(4, 3, seed=1))
    v = at.velocity(LAW, tokens, space=space)
    assert v.shape == (4, 3)
    torch.testing.assert_close(place.tangent(tokens.points, v), v, rtol=0, atol=1e-14)


def test_velocity_refuses_what_flow_refuses() -> None:
    with pytest.raises(InputError, match="dimension 3, the state has dimension 2"):
        at.velocity(LAW, at.Tokens.uniform(4, 2))
    with pytest.raises(InputError, match="needs a law"):
        at.velocity("attention", TOKENS)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Tokens"):
        at.velocity(LAW, np.eye(3))  # type: ignore[arg-type]


def test_the_first_step_of_an_adaptive_method_may_be_tiny() -> None:
    run = at.flow(LAW, TOKENS, until=1.0, step=1e-300)
    assert run.outcome.name == "reached"
    expected = at.flow(LAW, TOKENS, until=1.0).final.points
    torch.testing.assert_close(run.final.points, expected, rtol=1e-7, atol=0)


@pytest.mark.parametrize("until", [1e-289, 1e-200, 1e-100])
def test_short_runs(until: float) -> None:
    """x' = V x and the covariance equation over a time that changes nothing."""
    for space in ("euclidean", "sphere"):
        assert torch.equal(at.flow(LAW, TOKENS, space=space, until=until).final.points, TOKENS.points)
    assert at.flow(LAW, at.Gaussian(torch.zeros(3), torch.eye(3)), until=until).outcome.name == "reached"
