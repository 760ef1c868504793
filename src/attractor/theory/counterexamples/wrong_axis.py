"""Discrete layers can converge to another point than the flow that they discretise."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    value = torch.diag(torch.tensor([1.0, 0.0, -9.0], dtype=torch.float64))
    eye = torch.eye(3, dtype=torch.float64)
    law = Attention(0.5 * eye, eye, value, mask="causal")
    raw = Tokens.uniform(5, 3, seed=0).points
    raw[:, 0] = raw[:, 0].abs() + 0.2
    start = Tokens(raw / raw.norm(dim=-1, keepdim=True))
    smooth = flow(law, start, space=Sphere(), until=40.0, save=80, rtol=1e-9, stop=(), merge=False)
    layers = flow(law, start, space=Sphere(), until=40.0, save=40, method="layers", step=1.0, stop=(), merge=False)
    heights = [found.points[..., 0].amin(-1) for found in (smooth, layers)]
    facts = {
        "lowest_height_of_the_flow": float(heights[0][-1]),
        "first_token_of_the_layers_along_v1": float(layers.points[-1, 0, 0].abs()),
        "first_token_of_the_layers_along_the_last_axis": float(layers.points[-1, 0, 2].abs()),
    }
    sentence = (
        f"V = diag(1, 0, -9), causal: the flow reaches v1 (lowest height {facts['lowest_height_of_the_flow']:.4f}), layers with h = "
        f"1 put the first token on the axis of -9 (component {facts['first_token_of_the_layers_along_the_last_axis']:.4f})"
    )
    panels = tuple(
        Panel(
            tuple(Curve(found.times.tolist(), found.points[:, k, 0].tolist()) for k in range(5)),
            label,
            "<v1, x_i>",
            title,
        )
        for found, label, title in ((smooth, "time", "flow"), (layers, "layers", "layers, h = 1"))
    )
    refuted = (
        facts["lowest_height_of_the_flow"] > 0.999 and facts["first_token_of_the_layers_along_the_last_axis"] > 0.999
    )
    return Evidence(facts, refuted, sentence, panels)


EXAMPLE = CounterExample(
    key="consensus.layer-limit",
    title="Layers have the limits of the flow",
    claim="The consensus point of discrete layers is that of the continuous model.",
    source="abella2024asymptotic",
    place="the passage from layers to a differential equation",
    basis="reading",
    verdict="incomplete",
    truth="It needs |1 + h lambda_k| < 1 + h lambda_1 for all other eigenvalues: a strongly negative one wins the power iteration.",
    run=run,
    theorems=("consensus.T4-layers", "consensus.T4-common-layers"),
)
