"""Under softmax two clusters do not merge at their centre of mass: the light one travels more than its share."""

import math

import numpy as np
import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import exp, flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.timescales import merge_share

MASSES, ANGLE = (0.75, 0.25), 1.0
BETAS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


def measure_share(beta: float, kernel: str) -> float:
    """The part of their angle that the heavy cluster travels until the two merge."""
    points = torch.tensor([[1.0, 0.0], [math.cos(ANGLE), math.sin(ANGLE)]], dtype=torch.float64)
    start = Tokens(points, masses=torch.tensor(MASSES, dtype=torch.float64))
    law = Attention.isotropic(2, beta, kernel=kernel)
    run = flow(law, start, space=Sphere(), until=exp(beta + 20.0), method="clusters", merge=1e-5)
    x, y = run.final.points[0].tolist()  # type: ignore[union-attr]
    return float(np.arctan2(y, x)) / ANGLE


def run() -> Evidence:
    shares = {kernel: [measure_share(beta, kernel) for beta in BETAS] for kernel in ("softmax", "exponential")}
    exact = [merge_share(beta, ANGLE, MASSES) for beta in BETAS]
    centre, limit = MASSES[1] / sum(MASSES), MASSES[1] ** 2 / (MASSES[0] ** 2 + MASSES[1] ** 2)
    facts = {
        "share_of_the_centre_of_mass": centre,
        "limit_of_low_temperature": limit,
        "share_at_beta_10": shares["softmax"][BETAS.index(10.0)],
        "share_at_beta_1000": shares["softmax"][-1],
        "largest_miss_of_the_integral": float(np.abs(np.subtract(shares["softmax"], exact)).max()),
        "largest_miss_of_the_exponential_kernel": float(np.abs(np.subtract(shares["exponential"], centre)).max()),
    }
    refuted = facts["share_at_beta_1000"] < 0.5 * (centre + limit)
    refuted = refuted and facts["largest_miss_of_the_integral"] < 1e-5
    refuted = refuted and facts["largest_miss_of_the_exponential_kernel"] < 1e-3
    sentence = (
        f"of two clusters with masses 0.75 and 0.25 the heavy one travels {facts['share_at_beta_1000']:.4f} of the angle at beta = 1000, "
        f"not {centre:g}; only the exponential kernel keeps the centre of mass"
    )
    curves = (
        Curve(BETAS, shares["softmax"], "softmax", dots=True),
        Curve(BETAS, exact, "integral", dashed=True),
        Curve(BETAS, shares["exponential"], "exponential", dots=True),
    )
    return Evidence(facts, refuted, sentence, (Panel(curves, x="beta", y="share of the heavy cluster", log_x=True),))


EXAMPLE = CounterExample(
    key="consensus.merge-point",
    title="Clusters merge at their centre of mass",
    claim="Two clusters on the sphere merge at their centre of mass.",
    source="geshkovski2024dynamic",
    place="a natural reading of merging clusters, which the paper does not state",
    basis="reading",
    verdict="false",
    truth="Under softmax cluster 1 travels the part m_2^2/(m_1^2 + m_2^2) of the angle as beta grows; the part m_2/(m_1 + m_2) is "
    "that of the exponential kernel.",
    run=run,
    theorems=("consensus.waiting-time",),
)
