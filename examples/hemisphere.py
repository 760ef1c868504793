"""Consensus from a hemisphere: with V = I, tokens that start in an open hemisphere reach consensus for all Q and K.

Consensus is a theorem of [abella2024asymptotic]. That the margin rho (distance from the origin to the hull of the tokens)
never decreases, and that 1 - rho^2 decays like exp(-2 t), was derived for this project. Run: python examples/hemisphere.py
It draws hemisphere.png.
"""

import math

import torch

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

torch.manual_seed(0)
Q, K = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
law = at.Attention(Q, K, torch.eye(3, dtype=torch.float64))

save = [0.5 * k for k in range(17)]
run = at.flow(law, at.Tokens.hemisphere(10, 3, seed=1), space=at.Sphere(), until=8.0, save=save, rtol=1e-10, atol=1e-12)
rho = run.observe(at.hemisphere_margin)

print("   t      rho            log(rho^2 / (1 - rho^2)), slope")
odds = (rho**2 / (1 - rho**2)).log()
for t, margin, change in zip(run.times[1:].tolist(), rho[1:].tolist(), odds.diff().tolist(), strict=True):
    print(f"{t:5.1f}  {margin:.10f}  {change / 0.5:8.4f}")

assert bool((rho.diff() >= -1e-12).all()), "the margin decreased"
assert math.isclose(float(odds.diff()[-1]) / 0.5, 2.0, abs_tol=0.05), "the last slope is not 2"
print("the margin never decreased; the slope tends to 2")

times = run.times.tolist()
fall = Curve(times, (1 - rho**2).tolist(), "1 - rho^2")
slope = Curve(
    times[8:], [float(1 - rho[8] ** 2) * math.exp(-2 * (t - times[8])) for t in times[8:]], "exp(-2 t)", dashed=True
)
draw_panels(
    [Panel((Curve(times, rho.tolist()),), y="margin rho"), Panel((fall, slope), y="1 - rho^2", log_y=True)],
    "Tokens in a hemisphere reach consensus for all Q and K",
    "Left: the distance rho from the origin to the convex hull of ten tokens never decreases. Right: 1 - rho^2 decays like exp(-2 t).",
    "hemisphere.png",
)
