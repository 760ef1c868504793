"""Consensus without equilibrium: under a value with a skew part the consensus point rotates."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.spheres import max_distance


def run() -> Evidence:
    value = torch.tensor([[1.0, -0.7, 0.0], [0.7, 1.0, 0.0], [0.0, 0.0, 0.2]], dtype=torch.float64)
    eye = torch.eye(3, dtype=torch.float64)
    law = Attention(eye, eye, value, mask="causal")
    start = Tokens.uniform(5, 3, seed=1)
    found = flow(law, start, space=Sphere(), until=80.0, save=1600, rtol=1e-11, atol=1e-13, stop=(), merge=False)
    apart = max_distance(found.points)
    angles = np.unwrap(torch.atan2(found.points[:, 0, 1], found.points[:, 0, 0]).numpy())
    late = found.times.numpy() > 40
    speed = abs(float(np.polyfit(found.times.numpy()[late], angles[late], 1)[0]))
    facts = {"spread_at_the_end": float(apart[-1]), "angular_speed": speed}
    sentence = f"V = I + 0.7 J in a plane, causal: tokens agree to {facts['spread_at_the_end']:.1g} and turn together at {speed:.4f}"
    agree = Panel(
        (Curve(found.times.tolist(), apart.clamp_min(1e-16).tolist()),), y="spread", log_y=True, title="tokens agree"
    )
    turn = Panel(
        tuple(Curve(found.times[-400:].tolist(), found.points[-400:, 0, k].tolist(), f"x_1[{k}]") for k in range(3)),
        y="coordinates",
        title="where they agree",
    )
    return Evidence(facts, facts["spread_at_the_end"] < 1e-6 and abs(speed - 0.7) < 1e-3, sentence, (agree, turn))


EXAMPLE = CounterExample(
    key="consensus.equilibrium",
    title="Consensus as an equilibrium",
    claim="Consensus states are equilibria, so tokens that agree come to rest.",
    source="abella2024asymptotic",
    place="true for V = c I and for eigenvectors of V",
    basis="reading",
    verdict="incomplete",
    truth="A value with complex leading eigenvalues carries the agreed point around a limit cycle.",
    run=run,
    theorems=("consensus.T3", "consensus.T4"),
)
