"""Rotary positions: neither collapse nor divergence, but tokens at rest away from zero."""

import math

import torch

from attractor.laws import Attention, Rotary
from attractor.plotting import Curve, Panel
from attractor.solvers import flow, velocity
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    eye = torch.eye(2, dtype=torch.float64)
    turned, plain = Attention(eye, eye, -eye, positions=Rotary(1e4)), Attention(eye, eye, -eye)
    points = torch.tensor([[0.8, 0.6], [-0.8, -0.6]], dtype=torch.float64)
    places = torch.tensor([0.0, math.pi], dtype=torch.float64)  # the first frequency is 1, so this is half a turn
    start = Tokens(points, positions=places)
    rest, motion = (float(velocity(law, start).norm(dim=-1).max()) for law in (turned, plain))
    push = 1e-3 * torch.tensor([[0.3, -0.9], [0.7, 0.2]], dtype=torch.float64)
    pushed = Tokens(points + push, positions=places)
    runs = [flow(law, pushed, until=60.0, save=60, rtol=1e-9, stop=(), merge=False) for law in (turned, plain)]
    norms = [found.points.norm(dim=-1).amax(-1) for found in runs]
    causal = flow(
        Attention(eye, eye, -eye, positions=Rotary(1e4), mask="causal"),
        pushed,
        until=60.0,
        save=60,
        stop=(),
        merge=False,
    )
    masked = causal.points.norm(dim=-1).amax(-1)
    facts = {
        "speed_at_the_equilibrium": rest,
        "speed_without_positions": motion,
        "largest_norm_at_the_end": float(norms[0][-1]),
        "largest_norm_without_positions": float(norms[1][-1]),
        "largest_norm_under_a_causal_mask": float(masked[-1]),
    }
    refuted = (
        rest < 1e-12 and 0.5 < facts["largest_norm_at_the_end"] < 2 and float(norms[1][-1]) < 0.2 > float(masked[-1])
    )
    sentence = (
        f"two opposite tokens rest at norm {facts['largest_norm_at_the_end']:.4g} at t = 60 with rotary positions; "
        f"without them they fall to "
        f"{float(norms[1][-1]):.2g}, and with them under a causal mask to {float(masked[-1]):.1g}: no divergence anywhere"
    )
    names = ("rotary, full", "no positions", "rotary, causal")
    curves = [
        Curve(runs[0].times.tolist(), values.tolist(), name)
        for values, name in zip((*norms, masked), names, strict=True)
    ]
    panel = Panel(tuple(curves), y="largest norm", log_y=True, title="W = I, V = -I, half a turn between two tokens")
    return Evidence(facts, bool(refuted), sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.rope-divergence",
    title="Rotary positions and divergence",
    claim="Rotary positions block convergence and force tokens to diverge.",
    source="pham2025dynamical",
    place="the discussion of RoPE",
    basis="paper",
    verdict="false",
    truth="They remove a sufficient condition in bidirectional attention, where tokens mostly rest at non-zero points; under a "
    "causal mask the value alone decides and rotary positions change no limit.",
    run=run,
    theorems=("regimes.T8",),
)
