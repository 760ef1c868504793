r"""Renyi centres: under a causal mask with sharp attention, tokens far from all earlier ones hardly move for a long time.

Token i is a (strong) centre at radius :math:`\delta` if no earlier token is within :math:`\delta`. At that moment it
gives the earlier tokens a weight of at most :math:`(i-1)e^{-\beta\delta^2/2}`, its speed (chords: :math:`1 - \langle x,
y\rangle = |x-y|^2/2`). That earlier tokens do not come near later on is not proved here: the statement about times is
checked only.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attractor.solvers import Trajectory, velocity
from attractor.theory.checking import select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, CAUSAL_HEAD, IDENTITY_VALUES, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import pair

RADIUS = 4.0  # delta in units of beta^-1/2


def find_centres(points: Tensor, radius: float) -> Tensor:
    """Return which tokens are farther than the radius from every earlier one, (n,)."""
    near = torch.cdist(points, points) <= radius
    return ~torch.tril(near, -1).any(-1)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    found, beta = to_sphere(case), pair.fit_beta(case)[0]
    points, radius = found.map_points(run.points[select_valid_rows(run)]), RADIUS * beta**-0.5
    chosen = find_centres(points[0], radius)
    speeds = found.map_points(velocity(case.law, case.tokens, case.space)).norm(dim=-1)
    weight = float(torch.exp(torch.tensor(-beta * radius**2 / 2, dtype=torch.float64)))
    bound = found.weight * torch.arange(case.tokens.n, dtype=torch.float64) * weight
    drift = (points[-1] - points[0]).norm(dim=-1)
    return (
        Measurement("centres start slowly", float((bound - speeds)[chosen].min()), 1e-12),
        Measurement("centres have hardly moved", -float(drift[chosen].max()) / radius, 0.25, asymptotic=True),
    )


def sample(rng: Rng) -> Case:
    space, eye = rng.space(3, 0.2), torch.eye(3, dtype=torch.float64)
    beta = float(rng.choice([64.0, 100.0, 150.0]))
    law = rng.sphere_law(space, eye, [beta * eye], mask="causal")
    return Case(law, map_to_space(space, rng.unit_points(24, 3)), space, 10.0, {"save": [0.0, 10.0], "rtol": 1e-8})


def sample_unmasked(rng: Rng) -> Case:
    space, eye = rng.space(3, 0.0), torch.eye(3, dtype=torch.float64)
    law = rng.sphere_law(space, eye, [64.0 * eye])
    return Case(law, map_to_space(space, rng.unit_points(24, 3)), space, 10.0, {"save": [0.0, 10.0], "rtol": 1e-8})


def disable_attention(case: Case) -> Case:
    """Set all scores to zero, so that every earlier token has the same weight."""
    return replace(case, law=replace(case.attention, scale=0.0))


def _sharp_margin(case: Case) -> Margin:
    return Margin.positive(pair.fit_beta(case)[0] / RADIUS**2 - 1.0)


THEOREM = Theorem(
    key="consensus.renyi",
    title="Renyi centres",
    statement=r"Let the mask be causal, \(V = c I,\ P = \beta W\), \(\delta = 4\beta^{-1/2} < 1\). A token farther "
    r"than \(\delta\) from every earlier one starts at most "
    r"with the speed \(c(i-1)e^{-\beta\delta^2/2} = c(i-1)e^{-8}\), and has moved by less than \(\delta/4\) at \(t = 10/c\).",
    citation=Citation(
        "karagodin2024clustering",
        "Lemma 5.1: Renyi parking centres as metastable cluster centres, there with delta = 4 beta^-1/2 in a figure",
        "beta is its beta; V = c I with its c = 1; distances are chords",
        "5.1",
    ),
    status=Status.CHECKED,
    hypotheses=(
        *CAUSAL_HEAD,
        IDENTITY_VALUES,
        ATTRACTION,
        pair.ISOTROPIC,
        Hypothesis("sharp attention", r"\beta > 16", _sharp_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"causal mask": sample_unmasked},
    break_case=disable_attention,
)
