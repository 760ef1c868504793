"""T15: n independent tokens are within order :math:`n^{-1/2}` of their limit, in moments and in the energy distance.

Two independent systems of n tokens each, drawn from the uniform law of a disc and moved by the same law: the distance of their means and
covariances and the root of their energy distance, as root mean squares over repeats, fall like :math:`n^{-1/2}`. (So does the
Wasserstein distance up to logarithms in the plane: ``attractor meanfield`` measures that.)
"""

from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Sigmoid
from attractor.meanfield import Rates, measure_rates, support_radius
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, FULL, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

SIZES = (32, 128, 512)
REPEATS = 64  # fewer scatter out of the band: with 12 the exponent has a deviation of 0.1
LATEST = 0.5


def draw_disc(n: int, seed: int, members: int, size: float, atoms: int | None) -> Tokens:
    """Independent points of a disc (members, n, 2); with ``atoms``, each member repeats so many points."""
    rng = np.random.default_rng(seed)
    kept = n if atoms is None else atoms
    length, angle = size * np.sqrt(rng.random((members, kept))), 2 * np.pi * rng.random((members, kept))
    points = np.stack((length * np.cos(angle), length * np.sin(angle)), -1)
    return Tokens(torch.from_numpy(points[:, np.arange(n) % kept]))


def compare_systems(case: Case) -> Rates:
    size, atoms = float(support_radius(case.tokens)), case.facts.get("atoms")
    return measure_rates(
        case.law,
        lambda n, seed, members: draw_disc(n, seed, members, size, atoms),
        until=min(case.horizon, LATEST),
        sizes=SIZES,
        repeats=REPEATS,
        against="pair",
        measures=("energy", "mean", "covariance"),
        seed=int(case.facts.get("seed", 0)),
    )


def conclude(case: Case, seen: Rates) -> tuple[Measurement, ...]:
    found = {name: slope.value for name, slope in seen.slopes.items()}
    return tuple(
        Measurement(f"the {name} error falls like n^(-1/2)", -abs(value + 0.5), 0.15, asymptotic=True)
        for name, value in found.items()
    )


def sample(rng: Rng) -> Case:
    name = ("softmax", "l2", "sigmoid")[int(rng.integers(3))]
    kernel = Sigmoid(bias=0.0) if name == "sigmoid" else name
    law = rng.law(rng.matrix(2, 0.5), rng.matrix(2, 0.7), kernel=kernel)
    tokens = rng.tokens(8, 2)
    tokens = Tokens(tokens.points / float(support_radius(tokens)))
    return Case(law, tokens, horizon=LATEST, facts={"seed": rng.seed()})


def _plane_margin(case: Case) -> Margin:
    return Margin.boolean(case.tokens.dim == 2, f"d = {case.tokens.dim}; the check is made in the plane")


THEOREM = Theorem(
    key="meanfield.T15-rate",
    title="Rate of the mean-field limit",
    statement=r"Two systems of \(n\) independent tokens of one compactly supported law in the plane, moved by the same "
    r"attention, differ at time \(t\) by \(O(n^{-1/2})\) in mean, covariance and root energy distance.",
    citation=cite("mean-field limit"),
    status=Status.CHECKED,
    hypotheses=(
        require_kernel("softmax", "l2", "sigmoid"),
        FLAT,
        TOKENS,
        Hypothesis("plane", "d = 2", _plane_margin, structural=True),
        FULL,
        NO_BIASES_OR_POSITIONS,
    ),
    fate="identity",
    rate=r"n^{-1/2}",
    conclude=conclude,
    sample=sample,
    gather=gather_each(compare_systems),
    break_case=lambda case: replace(case, facts={**case.facts, "atoms": 8}),
)
