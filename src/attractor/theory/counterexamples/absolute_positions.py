"""Absolute positions shift the equilibrium only if every layer adds them."""

import torch

from attractor.laws import Absolute, Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.checking import geometric_times
from attractor.theory.claims import CounterExample, Evidence

UNTIL = 300.0


def run() -> Evidence:
    eye, start = torch.eye(3, dtype=torch.float64), Tokens.gaussian(4, 3, seed=0)
    table = Tokens.gaussian(4, 3, seed=1).points
    ends, curves = {}, []
    for when in ("every", "input"):
        law = Attention(eye, eye, -eye, positions=Absolute(table, when=when))
        found = flow(law, start, until=UNTIL, save=geometric_times(UNTIL), rtol=1e-9, stop=(), merge=False)
        to_zero, shifted = (found.points + shift for shift in (0.0, table))
        ends[when] = (float(to_zero[-1].norm(dim=-1).max()), float(shifted[-1].norm(dim=-1).max()))
        times = found.times[1:].tolist()
        curves.append(Curve(times, to_zero[1:].norm(dim=-1).amax(-1).tolist(), f"{when}: largest |x|"))
        curves.append(Curve(times, shifted[1:].norm(dim=-1).amax(-1).tolist(), f"{when}: largest |x + p|"))
    facts = {
        "added_at_every_layer_distance_from_minus_p": ends["every"][1],
        "added_at_every_layer_distance_from_zero": ends["every"][0],
        "added_at_the_input_distance_from_zero": ends["input"][0],
    }
    refuted = ends["every"][1] < 0.1 < 0.5 < ends["every"][0] and ends["input"][0] < 0.1
    sentence = (
        f"W = I, V = -I: positions added at the input leave the limit zero (largest norm {ends['input'][0]:.2g} at t = {UNTIL:g}); "
        f"added at every layer tokens tend to -p (distance {ends['every'][1]:.2g})"
    )
    return Evidence(facts, refuted, sentence, (Panel(tuple(curves), log_x=True, log_y=True, y="distance"),))


EXAMPLE = CounterExample(
    key="regimes.absolute-positions",
    title="Absolute positions and the equilibrium",
    claim="Absolute positional encoding shifts the equilibrium of the tokens.",
    source="pham2025dynamical",
    place="the discussion of absolute positions; its released code adds them once, at the input",
    basis="paper",
    verdict="incomplete",
    truth="Only if positions are added to queries, keys and values in every layer, where x_l tends to -p_l; added "
    "once at the input they change the start.",
    run=run,
)
