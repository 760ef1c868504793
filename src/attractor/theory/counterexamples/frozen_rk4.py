"""RK4 with the attention weights frozen inside the step is of first order."""

import numpy as np
from torch import Tensor

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

UNTIL = 2.0
STEPS = (8, 16, 32, 64)


def frozen(law: Attention, start: Tokens, steps: int) -> Tensor:
    """Stages of RK4 that use the weights of the beginning of the step."""
    points, h = start.points, UNTIL / steps
    for _ in range(steps):
        weights = law.weights(Tokens.unchecked(points)).squeeze(-3)

        def field(x: Tensor, weights: Tensor = weights) -> Tensor:
            return weights @ x @ law.value.mT

        first = field(points)
        second = field(points + h / 2 * first)
        third = field(points + h / 2 * second)
        points = points + h / 6 * (first + 2 * second + 2 * third + field(points + h * third))
    return points


def run() -> Evidence:
    law = Attention.random(3, seed=1, scale=2.0)
    start = Tokens.gaussian(6, 3, seed=0)
    truth = flow(law, start, until=UNTIL, rtol=1e-12, atol=1e-14, stop=(), merge=False).final.points  # type: ignore[union-attr]
    errors: dict[str, list[float]] = {"weights frozen in the step": [], "RK4": [], "Euler": []}
    for steps in STEPS:
        errors["weights frozen in the step"].append(float((frozen(law, start, steps) - truth).norm()))
        for name, method in (("RK4", "rk4"), ("Euler", "euler")):
            end = flow(law, start, until=UNTIL, method=method, step=UNTIL / steps, stop=(), merge=False).final.points  # type: ignore[union-attr]
            errors[name].append(float((end - truth).norm()))
    sizes = np.log([UNTIL / steps for steps in STEPS])
    orders = {name: float(np.polyfit(sizes[1:], np.log(values[1:]), 1)[0]) for name, values in errors.items()}
    facts = {f"order_of_{name.replace(' ', '_')}": order for name, order in orders.items()}
    reproduced = abs(orders["weights frozen in the step"] - 1) < 0.15 and orders["RK4"] > 3.7
    sentence = (
        f"with frozen weights the error falls like h^{orders['weights frozen in the step']:.2f}, with RK4 proper "
        f"like h^{orders['RK4']:.2f}"
    )
    panel = Panel(
        tuple(Curve([UNTIL / steps for steps in STEPS], values, name) for name, values in errors.items()),
        "step",
        "error at t = 2",
        log_x=True,
        log_y=True,
    )
    return Evidence(facts, reproduced, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.rk4",
    title="RK4 that is Euler",
    claim="Stages of RK4 that share the attention weights of the start of the step give a method of fourth order.",
    source="code",
    place="a simulation of this field that calls itself RK4",
    basis="code",
    verdict="false",
    truth="The order is one: the weights are part of the field and must be evaluated at every stage.",
    run=run,
)
