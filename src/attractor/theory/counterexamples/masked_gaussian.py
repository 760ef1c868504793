"""Masked attention keeps a Gaussian only if positions and tokens are independent."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.counterexamples.sigmoid_shape import excess

BLOCK = 400


def run() -> Evidence:
    """Two blocks of positions; tokens of a block see those of both blocks up to their own."""
    one, ends, curves = torch.ones(1, 1, dtype=torch.float64), {}, []
    normal = torch.special.ndtri((torch.arange(BLOCK, dtype=torch.float64) + 0.5) / BLOCK)[:, None]
    law = Attention(0.3 * one, one, one, mask="causal")
    places = torch.cat((torch.zeros(BLOCK), torch.ones(BLOCK))).double()  # equal positions see each other
    for name, later in (("independent", normal), ("dependent", normal + 3.0)):
        start = Tokens(torch.cat((normal, later)), positions=places)
        found = flow(law, start, until=0.6, save=30, rtol=1e-8, stop=(), merge=False)
        blocks = {"first": found.points[:, :BLOCK], "second": found.points[:, BLOCK:]}
        for block, points in blocks.items():
            values = excess(points).squeeze(-1)
            third = ((points - points.mean(-2, keepdim=True)) ** 3).mean(-2) / points.var(-2, correction=0) ** 1.5
            ends[f"{name}_{block}"] = float(third.squeeze(-1).abs().max() + (values - values[0]).abs().max())
            if block == "second":
                curves.append(Curve(found.times.tolist(), third.squeeze(-1).tolist(), f"{name} data"))
    facts = {f"change_of_shape_{name}": value for name, value in ends.items()}
    reproduced = ends["dependent_second"] > 0.1 > 0.02 > max(ends["independent_second"], ends["dependent_first"])
    sentence = (
        f"skewness and kurtosis of the second block change by {ends['dependent_second']:.2g} where its law differs from the first, "
        f"by {ends['independent_second']:.1g} where it does not; the first block stays normal ({ends['dependent_first']:.1g})"
    )
    return Evidence(facts, reproduced, sentence, (Panel(tuple(curves), y="skewness of the second block"),))


EXAMPLE = CounterExample(
    key="meanfield.masked-gaussian",
    title="Gaussians under a mask",
    claim="Gaussian data stay Gaussian under masked attention.",
    source="castin2025unified",
    place="the masked case",
    basis="paper",
    verdict="incomplete",
    truth="For products of a law of positions and one Gaussian, and for the first block of positions; otherwise "
    "keys are a mixture and the field is not affine.",
    run=run,
    theorems=("meanfield.T14",),
)
