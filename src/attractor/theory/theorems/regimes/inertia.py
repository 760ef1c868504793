r"""T5: the value has as many unstable directions as the metric has positive eigenvalues.

:math:`A V + V^\top A = 2\operatorname{sym} W` is a Lyapunov equation with a definite right-hand side; the inertia theorem of
Ostrowski and Schneider counts.
"""

import torch

from attractor.laws import Attention
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import ONE_HEAD, SOFTMAX, SYMMETRIC_METRIC, cite_regimes
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.weights import extremes, symmetrize


def conclude(case: Case, value: torch.Tensor) -> tuple[Measurement, ...]:
    sign = 1.0 if extremes(case.matrices.interaction)[0] > 0 else -1.0
    positive = int((torch.linalg.eigvalsh(symmetrize(sign * case.matrices.metric)) > 0).sum())
    unstable = int((torch.linalg.eigvals(value).real > 0).sum())
    return (Measurement("eigenvalues counted", -abs(unstable - positive)),)


def get_value(case: Case) -> torch.Tensor:
    law = case.attention
    assert isinstance(law, Attention)
    return law.value_map.reshape(law.dim, law.dim)


def sample(rng: Rng) -> Case:
    d = int(rng.integers(2, 12))
    sign = 1.0 if rng.random() < 0.5 else -1.0
    # an odd number of directions cannot be split evenly, so reversing V changes the count
    positive = int(rng.choice([count for count in range(d + 1) if 2 * count != d]))
    metric = rng.indefinite(d, positive, 0.1, 3.0)
    return Case(rng.metric_law(metric, sign * (rng.definite(d, 1.0, 0.1, 3.0) + rng.skew(d, 1.0))))


def sample_asymmetric(rng: Rng) -> Case:
    metric = rng.indefinite(6) + rng.skew(6, 1.0)
    return Case(rng.metric_law(metric, rng.definite(6) + rng.skew(6, 1.0)))


def sample_indefinite(rng: Rng) -> Case:
    return Case(rng.metric_law(rng.indefinite(6), rng.indefinite(6)))


def definiteness(case: Case) -> float:
    low, high = extremes(case.matrices.interaction)
    return max(low, -high)


THEOREM = Theorem(
    key="regimes.T5",
    title="Inertia law",
    statement=r"If \(A = A^\top\), \(W = A V\) and \(\operatorname{sym} W \succ 0\), then \(V\) has as many eigenvalues with positive "
    r"real part as \(A\) has positive eigenvalues; for \(\operatorname{sym} W \prec 0\), as \(-A\) has.",
    citation=cite_regimes("joins its two criteria, A not negative and V with a positive eigenvalue"),
    status=Status.HERE,
    hypotheses=(
        SOFTMAX,
        ONE_HEAD,
        *SYMMETRIC_METRIC,
        Hypothesis(
            "interaction definite",
            r"\operatorname{sym} W \succ 0 \text{ or } \prec 0",
            lambda case: Margin.positive(definiteness(case)),
        ),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"metric symmetric": sample_asymmetric, "interaction definite": sample_indefinite},
    gather=gather_each(get_value),
    proof="A V + V'A = 2 sym W; inertia theorem of Ostrowski and Schneider.",
    time_independent=True,
)
