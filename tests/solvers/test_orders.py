"""Every stepper has the order it claims, on every space: errors fall like h^p down to a tight reference."""

from __future__ import annotations

from math import sin

import numpy as np
import pytest

import attractor as at

UNTIL = 2.0
# steps to take: small enough for the leading term of the error, large enough to keep it above rounding
STEPS = {
    "euler": (1, (48, 64, 96)),
    "layers": (1, (48, 64, 96)),
    "rk4": (4, (16, 32)),
    "dopri5": (5, (48, 64)),
    "dop853": (8, (8, 10, 12)),
    "radau5": (5, (16, 24)),
    "radau9": (9, (4, 6, 8)),
}


def finals(law: at.Law, tokens: at.Tokens, space: at.Space, **options: object) -> np.ndarray:
    """End points without merging, stops or saved states in the way."""
    run = at.flow(law, tokens, space=space, until=UNTIL, merge=False, stop=(), save=[], **options)
    return run.final.points.numpy()


REFERENCES: dict[str, np.ndarray] = {}  # by what moves where, shared by the methods


def measured_order(
    name: str, law: at.Law, tokens: at.Tokens, space: at.Space, method: str, steps: tuple[int, ...]
) -> float:
    """The slope of log error against log h, by least squares."""
    if name not in REFERENCES:
        REFERENCES[name] = finals(law, tokens, space, method="dop853", rtol=3e-15, atol=1e-16)
    truth = REFERENCES[name]
    errors = [
        np.linalg.norm(finals(law, tokens, space, method=method, step=UNTIL / count, adaptive=False) - truth)
        for count in steps
    ]
    assert min(errors) > 1e-14
    return float(np.polyfit(np.log(steps), -np.log(errors), 1)[0])


@pytest.mark.theorem
@pytest.mark.parametrize("method", STEPS)
def test_order_on_every_space(law: at.Attention, space: at.Space, method: str) -> None:
    order, steps = STEPS[method]
    tokens = at.Tokens.uniform(5, 3, seed=1, ensemble=8)  # the mean over starts hides where one error changes sign
    assert measured_order(space.name, law, tokens, space, method, steps) == pytest.approx(order, abs=0.3)


@pytest.mark.theorem
@pytest.mark.parametrize(
    ("method", "steps"), [("euler", (16, 32)), ("rk4", (16, 32)), ("dopri5", (16, 32)), ("dop853", (8, 16))]
)
def test_states_inside_steps_have_the_order_of_the_method(
    law: at.Attention, method: str, steps: tuple[int, int]
) -> None:
    """Errors in the middle of every step fall like h^p too; the reference steps on those times."""
    tokens, errors = at.Tokens.uniform(5, 3, seed=1, ensemble=8), []
    for count in steps:
        options = {"save": (np.arange(count) + 0.5) * UNTIL / count, "until": UNTIL, "merge": False, "stop": ()}
        truth = at.flow(law, tokens, space="sphere", method="dop853", step=UNTIL / 64, adaptive=False, **options)
        run = at.flow(law, tokens, space="sphere", method=method, step=UNTIL / count, adaptive=False, **options)
        errors.append(float((run.points - truth.points).norm(dim=-1).max()))
    assert np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0]) > STEPS[method][0] - 0.3


@pytest.mark.theorem
@pytest.mark.parametrize(("method", "steps", "order"), [("radau5", (16, 32), 4), ("radau9", (6, 12), 6)])
def test_states_inside_implicit_steps_have_the_order_of_the_error_estimate(
    law: at.Attention, method: str, steps: tuple[int, int], order: int
) -> None:
    """The collocation polynomial of s stages has an error of order s + 1, which the step control keeps below the tolerance."""
    tokens, errors = at.Tokens.uniform(5, 3, seed=1, ensemble=4), []
    for count in steps:
        options = {"save": (np.arange(count) + 0.3) * UNTIL / count, "until": UNTIL, "merge": False, "stop": ()}
        truth = at.flow(law, tokens, space="sphere", method="dop853", rtol=1e-13, atol=1e-15, **options)
        run = at.flow(law, tokens, space="sphere", method=method, step=UNTIL / count, adaptive=False, **options)
        errors.append(float((run.points - truth.points).norm(dim=-1).max()))
    assert np.log(errors[0] / errors[1]) / np.log(steps[1] / steps[0]) == pytest.approx(order, abs=0.6)


@pytest.mark.theorem
@pytest.mark.parametrize("method", STEPS)
def test_order_under_a_law_that_changes_with_time(law: at.Attention, method: str) -> None:
    """An autonomous law would not notice wrong nodes c_i."""
    order, steps = STEPS[method]
    moving = at.Schedule(lambda t: at.Attention(law.query, law.key, (1 + 0.5 * sin(t)) * law.value, scale=0.5))
    start = at.Tokens.uniform(8, 3, seed=2)
    assert measured_order("moving", moving, start, at.Sphere(), method, steps) == pytest.approx(order, abs=0.3)
