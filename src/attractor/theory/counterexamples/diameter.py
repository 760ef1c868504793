"""The diameter is no Lyapunov function: it can grow while it exceeds a right angle."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.observables import diameter, hemisphere_margin
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

STARTS = 400


def run() -> Evidence:
    rng = np.random.default_rng(0)
    eye = torch.eye(3, dtype=torch.float64)
    points = torch.from_numpy(rng.standard_normal((STARTS, 5, 3)))
    points[..., 0] = points[..., 0].abs() + 0.05
    start = Tokens(points / points.norm(dim=-1, keepdim=True))
    key = torch.from_numpy(2.0 * rng.standard_normal((STARTS, 1, 3, 3)))
    law = Attention(eye.expand(STARTS, 1, 3, 3), key, eye.expand(STARTS, 1, 3, 3))
    found = flow(law, start, space=Sphere(), until=3.0, save=30, rtol=1e-9, stop=(), merge=False)
    states = Tokens.unchecked(found.points)
    wide = diameter(states, space=Sphere())
    grows = (wide[1:] - wide[:-1]).amax(0)
    worst = int(grows.argmax())
    margin = hemisphere_margin(Tokens.unchecked(found.points[:, grows > 1e-6]))  # of the starts of interest
    narrow = wide[:-1] <= torch.pi / 2
    facts = {
        "starts_in_a_hemisphere": STARTS,
        "starts_whose_diameter_grows": int((grows > 1e-6).sum()),
        "growth_below_a_right_angle": float(torch.where(narrow, wide[1:] - wide[:-1], -1.0).max()),
        "largest_fall_of_the_margin": float((margin[:-1] - margin[1:]).max()),
    }
    refuted = facts["starts_whose_diameter_grows"] > 0 and facts["growth_below_a_right_angle"] < 1e-8
    refuted = refuted and facts["largest_fall_of_the_margin"] < 1e-8
    sentence = (
        f"the angular diameter grows at some time in {facts['starts_whose_diameter_grows']} of {STARTS} starts in a hemisphere, "
        "never below a right angle; the hemisphere margin never falls"
    )
    panels = (
        Panel((Curve(found.times.tolist(), wide[:, worst].tolist()),), y="angular diameter", title="one start"),
        Panel(
            (Curve(found.times.tolist(), margin[:, int((grows > 1e-6)[:worst].sum())].tolist()),),
            y="hemisphere margin",
            title="the same start",
        ),
    )
    return Evidence(facts, refuted, sentence, panels)


EXAMPLE = CounterExample(
    key="consensus.diameter",
    title="The diameter as a Lyapunov function",
    claim="For V = I and tokens in a hemisphere the diameter of the tokens never grows.",
    source="abella2024asymptotic",
    place="a natural reading of the hemisphere theorem",
    basis="reading",
    verdict="false",
    truth="It may grow while it exceeds a right angle; the distance of the hull from the origin never falls.",
    run=run,
    theorems=("consensus.T2-margin",),
)
