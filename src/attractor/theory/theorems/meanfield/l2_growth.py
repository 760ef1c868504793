r"""T8: under L2 attention with an invertible key covariances grow at most exponentially.

:math:`B = 2V\Sigma(I + 2K^\top K\Sigma)^{-1}K^\top Q` and :math:`2\Sigma(I + 2K^\top K\Sigma)^{-1}K^\top K` has norm
below one in the metric of K, so :math:`\|B\| \le \|V\|\|K^{-1}\|\|Q\|`.
"""

import torch

from attractor.laws import Attention
from attractor.meanfield import growth_rate
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.gaussians import cite, conclude_growth, gaussian_setting, integrate_gaussian
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Status, Theorem, gather_each


def sample(rng: Rng) -> Case:
    d = int(rng.integers(1, 4))
    query, value = rng.matrix(d), rng.matrix(d)
    key = torch.eye(d, dtype=torch.float64) + 0.4 * rng.matrix(d)
    law = Attention(query, key, value, kernel="l2")
    return Case(law, rng.gaussian(d), horizon=1.5 / max(growth_rate(law), 0.1))


def _square_margin(case: Case) -> Margin:
    key = case.attention.key
    return Margin.boolean(key.shape[-1] == key.shape[-2], f"the key is {tuple(key.shape)}")


def _invertible_margin(case: Case) -> Margin:
    values = torch.linalg.svdvals(case.attention.key.double())
    least = float((values[..., -1] / values[..., 0].clamp_min(1e-300)).min())
    return Margin.positive(least) if least > 1e-12 else Margin.boolean(False, "the key is singular")


def scale_values(case: Case) -> Case:
    """Replace the value by 30 I, beyond the bound of the original law."""
    law = case.attention
    return Case(
        Attention(law.query, law.key, 30.0 * torch.eye(law.dim, dtype=torch.float64), kernel="l2"),
        case.state,
        horizon=case.horizon,
    )


THEOREM = Theorem(
    key="meanfield.T8",
    title="L2 covariances grow at most exponentially",
    statement=r"L2 attention with square invertible keys: \(\|\Sigma_t\| \le "
    r"\|\Sigma_0\|\,e^{2\sum_h\|V_h\|\|K_h^{-1}\|\|Q_h\|\,t}\).",
    citation=cite("global existence for L2 attention; false for singular keys, see T9"),
    status=Status.HERE,
    hypotheses=(
        *gaussian_setting("l2"),
        Hypothesis("square key", r"K \in \mathbb{R}^{d\times d}", _square_margin, structural=True),
        Hypothesis("key invertible", r"\det K \ne 0", _invertible_margin, structural=True),
    ),
    fate="identity",
    conclude=conclude_growth,
    sample=sample,
    gather=gather_each(integrate_gaussian),
    break_case=scale_values,
    proof="In the metric of K the weights are a contraction, so B has norm at most |V| |inv K| |Q|.",
)
