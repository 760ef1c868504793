"""The interaction energy can fall: V = I with a positive definite P on the sphere is no gradient flow of it."""

import numpy as np
import torch

from attractor.laws import Attention
from attractor.observables import energy, energy_rate, partition
from attractor.plotting import Curve, Panel
from attractor.solvers import flow, velocity
from attractor.spaces import Ellipsoid, Sphere
from attractor.states import Tokens
from attractor.theory.claims import CounterExample, Evidence

INTERACTION = torch.diag(torch.tensor([0.29, 12.8], dtype=torch.float64))


def steepest(law: Attention, tries: int = 4000) -> tuple[Tokens, float]:
    """Two tokens on the circle where the energy falls fastest, and its rate relative to what it would be."""
    turns = torch.from_numpy(np.random.default_rng(0).uniform(0, 2 * np.pi, (tries, 2)))
    states = Tokens(torch.stack((turns.cos(), turns.sin()), dim=-1))
    speeds = velocity(law, states, Sphere()).square().sum(-1)
    weights = partition(states, law).squeeze(-2) * states.weights
    worst = int(energy_rate(states, law, Sphere(), log=True).argmin())
    rates = energy_rate(states, law, Sphere()) / (weights * speeds).sum(-1)
    return Tokens(states.points[worst]), float(rates[worst])


def run() -> Evidence:
    eye = torch.eye(2, dtype=torch.float64)
    law = Attention(eye, INTERACTION, eye)
    start, share = steepest(law)
    runs = {"sphere": flow(law, start, space=Sphere(), until=3.0, save=150, rtol=1e-10, stop=(), merge=False)}
    ellipsoid = Ellipsoid(INTERACTION)  # where W V = P
    runs["ellipsoid with W = P"] = flow(
        law,
        Tokens(ellipsoid.retract(start.points)),
        space=ellipsoid,
        until=3.0,
        save=150,
        rtol=1e-10,
        stop=(),
        merge=False,
    )
    levels = {name: energy(Tokens(found.points), law, log=True) for name, found in runs.items()}
    falls = {name: float((values[1:] - values[:-1]).min()) for name, values in levels.items()}
    facts = {
        "rate_over_squared_speed": share,
        "largest_fall_of_log_energy_on_the_sphere": -falls["sphere"],
        "largest_fall_on_the_ellipsoid": max(0.0, -falls["ellipsoid with W = P"]),
    }
    refuted = share < 0 and falls["sphere"] < -1e-4 and falls["ellipsoid with W = P"] > -1e-9
    sentence = (
        f"two tokens on the circle with P = diag(0.29, 12.8), V = I: dE/dt is {share:.3g} times the squared speed, so E falls; on "
        "the ellipsoid with W = P it climbs"
    )
    curves = [Curve(runs[name].times.tolist(), (values - values[0]).tolist(), name) for name, values in levels.items()]
    panel = Panel(tuple(curves), y="log E(t) - log E(0)", title="V = I, P = diag(0.29, 12.8)")
    return Evidence(facts, refuted, sentence, (panel,))


EXAMPLE = CounterExample(
    key="consensus.gradient",
    title="Gradient structure for V = I and any positive P",
    claim="For V = I and a constant symmetric positive definite P the dynamics on the sphere is a Riemannian "
    "gradient flow of the interaction energy.",
    source="abella2024asymptotic",
    place="the single-head result, read on the round sphere",
    basis="reading",
    verdict="incomplete",
    truth="It is exactly where W V = c P: for V = I on the ellipsoid with W proportional to P, or V proportional "
    "to P on the sphere.",
    run=run,
    theorems=("consensus.T1",),
)
