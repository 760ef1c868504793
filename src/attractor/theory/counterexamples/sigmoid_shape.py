"""Sigmoid attention does not keep Gaussians Gaussian."""

import torch

from attractor.laws import Attention, Sigmoid
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def excess(points: torch.Tensor) -> torch.Tensor:
    """Excess kurtosis along the last axis but one."""
    centred = points - points.mean(-2, keepdim=True)
    return (centred**4).mean(-2) / (centred**2).mean(-2).square() - 3.0


def run() -> Evidence:
    one, curves, ends = torch.ones(1, 1, dtype=torch.float64), [], {}
    quantiles = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    raw = torch.special.ndtri(quantiles)[:, None]
    start = Tokens(raw / raw.std(correction=0))
    for name, kernel in (("sigmoid", Sigmoid(bias=0.0)), ("linear", "linear")):
        law = Attention(0.8 * one, one, (1.0 if name == "sigmoid" else 0.3) * one, kernel=kernel)
        found = flow(law, start, until=2.0 if name == "sigmoid" else 1.0, save=50, rtol=1e-8, stop=(), merge=False)
        values = excess(found.points).squeeze(-1)
        ends[name] = float((values - values[0]).abs().max())
        curves.append(Curve(found.times.tolist(), values.tolist(), name))
    facts = {f"largest_change_of_kurtosis_{name}": value for name, value in ends.items()}
    sentence = (
        f"the excess kurtosis of normal tokens changes by {ends['sigmoid']:.2g} under sigmoid attention, by "
        f"{ends['linear']:.1g} under linear attention"
    )
    panel = Panel(tuple(curves), y="excess kurtosis")
    return Evidence(facts, ends["sigmoid"] > 0.1 and ends["linear"] < 1e-6, sentence, (panel,))


EXAMPLE = CounterExample(
    key="meanfield.sigmoid-gaussian",
    title="Gaussians under sigmoid attention",
    claim="Gaussian data stay Gaussian under the attention variants of the mean-field theory.",
    source="castin2025unified",
    place="well-posedness covers sigmoid attention; preservation of Gaussians does not",
    basis="reading",
    verdict="incomplete",
    truth="Softmax, multi-head, L2, Sinkhorn and linear attention keep Gaussians; sigmoid and unnormalised attention do not.",
    run=run,
    theorems=("meanfield.T1",),
)
