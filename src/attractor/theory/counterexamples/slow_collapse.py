"""Collapse is slow: norms fall like t^(-1/2), so few layers do not show it."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.checking import fit_power, geometric_times
from attractor.theory.claims import CounterExample, Evidence

UNTIL = 1e4


def run() -> Evidence:
    eye = torch.eye(3, dtype=torch.float64)
    law = Attention(eye, eye, -eye)  # A = -I
    found = flow(
        law,
        Tokens.gaussian(8, 3, seed=0),
        until=UNTIL,
        save=geometric_times(UNTIL, first=1e-6),
        rtol=1e-9,
        stop=(),
        merge=False,
    )
    norms, means = found.points.norm(dim=-1).amax(-1), found.points.mean(-2).norm(dim=-1)
    slope = fit_power(found.times[1:], norms[1:], 1e-2)
    twelfth = float(norms[(found.times - 12.0).abs().argmin()] / norms[0])
    facts = {
        "exponent_of_the_norm": slope,
        "share_of_the_norm_left_at_t_12": twelfth,
        "mean_at_the_end": float(means[-1]),
    }
    sentence = (
        f"W = I, V = -I: norms fall like t^{slope:.3f}; at t = 12 there is still {100 * twelfth:.0f} % of them, "
        f"while the mean is gone"
    )
    late = found.times > 0
    panel = Panel(
        (
            Curve(found.times[late].tolist(), norms[late].tolist(), "largest norm"),
            Curve(found.times[late].tolist(), means[late].clamp_min(1e-14).tolist(), "length of the mean"),
            Curve([1.0, UNTIL], [0.7, 0.7 * UNTIL**-0.5], "slope -1/2", dashed=True),
        ),
        log_x=True,
        log_y=True,
    )
    return Evidence(facts, abs(slope + 0.5) < 0.03 and twelfth > 0.05, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.fast-collapse",
    title="Collapse that shows in a few layers",
    claim="In the convergence regime norms shrink to zero fast enough that the early layers of a model show it.",
    source="pham2025dynamical",
    place="norms along layers read as a signature of collapse",
    basis="reading",
    verdict="misleading",
    truth="Only the mean decays exponentially; norms fall like the inverse root of time.",
    run=run,
    theorems=("regimes.T1",),
)
