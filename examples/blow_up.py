"""A Gaussian that is infinite at t = 1 while the tokens drawn from it are not.

With softmax attention, V = I and Q'K = I the covariance s^2 I of a Gaussian is infinite at t* = 1/(2 s^2) [castin2025unified]. Finitely
many tokens stay within R exp(t) of the origin (R: the longest at the start), so theirs stays finite at that time and after it.
Run: python examples/blow_up.py. It draws blow_up.png.
"""

import torch

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

law = at.Attention.isotropic(dim=1, beta=1.0)
start = at.Gaussian(torch.zeros(1), 0.5 * torch.eye(1))
gaussian = at.flow(law, start, until=2.0)
print(f"the Gaussian: {gaussian.outcome.name} at t = {gaussian.outcome.time:.10f} (theory 1)")
assert gaussian.outcome.name == "blow_up"
assert abs(gaussian.outcome.time - 1.0) < 1e-9

curves = [Curve(gaussian.times[:-1].tolist(), gaussian.covariances[:-1, 0, 0].tolist(), "Gaussian", dashed=True)]
for n in (100, 1000):
    tokens = at.Tokens((0.5**0.5) * torch.randn(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    run = at.flow(law, tokens, until=1.2, save=48, rtol=1e-6)
    variance = run.points.var(dim=(1, 2))
    longest = run.points.abs().amax(dim=(1, 2))
    bound = longest[0] * run.times.exp()
    print(f"{n} tokens: variance {float(variance[40]):.3g} at t = {float(run.times[40]):g}")
    assert bool((longest <= bound * (1 + 1e-6)).all()), "a token left the ball that the bound allows"
    curves.append(Curve(run.times.tolist(), variance.tolist(), f"{n} tokens"))

draw_panels(
    [Panel(tuple(curves), y="variance", log_y=True)],
    "A Gaussian blows up, its tokens do not",
    "Variance under softmax attention on the line. The Gaussian (dashed) blows up at t = 1; finitely many tokens do not.",
    "blow_up.png",
)
