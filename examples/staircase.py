"""The energy of tokens at low temperature is a staircase in log t / beta.

Four tokens on the circle merge one pair after the other, at times of order exp(beta (1 - c)) with c the largest cosine. The energy
e^-beta sum m_j m_k e^(beta <x_j, x_k>) tends to the sum of squared masses of the clusters. At beta = 1000 the last merge is at t = e^1875.
Run: python examples/staircase.py. It draws staircase.png.
"""

import numpy as np
import torch

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

angles = np.array([0.0, 1.0, 2.3, 4.0])
tokens = at.Tokens(torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=-1)))
curves, counts = [], []
for beta in (20.0, 100.0, 1000.0):
    exponents = np.linspace(0.01, 2.0, 400)
    times = [at.exp(beta * exponent) for exponent in exponents]
    law = at.Attention.isotropic(dim=2, beta=beta)
    run = at.flow(law, tokens, space=at.Sphere(), until=times[-1], save=times, method="clusters")
    cosines = run.points @ run.points.mT
    energy = torch.exp(beta * (cosines - 1.0)).mean((-2, -1))
    merges = [event.log_time / beta for event in run.events]
    print(f"beta = {beta:g}: merges at log t / beta = {', '.join(f'{merge:.4f}' for merge in merges)}")
    curves.append(Curve(exponents.tolist(), energy.tolist(), f"beta = {beta:g}"))
# the limit: the pair of largest cosine c merges at 1 - c, in the middle where masses are equal
first, second = 1 - np.cos(1.0), 1 - np.cos(1.7)
last = 1 - np.cos(np.pi - abs(np.pi - (3.15 - 0.5)))
assert abs(merges[0] - first) < 0.02
assert abs(merges[1] - second) < 0.02
assert abs(merges[2] - last) < 0.02
assert run.outcome.name == "consensus"
edges = [0.01, first, first, second, second, last, last, 2.0]
curves.append(Curve(edges, [0.25, 0.25, 0.375, 0.375, 0.5, 0.5, 1.0, 1.0], "limit", dashed=True))

draw_panels(
    [Panel(tuple(curves), x="log t / beta", y="energy")],
    "A staircase at low temperature",
    "Energy of four tokens on the circle under softmax attention in logarithmic time. Every step is a merge of two clusters.",
    "staircase.png",
)
