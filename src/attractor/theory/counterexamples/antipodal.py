"""Full attention, symmetric value, tokens in the hemisphere of the top eigenvector: they end at two opposite points."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    value = torch.diag(torch.tensor([1.0, -5.0], dtype=torch.float64))
    interaction = torch.diag(torch.tensor([0.0, -3.0], dtype=torch.float64))
    law = Attention(torch.eye(2, dtype=torch.float64), interaction, value)
    turns = torch.from_numpy(np.random.default_rng(3).uniform(-0.45 * np.pi, 0.45 * np.pi, (16, 4)))
    start = Tokens(torch.stack((turns.cos(), turns.sin()), dim=-1))
    found = flow(law, start, space=Sphere(), save=[0.02 * k**1.6 for k in range(180)], rtol=1e-9, stop=(), merge=False)
    ends = found.points[-1]
    heights = ends[..., 1]
    split = (heights.abs() > 0.99).all(-1) & (heights.amax(-1) > 0.99) & (heights.amin(-1) < -0.99)
    agreed = (ends[..., 0] > 0.999).all(-1)
    facts = {
        "starts": 16,
        "smallest_height_over_v1": float(start.points[..., 0].min()),
        "antipodal_pairs": int(split.sum()),
        "consensus_at_v1": int(agreed.sum()),
        "speed_at_the_end": float((found.points[-1] - found.points[-2]).norm(dim=-1)[split].max())
        if bool(split.any())
        else 0.0,
    }
    member = int(split.nonzero()[0]) if bool(split.any()) else 0
    sentence = (
        f"V = diag(1, -5), P = diag(0, -3), four tokens with <v1, x> > 0: {facts['antipodal_pairs']} of 16 starts end in an "
        "antipodal pair at +-e2, at rest"
    )
    paths = found.points[:, member]
    circle = Panel(
        tuple(Curve(paths[:, k, 0].tolist(), paths[:, k, 1].tolist()) for k in range(4)),
        "e1 (v1)",
        "e2",
        "one start",
        circle=True,
    )
    heights_along = Panel(
        tuple(Curve(found.times.tolist(), paths[:, k, 1].tolist()) for k in range(4)),
        y="<e2, x_i>",
        title="the same in time",
    )
    return Evidence(
        facts, int(split.sum()) > 0 and facts["smallest_height_over_v1"] > 0, sentence, (circle, heights_along)
    )


EXAMPLE = CounterExample(
    key="consensus.full-symmetric",
    title="The symmetric-value theorem for full attention",
    claim="Tokens in the hemisphere of the top eigenvector of a symmetric V reach consensus also under full attention.",
    source="abella2024asymptotic",
    place="the natural extension of the causal theorem",
    basis="reading",
    verdict="false",
    truth="Full attention needs the top eigenvalue to exceed the modulus of all others; antipodal pairs attract otherwise.",
    run=run,
    theorems=("consensus.T4-common", "consensus.T4-bipartite-full"),
)
