"""The published consensus metric does not distinguish consensus from opposite clusters."""

import torch

from attractor.laws import Attention
from attractor.observables import consensus_metric, cosine_min
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    """Two halves near opposite poles, where T4-bipartite-full says they stay: lambda_2 / lambda_1 = 0.2 < tanh 2."""
    value = torch.diag(torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64))
    law = Attention(2.0 * torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.float64), value)
    raw = 0.5 * Tokens.uniform(8, 3, seed=4).points
    raw[:, 0] += torch.tensor([1.0, -1.0] * 4, dtype=torch.float64)
    start = Tokens(raw / raw.norm(dim=-1, keepdim=True))
    found = flow(law, start, space=Sphere(), until=20.0, save=100, rtol=1e-10, stop=(), merge=False)
    states = Tokens.unchecked(found.points)
    metric, lowest = consensus_metric(states), cosine_min(states)
    facts = {"metric_at_the_end": float(metric[-1]), "smallest_cosine_at_the_end": float(lowest[-1])}
    sentence = (
        f"two opposite clusters: 1 - mean |cos| falls to {facts['metric_at_the_end']:.1g}, the value of consensus, while the "
        f"smallest cosine is {facts['smallest_cosine_at_the_end']:.4f}"
    )
    panels = (
        Panel(
            (Curve(found.times.tolist(), metric.clamp_min(1e-17).tolist()),),
            y="1 - mean |cos|",
            log_y=True,
            title="the metric",
        ),
        Panel((Curve(found.times.tolist(), lowest.tolist()),), y="smallest cosine", title="what it does not see"),
    )
    return Evidence(
        facts, abs(facts["metric_at_the_end"]) < 1e-6 and facts["smallest_cosine_at_the_end"] < -0.999, sentence, panels
    )


EXAMPLE = CounterExample(
    key="consensus.metric",
    title="The metric of the experiments",
    claim="1 - mean |cos(x_1, x_j)| tends to zero exactly when tokens reach consensus.",
    source="abella2024asymptotic",
    place="the metric of the GPT experiments, in its released code",
    basis="code",
    verdict="misleading",
    truth="It is zero for opposite clusters too; report the smallest signed cosine beside it.",
    run=run,
    theorems=("consensus.T4-bipartite-full",),
)
