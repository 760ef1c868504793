"""L2 attention can blow up in finite time where the key has a kernel."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Gaussian
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    r"""K = e1', Q = (1, 1), V = [[0, 0], [1, 1]]: s = Sigma_11 stays, w = Sigma_12 has w' = 2 (s + w)^2 / (1 + 2 s)."""
    law = Attention(
        torch.tensor([[1.0, 1.0]], dtype=torch.float64),
        torch.tensor([[1.0, 0.0]], dtype=torch.float64),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        kernel="l2",
    )
    start = Gaussian(torch.zeros(2, dtype=torch.float64), torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64))
    s, w = 1.0, 0.5
    c = 2.0 / (1.0 + 2.0 * s)
    promised = 1.0 / (c * (s + w))
    shares = [0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 0.995]
    found = flow(law, start, save=[0.0, *(share * promised for share in shares)], rtol=1e-11, stop=())
    measured = found.covariances[:, 0, 1]
    exact = [1.0 / (1.0 / (s + w) - c * float(t)) - s for t in found.times]
    missed = max(abs(float(a) / b - 1) for a, b in zip(measured, exact, strict=True))
    facts = {
        "blow_up_time": promised,
        "largest_relative_error_of_the_covariance": missed,
        "covariance_at_0.995_of_it": float(measured[-1]),
        "drift_of_the_other_variance": float((found.covariances[:, 0, 0] - s).abs().max()),
    }
    sentence = (
        f"Sigma_12 follows 1/(1/(s + w) - ct) - s to {missed:.1g} and is {float(measured[-1]):.0f} at 0.995 of T* "
        f"= {promised:.4g}, although Sigma_11 never moves"
    )
    panel = Panel(
        (
            Curve(found.times.tolist(), measured.tolist(), "L2 Gaussian closure", dots=True),
            Curve(found.times.tolist(), exact, "closed form", dashed=True),
        ),
        y="Sigma_12",
        log_y=True,
    )
    return Evidence(facts, missed < 1e-6 and float(measured[-1]) > 100, sentence, (panel,))


EXAMPLE = CounterExample(
    key="meanfield.l2-global",
    title="Global existence for L2 attention",
    claim="Gaussian data under L2 attention have covariances for all times.",
    source="castin2025unified",
    place="the contrast of L2 with softmax attention",
    basis="reading",
    verdict="incomplete",
    truth="It holds for square invertible K, with an exponential bound; a key with a kernel allows blow-up in finite time.",
    run=run,
    theorems=("meanfield.T8", "meanfield.T9"),
)
