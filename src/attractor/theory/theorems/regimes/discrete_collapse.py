r"""D1: discrete layers keep the collapse of T1 exactly as long as they keep the mean: :math:`\rho(I + hV) < 1`.

Near zero a layer multiplies the mean by :math:`I + hV`, and deviations by :math:`I + hVCW^\top` with a vanishing covariance C.
"""

from dataclasses import replace

import numpy as np
import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import fit_power, largest_norms, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import (
    DISCRETE_LAYERS,
    INTERACTION_POSITIVE,
    METRIC_NEGATIVE,
    STANDARD_SETTING,
    SYMMETRIC_METRIC,
)
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import TimeScale
from attractor.weights import Bounds, bound_radius

LAYERS = 400


def _contracting_margin(case: Case) -> Margin:
    value = case.matrices.value
    radius = bound_radius(torch.eye(len(value), dtype=value.dtype) + float(case.options["step"]) * value)
    return Margin.bounded(Bounds(1 - radius.value, 1 - radius.high, 1 - radius.low), 1.0)


def _small_margin(case: Case) -> Margin:
    """The statement is local: scores small enough that no softmax saturates."""
    size = (
        float(torch.linalg.matrix_norm(case.matrices.interaction, 2))
        * float(case.initial_tokens.points.norm(dim=-1).max()) ** 2
    )
    return Margin.positive(0.5 - size)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    norms = largest_norms(run)
    slope = fit_power(run.times[select_valid_rows(run)][1:], norms[1:]) if len(norms) > 3 else 0.0
    return (Measurement("norms keep falling along layers", -slope, -0.1, asymptotic=True),)


def draw_case(rng: Rng, low: float, high: float) -> Case:
    n, d = rng.sizes()
    law = rng.metric_law(rng.definite(d, -1.0), rng.definite(d) + rng.skew(d, 0.2))
    values = torch.linalg.eigvals(law.value_map)
    limit = float((-2 * values.real / values.abs().square()).min())  # |1 + h lambda| < 1 for all
    step = float(rng.uniform(low, high)) * limit
    layers = np.unique(np.geomspace(1, LAYERS, 60).astype(int))
    options = {"method": "layers", "step": step, "save": [0.0, *(step * layers).tolist()]}
    tokens = rng.tokens(n, d)
    size = float(torch.linalg.matrix_norm(law.interaction, 2)) * float(tokens.points.norm(dim=-1).max()) ** 2
    tokens = replace(tokens, points=tokens.points * (0.3 / size) ** 0.5)
    return Case(law, tokens, horizon=step * LAYERS, options=options)


THEOREM = Theorem(
    key="regimes.D1",
    title="Collapse along discrete layers",
    statement=r"Under the hypotheses of T1, discrete layers \(x \leftarrow x + h\,\dot x\) from tokens near zero collapse if "
    r"\(\rho(I + h\sum_h V_h) < 1\), and do not if it exceeds 1.",
    citation=Citation(
        "pham2025dynamical",
        "its theorems are in continuous time",
        "our value V is its V^T; h is the size of a residual step",
    ),
    status=Status.CHECKED,
    hypotheses=(
        *STANDARD_SETTING,
        DISCRETE_LAYERS,
        *SYMMETRIC_METRIC,
        METRIC_NEGATIVE,
        INTERACTION_POSITIVE,
        Hypothesis("small start", r"\|W\|\max_l|x_l(0)|^2 < 1/2", _small_margin),
        Hypothesis("radius below one", r"\rho(I + hV) < 1", _contracting_margin),
    ),
    fate="collapse",
    time_scale=lambda case: TimeScale(rate="norms fall like t^(-1/2)"),
    rate=r"\|x\| \sim t^{-1/2}",
    conclude=conclude,
    sample=lambda rng: draw_case(rng, 0.2, 0.95),
    violate={"radius below one": lambda rng: draw_case(rng, 1.05, 1.5)},
    proof="Linearisation of the mean; the deviations were measured.",
)
