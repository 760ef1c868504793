r"""T10, second part: under Sinkhorn attention covariances grow at most like :math:`e^{2\|V\|t}`.

The coupling has both marginals :math:`\mu`, so the conditional mean M x has :math:`M\Sigma M^\top \preceq \Sigma`, and
:math:`\|B\Sigma\| = \|VM\Sigma\| \le \|V\|\|\Sigma\|`.
"""

import torch

from attractor.laws import Sinkhorn
from attractor.theory.gaussians import cite, conclude_growth, gaussian_setting, integrate_gaussian
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Status, Theorem, gather_each


def sample(rng: Rng) -> Case:
    d = int(rng.integers(1, 4))
    law = rng.law(rng.matrix(d, 1.5), rng.definite(d), kernel=Sinkhorn(eps=float(rng.uniform(0.3, 2.0))))
    return Case(law, rng.gaussian(d), horizon=1.0)


def scale_values(case: Case) -> Case:
    """Replace the law by one with value 20 I and sharp attention, beyond the bound of the original law."""
    d = case.attention.dim
    eye = torch.eye(d, dtype=torch.float64)
    return Case(
        type(case.attention)(3.0 * eye, eye, 20.0 * eye, kernel=Sinkhorn(eps=0.1)), case.state, horizon=case.horizon
    )


THEOREM = Theorem(
    key="meanfield.T10-growth",
    title="Sinkhorn covariances grow at most exponentially",
    statement=r"Sinkhorn attention: \(\|\Sigma_t\| \le \|\Sigma_0\|\,e^{2\sum_h\|V_h\|t}\) for Gaussian data: no blow-up.",
    citation=cite("Sinkhorn attention"),
    status=Status.HERE,
    hypotheses=gaussian_setting("sinkhorn"),
    fate="identity",
    conclude=conclude_growth,
    sample=sample,
    gather=gather_each(integrate_gaussian),
    break_case=scale_values,
    proof="A conditional mean of a coupling of mu with itself does not increase second moments.",
)
