r"""T2 for discrete layers: heights and margin never fall, for any step, mask and kernel.

:math:`|x_i + hb_i| \le 1 + hc` and :math:`\langle e, x_i + hb_i\rangle \ge (1 + hc)\,m_e`, so :math:`\langle e, N(x_i +
hb_i)\rangle \ge m_e` where :math:`m_e \ge 0`.
"""

import torch

from attractor.theory.hypotheses import TOKENS
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import ATTRACTION, HEMISPHERE, IDENTITY_VALUES, SPHERE_SETTING
from attractor.theory.theorem import Case, Status, Theorem
from attractor.theory.theorems.consensus import hemisphere, hemisphere_margin
from attractor.theory.theorems.consensus.gradient_layers import LAYERS, STEPS, integrate_layers, layer_options


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, value = rng.space(d), torch.eye(d, dtype=torch.float64)
    step = STEPS[int(rng.integers(len(STEPS)))]
    law = rng.sphere_heads(space, value, mask=(None, "causal")[int(rng.integers(2))])
    return Case(law, map_to_space(space, rng.hemisphere(n, d)), space, LAYERS * step, layer_options(step))


def sample_skew_value(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, value = rng.space(d, 0.0), torch.eye(d, dtype=torch.float64)
    value[0, 1], value[1, 0] = 2.0, -2.0
    return Case(
        rng.sphere_heads(space, value),
        map_to_space(space, rng.hemisphere(n, d)),
        space,
        LAYERS * 1.0,
        layer_options(1.0),
    )


THEOREM = Theorem(
    key="consensus.T2-layers",
    title="Hemispheres are never left, layer by layer",
    statement=r"If \(V_h = c_h I\) with \(c_h \ge 0\), then along discrete layers \(x \mapsto N(x + h\,b(x))\) with "
    r"any step \(h > 0\), any mask and any "
    r"weights that are not negative, \(\rho\) and every \(\min_i\langle e, x_i\rangle_W \ge 0\) never decrease.",
    citation=hemisphere.CITATION,
    status=Status.HERE,
    hypotheses=(TOKENS, *SPHERE_SETTING, IDENTITY_VALUES, ATTRACTION, HEMISPHERE),
    fate="monotone",
    quantity="the hemisphere margin (distance of the origin from the convex hull), layer by layer",
    conclude=hemisphere_margin.conclude,
    sample=sample,
    violate={"identity values": sample_skew_value},
    gather=integrate_layers,
    proof="The drive is at most c long and at least c m_e high.",
)
