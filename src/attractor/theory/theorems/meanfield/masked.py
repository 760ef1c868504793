"""T14: causal attention is stable in the conditional distance, position by position, for orders p > 1.

Prefix averages cost the constant :math:`p/(p-1)` of Hardy's inequality; at p = 1 it grows like the logarithm of n. Here
p = 2.
"""

from attractor.theory.gaussians import NO_BIASES_OR_POSITIONS, cite, require_kernel
from attractor.theory.hypotheses import FLAT, TOKENS
from attractor.theory.spheres import CAUSAL_IN_ORDER, EQUAL_MASSES
from attractor.theory.theorem import Status, Theorem, gather_each
from attractor.theory.theorems.meanfield import dobrushin

THEOREM = Theorem(
    key="meanfield.T14",
    title="Stability under a causal mask",
    statement=r"For causal softmax, L2 and sigmoid attention the conditional distance \(d_p(\mu, \nu)^p = \int "
    r"W_p(\mu^s, \nu^s)^p\,d\theta(s)\) obeys, for \(p = 2\), "
    r"\(d_p(\mu_t, \nu_t) \le d_p(\mu_0, \nu_0)\exp\int_0^t\big(L_x + \tfrac{p}{p-1}L_\mu\big)(R_s)\,ds\).",
    citation=cite(
        "masked attention and the conditional Wasserstein distance; the constant by Hardy's inequality is ours"
    ),
    status=Status.HERE,
    hypotheses=(
        require_kernel("softmax", "l2", "sigmoid"),
        FLAT,
        TOKENS,
        CAUSAL_IN_ORDER,
        EQUAL_MASSES,
        NO_BIASES_OR_POSITIONS,
    ),
    fate="identity",
    conclude=dobrushin.conclude,
    sample=lambda rng: dobrushin.draw_case(rng, "softmax", "l2", mask="causal"),
    gather=gather_each(dobrushin.measure_log_distances),
    break_case=dobrushin.scale_values,
    proof="As for T13 at every position; Hardy's inequality sums the prefix averages.",
)
