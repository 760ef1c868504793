r"""On a line that values stretch, the attention matrix tends to a matrix of zeros and ones of rank at most three.

Rescaled tokens :math:`e^{-Vt}x_i` tend to at most three values, the scores of a token on one side are largest at the outermost token
of that side, and gaps between scores grow like :math:`e^{Vt}`.
"""

from dataclasses import replace

import torch

from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import INTERACTION_POSITIVE, ONE_HEAD, STANDARD_SETTING
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.theory.theorems.regimes.rescaled_polytope import SYMBOLS, integrate_rescaled

HORIZON = 14.0


def attend_at_end(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens and the weights (n, n) at the end of the run, the tokens rescaled."""
    run = integrate_rescaled(case)
    growth = float(case.matrices.value[0, 0]) * float(run.times[-1])
    weights = case.attention.weights(case.tokens.with_points(run.points[-1] * torch.e**growth))
    return run.points[-1], weights.reshape(len(run.points[-1]), -1)


def conclude(case: Case, evidence: tuple[torch.Tensor, torch.Tensor]) -> tuple[Measurement, ...]:
    points, weights = evidence
    undecided = (1.0 - weights.amax(-1)).sort().values[:-1]  # one row may have another limit
    ends = {int(points.argmax()), int(points.argmin())}
    chosen = weights.argmax(-1)
    strangers = sum(int(place) not in ends for place in chosen)
    return (
        Measurement("all rows but one become Boolean", -float(undecided.max()), 0.01, asymptotic=True),
        Measurement("they select an outermost token", 0.5 - (strangers if strangers > 1 else 0.0), asymptotic=True),
    )


def draw_case(rng: Rng, value: float = 1.0, interaction: float = 1.0) -> Case:
    size = torch.ones((1, 1), dtype=torch.float64)
    stretch, product = (part * float(rng.uniform(0.8, 1.2)) * size for part in (value, interaction))
    return Case(rng.law(product, stretch), rng.tokens(7, 1), horizon=HORIZON)


def disable_attention(case: Case) -> Case:
    """Set all scores to zero, so that all weights are equal."""
    return replace(case, law=replace(case.attention, scale=0.0))


def _line_margin(case: Case) -> Margin:
    return Margin.boolean(case.tokens.dim == 1, f"dimension {case.tokens.dim}")


THEOREM = Theorem(
    key="regimes.boolean",
    title="Boolean attention on a line",
    statement=r"Let \(d = 1\), \(V > 0\) and \(W > 0\). For almost every start the rows of the attention matrix, but at most one, tend to "
    r"unit vectors, which select the largest or the smallest token: the limit has rank at most three.",
    citation=Citation(
        "geshkovski2023emergence",
        "Theorem 2.1 (in the authors' code the folder movies/Th21)",
        SYMBOLS + ", numbers here",
        "2.1",
    ),
    status=Status.PAPER,
    hypotheses=(
        *STANDARD_SETTING,
        ONE_HEAD,
        Hypothesis("a line", r"d = 1", _line_margin, structural=True),
        Hypothesis("stretched", r"V > 0", lambda case: Margin.positive(float(case.matrices.value[0, 0]))),
        INTERACTION_POSITIVE,
    ),
    fate="identity",
    conclude=conclude,
    sample=draw_case,
    violate={"interaction positive": lambda rng: draw_case(rng, interaction=-1.0)},
    gather=gather_each(attend_at_end),
    break_case=disable_attention,
    proof="Rescaled tokens tend to at most three values and the gaps of their scores grow exponentially.",
)
