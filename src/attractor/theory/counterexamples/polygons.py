"""Identity values without a hemisphere: polygons that rotate for all times."""

import math

import numpy as np
import torch

from attractor.laws import Attention
from attractor.observables import hemisphere_margin
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

TURN = torch.tensor([[0.0, -4.0], [4.0, 0.0]], dtype=torch.float64)
UNTIL = 300.0


def run() -> Evidence:
    eye = torch.eye(2, dtype=torch.float64)
    law, rng = Attention(eye, TURN, eye), np.random.default_rng(0)
    facts: dict[str, float] = {}
    kept, panels = [], []
    for n in (4, 5):
        turns = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n + torch.from_numpy(1e-2 * rng.standard_normal(n))
        start = Tokens(torch.stack((turns.cos(), turns.sin()), dim=-1))
        found = flow(law, start, space=Sphere(), until=UNTIL, save=3000, rtol=1e-9, stop=(), merge=False)
        angles = np.unwrap(torch.atan2(found.points[..., 1], found.points[..., 0]).numpy(), axis=0)
        margin = float(hemisphere_margin(Tokens(found.points[-1])))
        speed = abs(float(angles[-1, 0] - angles[-500, 0]) / float(found.times[-1] - found.times[-500]))
        facts |= {f"angular_speed_of_{n}_tokens": speed, f"hemisphere_margin_of_{n}_tokens": margin}
        kept.append(margin == 0.0 and speed > 0.5)
        last = found.times > UNTIL - 10
        curves = [Curve(found.times[last].tolist(), np.cos(angles[last.numpy(), k]).tolist()) for k in range(n)]
        panels.append(Panel(tuple(curves), y="first coordinate", title=f"{n} tokens, the last ten units of time"))
    sentence = (
        f"P = 4J, V = I on the circle: near-regular polygons still turn at t = {UNTIL:g}, the square at "
        f"{facts['angular_speed_of_4_tokens']:.3f} and the pentagon at {facts['angular_speed_of_5_tokens']:.3f}"
    )
    return Evidence(dict(facts), all(kept), sentence, tuple(panels))


EXAMPLE = CounterExample(
    key="consensus.no-hemisphere",
    title="Consensus without a hemisphere",
    claim="For V = I tokens reach consensus, or at least an equilibrium, from almost every start and for every P.",
    source="abella2024asymptotic",
    place="what is left when the hemisphere is dropped",
    basis="reading",
    verdict="false",
    truth="On the circle an antisymmetric P keeps polygons turning from an open set of starts; a hemisphere, a "
    "causal mask or P = beta I with d >= 3 suffice.",
    run=run,
    theorems=("consensus.T2", "consensus.T3", "consensus.clustering"),
)
