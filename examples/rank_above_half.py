"""A limit of L2 attention of rank 3 in dimension 4, with K'Q invertible: the rank is not bounded by half the dimension.

The search of attractor.papers.gaussian_ranks found seed 1145 first; this script checks its limit:
the covariance is stationary while tokens rotate on its image, and the fourth eigenvalue decays. Run: python examples/rank_above_half.py.
It draws rank_above_half.png.
"""

import numpy as np

import attractor as at
from attractor import meanfield
from attractor.papers.gaussian_ranks import counterexample
from attractor.plotting import Curve, Panel, draw_panels

found = counterexample(first=1145, seeds=1)
A = (found.law.key.mT @ found.law.query).numpy()
print(
    f"seed {found.seed}: K'Q has condition number {np.linalg.cond(A):.3g}, the start has rank {np.linalg.matrix_rank(found.start)}"
)

times = [1e2, 1e3, 1e4, 1e5]
run = at.flow(found.law, at.Gaussian(np.zeros(4), found.start), save=times, rtol=1e-9, stop=())
values = np.linalg.svd(run.points[:, 1:].numpy(), compute_uv=False) ** 2
for time, row in zip(times, values, strict=True):
    print(f"t = {time:8g}: eigenvalues " + "  ".join(f"{value:.6e}" for value in row))

state = at.Gaussian(np.zeros(4), found.limit.covariance)
residual = meanfield.stationary_residual(found.law, state)
print(f"rank of the limit {found.limit.rank}; |B Sigma + Sigma B'| is {residual:.1e} of what it could be")

assert found.limit.rank == 3
assert residual < 1e-7
assert values[-1, 3] < 0.5 * values[-2, 3], "the fourth eigenvalue does not decay"
assert abs(values[-1, 2] / values[-2, 2] - 1) < 1e-3, "the third eigenvalue does not converge"

curves = tuple(Curve(times, column.tolist(), f"eigenvalue {number}") for number, column in enumerate(values.T, 1))
draw_panels(
    [Panel(curves, y="eigenvalues of the covariance", log_x=True, log_y=True)],
    "A limit of rank 3 in dimension 4",
    "L2 attention with an invertible K'Q: three eigenvalues of the covariance converge, the fourth decays like 1/t.",
    "rank_above_half.png",
)
