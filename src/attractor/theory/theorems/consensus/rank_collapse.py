r"""Rank collapse: attention without skip connection shrinks the diameter cubically.

Proof. For the map :math:`y_i = \sum_h\sum_jw^h_{ij}V_hx_j` let D be the diameter of the tokens. Scores of two queries
differ, as functions of the key j and up to constants, by :math:`(x_i-x_k)^\top P_hx_j`, which oscillates by at most
:math:`\|P_h\|D^2`; a softmax changes by at most half of the oscillation in :math:`\ell_1`, and :math:`y_i - y_k =
\sum_hV_h\sum_j(w^h_{ij} - w^h_{kj})(x_j - z)` with z the centre of the smallest ball that holds the tokens, of radius
at most :math:`D/\sqrt2` (Jung). So :math:`D^+ \le \frac{\sum_h\|V_h\|\|P_h\|}{2\sqrt2}D^3`.
"""

from dataclasses import replace

import torch
from torch import Tensor

from attractor.laws import Attention
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import FULL, NO_POSITIONS, SOFTMAX, TOKENS, UNBIASED
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each

LAYERS = 4


def constant(case: Case) -> float:
    """sum_h ||V_h|| ||P_h|| / (2 sqrt 2)."""
    found = case.matrices
    norms = [torch.linalg.matrix_norm(part, 2) for part in (found.values, found.interactions)]
    return float((norms[0] * norms[1]).sum()) / 8**0.5


def iterate_layers(case: Case) -> Tensor:
    """Tokens after each layer without skip, (layers + 1, n, d)."""
    points = [case.tokens.points]
    for _ in range(LAYERS):
        points.append(case.law.velocity(Tokens.unchecked(points[-1], case.tokens.masses)))
    return torch.stack(points)


def conclude(case: Case, points: Tensor) -> tuple[Measurement, ...]:
    diameters = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").amax((-2, -1))
    size = points.norm(dim=-1).amax(-1)
    slack = (constant(case) * diameters[:-1] ** 3 - diameters[1:]) / size[1:].clamp_min(1e-300)
    return (Measurement("diameters shrink cubically", float(slack.min()), 1e-12),)


def _bare_margin(case: Case) -> Margin:
    return Margin.boolean(case.facts.get("skip") is False, "a flow, like a residual stream, adds to the tokens")


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    heads = int(rng.integers(1, 3))
    parts = [rng.matrix(d, 0.7) for _ in range(3 * heads)]
    query, key, value = (torch.stack(parts[k::3]) for k in range(3))
    state = rng.tokens(n, d, float(rng.uniform(0.2, 1.0)))
    return Case(Attention(query, key, value), state, facts={"skip": False})


def sample_masked(rng: Rng) -> Case:
    case = sample(rng)
    return replace(case, law=replace(case.attention, mask="causal"))


def emulate_skip(case: Case) -> Case:
    """Emulate a skip connection, under which the bound fails, by sharp attention of each token to itself."""
    law = case.attention
    return replace(case, law=replace(law, query=60.0 * law.query, key=60.0 * law.query, value=law.value * 5.0))


THEOREM = Theorem(
    key="consensus.rank-collapse",
    title="Rank collapse without skip connection",
    statement=r"For layers without skip connection, \(x_i^+ = \sum_h\sum_j w^h_{ij} V_h x_j\) with full softmax attention, the "
    r"diameter obeys \(D^+ \le \frac{1}{2\sqrt2}\sum_h\|V_h\|\,\|P_h\|\;D^3\): doubly exponential collapse once \(D\) is small.",
    citation=Citation(
        "dong2021attention",
        "the cubic bound, there for the residual in the norm of rows and columns and with other constants",
        "res(X) = X - 1 x' there is measured by the diameter here; P = scale Q'K",
    ),
    status=Status.HERE,
    hypotheses=(
        SOFTMAX,
        TOKENS,
        FULL,
        NO_POSITIONS,
        UNBIASED,
        Hypothesis(
            "no skip connection", r"x_i^+ = \textstyle\sum_h\sum_j w^h_{ij} V_h x_j", _bare_margin, structural=True
        ),
    ),
    fate="identity",
    rate=r"D_{k+1} = O(D_k^3)",
    conclude=conclude,
    sample=sample,
    violate={"full attention": sample_masked},
    gather=gather_each(iterate_layers),
    break_case=emulate_skip,
    proof="Softmax is 1/2-Lipschitz from oscillation to the l1 norm; scores of two queries differ by at most ||P|| "
    "D^2; Jung's theorem.",
)
