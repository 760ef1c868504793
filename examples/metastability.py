"""Metastable clusters: the number of clusters at each decade of time, for growing inverse temperature.

Clusters form quickly and then persist, the longer the larger beta is: a metastability conjectured in
[geshkovski2023mathematical]. Merging makes long times affordable. Run: python examples/metastability.py. It draws metastability.png.
"""

import attractor as at
from attractor.plotting import Curve, Panel, draw_panels

decades = [10.0**k for k in range(7)]
tokens = at.Tokens.uniform(64, 3, seed=0)

curves = []
print("  beta  " + "".join(f"{t:>9.0e}" for t in decades) + "  outcome")
for beta in [1.0, 4.0, 9.0, 16.0, 25.0]:
    law = at.Attention.isotropic(dim=3, beta=beta)
    run = at.flow(law, tokens, space=at.Sphere(), until=decades[-1], save=decades, merge=1e-3)
    counts = run.observe(at.clusters).long().tolist()
    curves.append(Curve(decades, counts, f"beta = {beta:g}"))
    row = "".join(f"{count:>9d}" for count in counts)
    print(f"{beta:6.0f}  {row}  {run.outcome.name} at {run.outcome.time:.3g}")

draw_panels(
    [Panel(tuple(curves), y="clusters", log_x=True, log_y=True)],
    "Metastable clusters",
    "Clusters of 64 tokens on the sphere at each decade of time. The larger the inverse temperature beta, the longer they persist.",
    "metastability.png",
)
