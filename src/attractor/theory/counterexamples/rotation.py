"""Symmetric parts decide nothing: a rotation satisfies both conditions and runs away."""

import math

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

UNTIL = 12.0


def rotation(degrees: float) -> torch.Tensor:
    angle = math.radians(degrees)
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


def law_at(degrees: float) -> Attention:
    """W = R(a) and A = -R(-a), so V = inv(A) W = -R(2a); both symmetric parts are multiples of cos(a) I."""
    turn = rotation(degrees)
    return Attention(torch.eye(2, dtype=torch.float64), turn, torch.linalg.solve(-turn.mT, turn))


def run() -> Evidence:
    start = Tokens.gaussian(5, 2, seed=0, scale=0.1)
    start = Tokens(start.points + 0.1)
    curves, growth = [], {}
    for degrees in (30.0, 44.0, 46.0, 60.0):
        found = flow(law_at(degrees), start, until=UNTIL, save=120, rtol=1e-9, stop=(), merge=False)
        means = found.points.mean(-2).norm(dim=-1)
        growth[degrees] = float(means[-1] / means[0])
        curves.append(Curve(found.times.tolist(), means.tolist(), f"{degrees:g} degrees"))
    metric, interaction = -rotation(-46.0), rotation(46.0)
    facts = {
        "largest_eigenvalue_of_sym_A": float(torch.linalg.eigvalsh((metric + metric.mT) / 2)[-1]),
        "smallest_eigenvalue_of_sym_W": float(torch.linalg.eigvalsh((interaction + interaction.mT) / 2)[0]),
        "largest_real_part_of_V": float(torch.linalg.eigvals(law_at(46.0).value).real.max()),
        **{f"growth_of_the_mean_at_{degrees:g}_degrees": value for degrees, value in growth.items()},
    }
    refuted = growth[46.0] > 1 > growth[44.0] and facts["largest_eigenvalue_of_sym_A"] < 0
    sentence = (
        f"at 46 degrees sym A is negative and sym W positive, yet the mean of the tokens grows {growth[46.0]:.3g} times "
        f"by t = {UNTIL:g} (at 44 degrees it falls to {growth[44.0]:.3g})"
    )
    panel = Panel(tuple(curves), y="length of the mean", log_y=True, title="W = R(a), A = -R(-a)")
    return Evidence(facts, refuted, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.symmetric-part",
    title="Collapse by symmetric parts",
    claim="If sym A is negative and sym W positive definite, all tokens converge to zero.",
    source="pham2025dynamical",
    place="the convergence theorem, in its form for symmetric parts",
    basis="paper",
    verdict="false",
    truth="A or W itself must be symmetric; the spectrum of V decides the mean.",
    run=run,
    theorems=("regimes.T1", "regimes.T5"),
)
