"""One layer is not one unit of time."""

import math

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.spheres import fit_decay_rate, max_distance


def run() -> Evidence:
    eye, panels, facts, reproduced = torch.eye(3, dtype=torch.float64), [], {}, []
    raw = Tokens.uniform(6, 3, seed=2).points.abs() + 0.2
    start = Tokens(raw / raw.norm(dim=-1, keepdim=True))
    for mask, exponent, rate in ((None, math.log(2.0), 1.0), ("causal", math.log(4 / 3), 0.5)):
        law, name = Attention(0.5 * eye, eye, eye, mask=mask), "causal" if mask else "full"
        smooth = flow(law, start, space=Sphere(), until=40.0, save=80, rtol=1e-11, atol=1e-13, stop=(), merge=False)
        layers = flow(law, start, space=Sphere(), until=80.0, save=80, method="layers", step=1.0, stop=(), merge=False)
        curves = [max_distance(found.points).clamp_min(1e-16) for found in (smooth, layers)]
        slopes = [
            -fit_decay_rate(found.times, values, 1e-9, 1e-4)
            for found, values in zip((smooth, layers), curves, strict=True)
        ]
        facts |= {f"{name}_rate_in_time": slopes[0], f"{name}_exponent_of_a_layer": slopes[1]}
        facts |= {f"{name}_time_of_a_layer": slopes[1] / slopes[0]}
        reproduced.append(abs(slopes[1] - exponent) < 0.01 and abs(slopes[0] - rate) < 0.02)
        panels.append(
            Panel(
                (
                    Curve(smooth.times.tolist(), curves[0].tolist(), "continuous time"),
                    Curve(layers.times.tolist(), curves[1].tolist(), "layers, h = 1"),
                ),
                "time, or layers",
                "spread",
                name,
                log_y=True,
            )
        )
    sentence = (
        f"near consensus a layer with h = 1 is worth {facts['full_time_of_a_layer']:.3f} of time under full attention (ln 2) and "
        f"{facts['causal_time_of_a_layer']:.3f} under a causal mask (exponent ln 4/3, 2 ln 4/3 of time)"
    )
    return Evidence(facts, all(reproduced), sentence, tuple(panels))


EXAMPLE = CounterExample(
    key="consensus.layer-time",
    title="Layers as unit steps",
    claim="A layer of a Transformer is one unit of the continuous time of the model.",
    source="abella2024asymptotic",
    place="the passage from layers to a differential equation",
    basis="reading",
    verdict="false",
    truth="Near consensus a layer shrinks angles by 1/2 (full) or 3/4 (causal), as much as the flow does in ln 2 "
    "or 2 ln(4/3) of its time.",
    run=run,
    theorems=("consensus.T2-layer-rate", "consensus.T3-layer-rate"),
)
