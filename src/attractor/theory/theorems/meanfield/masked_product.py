r"""T14, product data: where tokens and positions are independent, a causal mask does not change the flow.

For :math:`\mu = \theta\otimes\nu` the measure that position s sees, made a probability, has the marginal :math:`\nu` for every s: the
field is that of attention without a mask, and the product stays a product.
"""

from dataclasses import replace

import torch

from attractor.solvers import flow
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, TOKENS
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each

LATEST = 2.0


def group_by_position(case: Case) -> list[torch.Tensor]:
    """The tokens at each position, in the order of their coordinates."""
    tokens = case.tokens
    if tokens.positions is None:
        return [row[None] for row in tokens.points]
    parts = [tokens.points[tokens.positions == place] for place in tokens.positions.unique()]
    return [torch.stack(sorted(part, key=lambda row: row.tolist())) for part in parts]


def _product_margin(case: Case) -> Margin:
    parts = group_by_position(case)
    if len({len(part) for part in parts}) > 1:
        return Margin.boolean(False, "positions carry different numbers of tokens")
    worst = max(float((part - parts[0]).abs().max()) for part in parts)
    return Margin.zero(worst / max(float(case.tokens.points.abs().max()), 1e-300))


def _causal_margin(case: Case) -> Margin:
    mask = case.attention.mask
    sees_prefix = mask is not None and mask.sees_prefix
    return Margin.boolean(sees_prefix, "positions, equal ones included, see those not after them")


def _equal_margin(case: Case) -> Margin:
    masses = case.tokens.weights
    return Margin.boolean(bool((masses - masses.mean()).abs().max() <= 1e-12 * masses.mean()), "masses of tokens")


def compare_runs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens at the end, with the mask and without one."""
    until, options = min(case.horizon, LATEST), {"stop": (), "merge": False, "rtol": 1e-10, "atol": 1e-12}
    plain = Tokens(case.tokens.points)
    masked = flow(case.law, case.tokens, until=until, save=[until], **options).points[-1]
    free = flow(replace(case.attention, mask=None), plain, until=until, save=[until], **options).points[-1]
    return masked, free


def conclude(case: Case, seen: tuple[torch.Tensor, torch.Tensor]) -> tuple[Measurement, ...]:
    masked, free = seen
    size = max(float(free.norm(dim=-1).max()), 1e-300)
    missed = float((masked - free).norm(dim=-1).max()) / size
    return (Measurement("the mask changes nothing", -missed, 1e-7),)


def draw_case(rng: Rng, product: bool) -> Case:
    n, d = rng.sizes(((3, 2), (4, 3)))
    count = int(rng.integers(2, 5))
    parts = [rng.tokens(n, d).points] * count if product else [rng.tokens(n, d).points for _ in range(count)]
    kernel = ("softmax", "l2")[int(rng.integers(2))]
    law = rng.law(rng.matrix(d), rng.matrix(d), kernel=kernel, mask="causal")
    where = torch.arange(count).repeat_interleave(n)
    return Case(law, Tokens(torch.cat(parts), positions=where), horizon=1.0)


def vary_positions(case: Case) -> Case:
    """Scale the tokens by their position, so that positions carry different measures."""
    tokens = case.tokens
    assert tokens.positions is not None
    return replace(case, state=replace(tokens, points=tokens.points * (1.0 + tokens.positions[:, None])))


THEOREM = Theorem(
    key="meanfield.T14-product",
    title="Product data do not feel the mask",
    statement=r"For \(\mu = \theta\otimes\nu\), every position carrying the same measure \(\nu\), causal softmax or L2 attention moves "
    r"tokens as attention without a mask does, and \(\mu_t = \theta\otimes\nu_t\).",
    citation=cite("masked attention"),
    status=Status.HERE,
    hypotheses=(
        require_kernel("softmax", "l2"),
        FLAT,
        TOKENS,
        Hypothesis("causal mask", r"w_{ij} = 0 \text{ for } s_j > s_i", _causal_margin, structural=True),
        Hypothesis("equal masses", r"m_i = 1/n", _equal_margin, structural=True),
        NO_BIASES_OR_POSITIONS,
        Hypothesis("product data", r"\mu = \theta\otimes\nu", _product_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, True),
    violate={"product data": lambda rng: draw_case(rng, False)},
    gather=gather_each(compare_runs),
    break_case=vary_positions,
    proof="What a position sees, made a probability, has the marginal nu.",
)
