"""Redrawn values do not always keep two tokens from consensus: below a threshold they come together almost surely."""

from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.theorem import Case
from attractor.theory.theorems.consensus.antipodes import RUNS, antipodal_probability, antipodal_threshold, simulate

DIM = 5


def run() -> Evidence:
    points = torch.zeros(2, DIM, dtype=torch.float64)
    points[0, 0] = points[1, 1] = 1.0
    case = Case(Attention.isotropic(DIM, 1.0), Tokens(points), Sphere(), 40.0, facts={"seed": 7, "redrawn": True})
    threshold = antipodal_threshold(DIM)
    facts: dict[str, float] = {"threshold": threshold}
    shares = {}
    for beta in (0.5 * threshold, 3.0 * threshold):
        opposite, ended = simulate(replace(case, law=Attention.isotropic(DIM, beta)))
        shares[beta] = (opposite, ended)
        facts |= {f"opposite_at_beta_{beta:.3g}": opposite, f"together_at_beta_{beta:.3g}": ended - opposite}
    low, high = shares
    betas = np.linspace(0.1, 4.0, 25)
    curves = [
        Curve(betas.tolist(), [antipodal_probability(float(beta), dim) for beta in betas], f"d = {dim}")
        for dim in (3, 4, 5, 8)
    ]
    curves.append(Curve(list(shares), [share for share, _ in shares.values()], f"layers, d = {DIM}", dots=True))
    together = shares[low][1] - shares[low][0]
    reproduced = shares[low][0] < 0.002 and together > 0.99 and shares[high][0] > 0.1
    sentence = (
        f"in dimension {DIM} the threshold is beta = {threshold:.4g}: of {RUNS} orthogonal pairs {together:.1%} came together and "
        f"{shares[low][0]:.1%} ended opposite at beta = {low:.3g}, {shares[high][0]:.1%} at {high:.3g}"
    )
    panel = Panel(tuple(curves), x="beta", y="probability of opposite ends", title="two orthogonal tokens")
    return Evidence(facts, reproduced, sentence, (panel,))


EXAMPLE = CounterExample(
    key="consensus.redrawn-values",
    title="Redrawn values and collapse",
    claim="Random values that are drawn anew for every layer prevent the collapse of tokens to a single cluster.",
    source="fedorov2026clustering",
    place="its abstract",
    basis="paper",
    verdict="incomplete",
    truth="For two tokens consensus always has a positive probability, and opposite points have one exactly where tanh^2(beta) > "
    "(d - 3)/(d - 1); below that threshold consensus is almost sure.",
    run=run,
    theorems=("consensus.N2",),
)
