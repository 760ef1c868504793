"""With a negative top eigenvalue tokens leave the hemisphere that contains them at the start."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    value = torch.diag(torch.tensor([-1.0, -1.5, -1.5], dtype=torch.float64))
    law = Attention(0.5 * torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64), value, mask="causal")
    points = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 2, 3)))
    points[..., 0] = points[..., 0].abs() + 0.3
    start = Tokens(points / points.norm(dim=-1, keepdim=True))
    found = flow(law, start, space=Sphere(), until=60.0, save=200, rtol=1e-9, stop=(), merge=False)
    heights = found.points[..., 0]  # (times, members, 2)
    crossed = int((heights[-1, :, 1] < -0.99).sum())
    facts = {
        "starts": 8,
        "second_tokens_at_minus_v1": crossed,
        "smallest_height_at_the_start": float(heights[0].min()),
        "first_tokens_at_v1": int((heights[-1, :, 0] > 0.99).sum()),
    }
    sentence = f"V = diag(-1, -1.5, -1.5), causal: all tokens start with <v1, x> > 0, yet in {crossed} of 8 runs the second ends at -v1"
    curves = tuple(Curve(found.times.tolist(), heights[:, k, 1].tolist()) for k in range(8))
    panel = Panel(curves, y="<v1, x_2>", title="second tokens, 8 starts in the hemisphere")
    return Evidence(facts, crossed >= 4 and facts["smallest_height_at_the_start"] > 0, sentence, (panel,))


EXAMPLE = CounterExample(
    key="consensus.negative-top-eigenvalue",
    title="Causal consensus without the sign of the top eigenvalue",
    claim="Under a causal mask, for symmetric V with a simple largest eigenvalue and tokens in a hemisphere cut by "
    "its eigenvector, tokens reach consensus.",
    source="abella2024asymptotic",
    place="the causal theorem for symmetric U",
    basis="paper",
    verdict="incomplete",
    truth="It needs a positive top eigenvalue: otherwise the hemisphere leaks.",
    run=run,
    theorems=("consensus.T4",),
)
