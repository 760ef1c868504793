r"""T1 for discrete layers: the energy climbs at every layer, however large its step, where the interaction is also
semi-definite.

Proof. :math:`e^{x^\top Py}` with :math:`P \succeq 0` is a positive definite kernel: with its feature map, :math:`E(X) =
\tfrac12|\Phi|^2` for :math:`\Phi = \sum_im_i\phi(x_i)`. Then :math:`E(X^+) - E(X) \ge \langle\Phi^+ - \Phi, \Phi\rangle
= \sum_{ij}m_im_j(e^{x_i^{+\top}Px_j} - e^{x_i^\top Px_j}) \ge \sum_im_iZ_i\langle x_i^+ - x_i, P\tilde b_i\rangle`, by
convexity of the exponential. Since :math:`P\tilde b_i = Ub_i/c` on the unit sphere it is left to see that
:math:`\langle x^+ - x, b\rangle \ge 0` for :math:`x^+ = N(x + hb)`: :math:`h\langle x^+ - x, b\rangle = \langle x^+ -
x, x + hb\rangle - \langle x^+ - x, x\rangle`, where the first term is not negative because :math:`x^+` is the unit
vector closest to :math:`x + hb`, and the second is :math:`1 - \langle x^+, x\rangle \ge 0`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attractor.observables import energy
from attractor.solvers import Trajectory
from attractor.states import Tokens
from attractor.theory.checking import smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem, integrate
from attractor.theory.theorems.consensus import gradient
from attractor.weights import extremes

LAYERS = 12
STEPS = (0.1, 1.0, 20.0, 1000.0)


def layer_options(step: float, layers: int = LAYERS) -> dict[str, object]:
    """Return options of a flow in discrete layers that saves every layer."""
    return {"method": "layers", "step": step, "save": [k * step for k in range(layers + 1)]}


def integrate_layers(cases: Sequence[Case]) -> list[Trajectory]:
    """Integrate in discrete layers, of step 1 where a case has no step."""
    plain: dict[str, Any] = {"horizon": float(LAYERS), "options": layer_options(1.0)}
    return integrate([case if case.options.get("method") == "layers" else replace(case, **plain) for case in cases])


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    level = energy(Tokens.unchecked(run.points, case.tokens.masses), case.law)
    return (Measurement("energy never decreases from layer to layer", smallest_increase(level, level), 1e-12),)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, interaction = rng.space(d), rng.definite(d, 1.0, 0.2, 3.0)
    law = rng.sphere_law(space, float(rng.uniform(0.3, 2.0)) * interaction, [interaction])
    step = STEPS[int(rng.integers(len(STEPS)))]
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, LAYERS * step, layer_options(step))


def sample_indefinite(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    interaction = rng.indefinite(d, None, 0.4, 3.0)
    space = rng.space(d, 0.0)
    step = STEPS[int(rng.integers(1, len(STEPS)))]
    law = rng.sphere_law(space, interaction, [interaction])
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, LAYERS * step, layer_options(step))


THEOREM = Theorem(
    key="consensus.T1-layers",
    title="Energy climbs layer by layer",
    statement=r"If \(P = P^\top \succeq 0\) and \(W V = c P\) with \(c > 0\), then "
    r"\(E\big(N(x + h\,b(x))\big) \ge E(x)\) for every step \(h > 0\).",
    citation=gradient.CITATION,
    status=Status.HERE,
    hypotheses=(
        *gradient.HYPOTHESES,
        Hypothesis(
            "interaction semi-definite",
            r"P \succeq 0",
            lambda case: Margin.nonnegative(extremes(to_sphere(case).interactions[0])[0]),
        ),
    ),
    fate="monotone",
    quantity="the energy E = 1/2 sum_ij m_i m_j exp(<x_i, P x_j>), layer by layer",
    conclude=conclude,
    sample=sample,
    violate={"interaction semi-definite": sample_indefinite},
    gather=integrate_layers,
    proof="The exponential kernel of a semi-definite P is positive definite and convex in each point; x+ is the "
    "unit vector closest to x + hb.",
)
