r"""T4: bounds of the blow-up time for positive definite V and S.

:math:`\|\Sigma\|' \le 2\|V\|\|A\|\|\Sigma\|^2` gives the lower bound; :math:`\operatorname{tr}(V^{-1}\Sigma)' =
2\operatorname{tr}(\Sigma S\Sigma) \ge \frac{2}{d}\lambda_{\min}(S)\lambda_{\min}(V)^2\operatorname{tr}(V^{-1}\Sigma)^2`
the upper one.
"""

from __future__ import annotations

import math

from attractor.meanfield import BlowUp, blow_up, blow_up_bounds
from attractor.theory import gaussians as mean_field
from attractor.theory.sampling import Draw, definite, indefinite, skew
from attractor.theory.theorem import Case, Measurement, Status, Theorem, each


def found(case: Case) -> BlowUp:
    upper = blow_up_bounds(case.attention, mean_field.start_of(case)).upper
    return blow_up(case.law, mean_field.start_of(case), until=5.0 if math.isinf(upper) else 1.1 * upper)


def conclude(case: Case, seen: BlowUp) -> tuple[Measurement, ...]:
    bounds = blow_up_bounds(case.attention, mean_field.start_of(case))
    return (
        Measurement("not before the lower bound", float(seen.time / bounds.lower) - 1.0, 1e-9),
        Measurement("not after the upper bound", float(bounds.upper / seen.time) - 1.0, 1e-9),
    )


def sample(draw: Draw) -> Case:
    d = int(draw.integers(1, 5))
    return Case(
        mean_field.softmax_law(draw, definite(draw, d) + skew(draw, d, 0.3), definite(draw, d)),
        mean_field.normal(draw, d),
    )


def saddle(draw: Draw) -> Case:
    return Case(mean_field.softmax_law(draw, indefinite(draw, 3), definite(draw, 3)), mean_field.normal(draw, 3))


THEOREM = Theorem(
    key="meanfield.T4",
    title="Bounds of the blow-up time",
    statement=r"Softmax attention with \(V = V^\top \succ 0\) and \(S \succ 0\): the covariance blows up at a time with "
    r"\(\frac{1}{2\|V\|\|A\|\|\Sigma_0\|} \le T^* \le "
    r"\frac{d}{2\lambda_{\min}(S)\lambda_{\min}(V)^2\operatorname{tr}(V^{-1}\Sigma_0)}\).",
    citation=mean_field.cite("finite-time blow-up of Gaussian covariances"),
    status=Status.HERE,
    hypotheses=(
        *mean_field.SOFTMAX_GAUSSIAN,
        mean_field.FULL_RANK,
        mean_field.DEFINITE_VALUE,
        mean_field.SYMMETRIC_POSITIVE,
    ),
    fate="blow-up",
    conclude=conclude,
    sample=sample,
    violate={"interaction positive": saddle},
    gather=each(found),
    proof="Two differential inequalities, for the norm and for tr(inv(V) Sigma).",
)
