r"""T4: bounds of the blow-up time for positive definite V and S.

:math:`\|\Sigma\|' \le 2\|V\|\|A\|\|\Sigma\|^2` gives the lower bound; :math:`\operatorname{tr}(V^{-1}\Sigma)' =
2\operatorname{tr}(\Sigma S\Sigma) \ge \frac{2}{d}\lambda_{\min}(S)\lambda_{\min}(V)^2\operatorname{tr}(V^{-1}\Sigma)^2`
the upper one.
"""

import math

from attractor.meanfield import BlowUp, blow_up_bounds, find_blow_up
from attractor.theory.gaussians import DEFINITE_VALUE, FULL_RANK, SOFTMAX_GAUSSIAN, SYMMETRIC_POSITIVE, cite
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale


def locate_blow_up(case: Case) -> BlowUp:
    upper = blow_up_bounds(case.attention, case.gaussian).upper
    return find_blow_up(case.law, case.gaussian, until=5.0 if math.isinf(upper) else 1.1 * upper)


def conclude(case: Case, seen: BlowUp) -> tuple[Measurement, ...]:
    bounds = blow_up_bounds(case.attention, case.gaussian)
    return (
        Measurement("not before the lower bound", float(seen.time / bounds.lower) - 1.0, 1e-9),
        Measurement("not after the upper bound", float(bounds.upper / seen.time) - 1.0, 1e-9),
    )


def sample(rng: Rng) -> Case:
    d = int(rng.integers(1, 5))
    return Case(rng.softmax_law(rng.definite(d) + rng.skew(d, 0.3), rng.definite(d)), rng.gaussian(d))


def sample_indefinite(rng: Rng) -> Case:
    return Case(rng.softmax_law(rng.indefinite(3), rng.definite(3)), rng.gaussian(3))


def time_scale(case: Case) -> TimeScale:
    bounds = blow_up_bounds(case.attention, case.gaussian)
    rate = f"not before t = {bounds.lower:.4g}"
    return TimeScale("the covariance becomes infinite", math.log(bounds.upper), "at the latest", rate)


THEOREM = Theorem(
    key="meanfield.T4",
    title="Bounds of the blow-up time",
    statement=r"Softmax attention with \(V = V^\top \succ 0\) and \(S \succ 0\): the covariance blows up at a time with "
    r"\(\frac{1}{2\|V\|\|A\|\|\Sigma_0\|} \le T^* \le "
    r"\frac{d}{2\lambda_{\min}(S)\lambda_{\min}(V)^2\operatorname{tr}(V^{-1}\Sigma_0)}\).",
    citation=cite("finite-time blow-up of Gaussian covariances"),
    status=Status.HERE,
    hypotheses=(*SOFTMAX_GAUSSIAN, FULL_RANK, DEFINITE_VALUE, SYMMETRIC_POSITIVE),
    fate="blow-up",
    time_scale=time_scale,
    conclude=conclude,
    sample=sample,
    violate={"interaction positive": sample_indefinite},
    gather=gather_each(locate_blow_up),
    proof="Two differential inequalities, for the norm and for tr(inv(V) Sigma).",
)
