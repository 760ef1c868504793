"""A layer is not a unit of time: near consensus one residual layer with normalization corresponds to ln 2.

With V = I the flow contracts angles like exp(-t), while x <- N(x + h b) multiplies them by 1 / (1 + h): with h = 1, by
one half. Run: python examples/layers_and_time.py. It draws layers_and_time.png.
"""

import math

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

law = at.Attention.isotropic(dim=3, beta=1.0)
tokens = at.Tokens.hemisphere(12, 3, seed=0)
options = {"space": at.Sphere(), "until": 20.0, "save": 20, "stop": ()}

layers = at.flow(law, tokens, method="layers", step=1.0, **options)
time = at.flow(law, tokens, rtol=1e-11, atol=1e-15, **options)

for name, run, expected in [("one layer", layers, 0.5), ("one unit of time", time, math.exp(-1.0))]:
    diameter = run.observe(at.diameter)
    factor = float(diameter[19] / diameter[18])
    print(f"{name:17s} multiplies the diameter by {factor:.4f} (theory {expected:.4f})")
    assert abs(factor - expected) < 0.01

curves = tuple(
    Curve(run.times.tolist(), run.observe(at.diameter).tolist(), name)
    for name, run in [("layers", layers), ("continuous time", time)]
)
draw_panels(
    [Panel(curves, x="layers, or time", y="diameter of the tokens", log_y=True)],
    "A layer is not a unit of time",
    "Twelve tokens of a hemisphere under isotropic attention: a residual layer halves the diameter, a unit of time divides it by e.",
    "layers_and_time.png",
)
