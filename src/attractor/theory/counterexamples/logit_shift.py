"""Adding lambda I to the interaction favours divergence or collapse, depending on the sign of the value."""

import numpy as np
import torch

from attractor.plotting import Curve, Panel
from attractor.theory.claims import CounterExample, Evidence
from attractor.theory.sampling import Rng
from attractor.weights import symmetrize


def run() -> Evidence:
    rng = Rng.from_seed(0)
    interaction = rng.definite(4) + rng.skew(4)
    shifts = np.linspace(0.0, 2.0, 21)
    curves, slopes = [], {}
    for name, value in (
        ("V positive, W + lambda I", rng.definite(4)),
        ("V negative, W + lambda I", rng.definite(4, -1.0)),
    ):
        tops = [
            float(torch.linalg.eigvalsh(symmetrize(value.mT @ (interaction + s * torch.eye(4)))).sum()) for s in shifts
        ]
        curves.append(Curve(shifts.tolist(), tops, name))
        slopes[name] = tops[-1] - tops[0]
        safe = [float(torch.linalg.eigvalsh(symmetrize(value.mT @ (interaction + s * value))).sum()) for s in shifts]
        curves.append(Curve(shifts.tolist(), safe, name.replace("I", "V"), dashed=True))
        slopes[name + " safe"] = safe[-1] - safe[0]
    values = list(slopes.values())
    facts = {
        "change_for_positive_V": values[0],
        "change_for_negative_V": values[2],
        "change_of_the_shift_by_V": min(values[1], values[3]),
    }
    refuted = values[0] > 0 > values[2] and min(values[1], values[3]) > 0
    sentence = (
        f"the trace of sym(V'W) changes by {values[0]:.3g} under W + 2 I for positive V and by {values[2]:.3g} for "
        f"negative V; under W + 2 V it grows for both"
    )
    panel = Panel(tuple(curves), "lambda", "trace of sym(V'(W + shift))")
    return Evidence(facts, refuted, sentence, (panel,))


EXAMPLE = CounterExample(
    key="regimes.lambda-identity",
    title="The lambda term in the logits",
    claim="Adding a positive multiple of the identity to the interaction moves a head away from the convergence condition.",
    source="pham2025dynamical",
    place="the refinement of rotary models",
    basis="paper",
    verdict="incomplete",
    truth="It changes sym(V'W) by lambda sym(V): right for positive V, wrong for negative V. W + lambda V, which "
    "makes A + lambda I, is right for every V.",
    run=run,
)
