r"""T4, the bipartite state under full attention: two equal halves stay at opposite poles where attention is sharp enough.

With half of the tokens at each pole a row gives :math:`\sigma(2p)` to its own side, so the drive is
:math:`\lambda_1\tanh(p)\,v_1` and a tangent perturbation obeys :math:`\dot\varepsilon_i =
U_\perp\sum_ja_{ij}\varepsilon_j - \lambda_1\tanh(p)\,\varepsilon_i`. Its modes are the common one (:math:`\lambda_k -
\lambda_1\tanh p`), the opposite one (:math:`(\lambda_k - \lambda_1)\tanh p`) and those within a side
(:math:`-\lambda_1\tanh p`): stable exactly if :math:`\tanh p > \max(0, \lambda_2/\lambda_1)`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.sampling import Rng, map_to_space
from attractor.theory.spheres import FULL_HEAD, VALUE_SYMMETRIC
from attractor.theory.theorem import Case, Measurement, Status, Theorem
from attractor.theory.theorems.consensus import bipartite, causal_symmetric, common_value
from attractor.theory.timescales import TimeScale


def predict_abscissa(case: Case) -> float:
    """Largest real part of the linearisation."""
    values, pull = causal_symmetric.value_eigenvalues(case), math.tanh(bipartite.sharpness(case))
    modes = [values[1:] - values[0] * pull, pull * (values[1:] - values[0])]
    if case.tokens.n > 2:
        modes.append(-pull * values[:1])
    return float(torch.cat(modes).max())


def conclude(case: Case, evidence: tuple[float, Tensor]) -> tuple[Measurement, ...]:
    measured, points = evidence
    return bipartite.compare_linearisation(case, measured, predict_abscissa(case), points)


def gather(cases: Sequence[Case]) -> list[tuple[float, Tensor]]:
    return bipartite.gather(cases)


def draw_case(rng: Rng, sign: float) -> Case:
    """Cases with tanh p on one side of lambda_2 / lambda_1."""
    space, basis = rng.space(3), rng.orthogonal(3)
    second = float(rng.uniform(-0.5, 0.6))
    value = basis @ torch.diag(torch.tensor([1.0, second, -1.0], dtype=torch.float64)) @ basis.mT
    p = math.atanh(max(0.0, second)) + sign * float(rng.uniform(0.15, 1.0))
    law = rng.sphere_law(space, value, [bipartite.draw_interaction(rng, basis[:, 0], p)])
    half = int(rng.integers(1, 3))
    signs = torch.tensor([1.0, -1.0] * half, dtype=torch.float64)
    points = signs[:, None] * basis[:, 0]
    return Case(law, map_to_space(space, points), space, bipartite.HORIZON, {"save": [0.0, bipartite.HORIZON]})


def _halves_margin(case: Case) -> Margin:
    heights = bipartite.pole_heights(case)
    if case.tokens.n % 2:
        return Margin.boolean(False, f"{case.tokens.n} tokens have no equal halves")
    return Margin.zero(float((heights.abs() - 1).abs().max() + heights.sum().abs()))


def _sharp_margin(case: Case) -> Margin:
    first, second = causal_symmetric.top_eigenvalues(case)
    return Margin.positive(math.tanh(bipartite.sharpness(case)) - max(0.0, second / first))


def time_scale(case: Case) -> TimeScale | None:
    return (
        TimeScale(rate=f"small deviations fall like e^({predict_abscissa(case):.4g} t)")
        if case.tokens.dim > 1
        else None
    )


THEOREM = Theorem(
    key="consensus.T4-bipartite-full",
    title="Opposite poles under full attention",
    statement=r"Let \(U = U^\top\) with \(\lambda_1 > 0\) simple and \(p = v_1^\top P v_1\). Under full attention the state with "
    r"half of the tokens at \(v_1\) and half at \(-v_1\) is exponentially stable if \(\tanh p > \max(0, \lambda_2/\lambda_1)\), "
    r"and unstable if \(<\).",
    citation=causal_symmetric.CITATION,
    status=Status.HERE,
    hypotheses=(
        *FULL_HEAD,
        VALUE_SYMMETRIC,
        causal_symmetric.SIMPLE,
        common_value.POSITIVE,
        Hypothesis("equal halves", r"x_i = \pm v_1, \text{ half of each}", _halves_margin, structural=True),
        Hypothesis("sharp attention", r"\tanh p > \max(0, \lambda_2/\lambda_1)", _sharp_margin),
    ),
    fate="bipartite",
    time_scale=time_scale,
    rate=r"\max\{\lambda_2 - \lambda_1\tanh p,\ (\lambda_2 - \lambda_1)\tanh p,\ -\lambda_1\tanh p\}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, 1.0),
    violate={"sharp attention": lambda rng: draw_case(rng, -1.0)},
    gather=gather,
    proof="Weights change by multiples of v_1 only, which the projection removes; three families of modes are left.",
)
