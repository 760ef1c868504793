r"""What tokens do along the depth of a trained model, and the growth that its value maps alone would give.

Mean norm, pairwise distance and cosine before every block and after the last; for every layer :math:`\max \mathrm{Re}\,\lambda` of the
value map :math:`\sum_h O_h V_h`, which alone decides the limit of causal attention (T8 of [pham2025dynamical]).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attractor.nn import TransformerBlock
from attractor.observables import cosine, pairwise_distance, token_norm
from attractor.states import Tokens

OBSERVED = {"norm": token_norm, "distance": pairwise_distance, "cosine": cosine}


@torch.no_grad()
def trace(model: Any, given: Tensor) -> dict[str, Any]:
    """Curves along depth, and the spectrum of every layer's value map."""
    model.eval()
    states = [Tokens(state.double()) for state in model.states(given)]
    curves: dict[str, Any] = {
        name: [round(float(observe(state).mean()), 6) for state in states] for name, observe in OBSERVED.items()
    }
    return {**curves, "growth": [growth(block) for block in model.backbone.blocks]}


def growth(block: TransformerBlock) -> float | None:
    """The largest real part among the eigenvalues of a layer's value map; None where weights are not finite."""
    total = block.attention.weights(torch.float64).value_map().sum(0)
    if not bool(total.isfinite().all()):
        return None
    return round(float(torch.linalg.eigvals(total).real.max()), 6)
