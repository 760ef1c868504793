"""C1, a conjecture: both symmetric-part conditions and a stable value, without any symmetry, might be enough for collapse.

The symmetric-part conditions alone are not: W = R(a), A = -R(-a) with 45 < a < 90 degrees satisfies them with an unstable value.
"""

from __future__ import annotations

from dataclasses import replace

from attractor.solvers import Trajectory
from attractor.theory import hypotheses as given
from attractor.theory.checking import alive, decades, largest_norms, power
from attractor.theory.conditions import Hypothesis
from attractor.theory.sampling import Draw, cloud, definite, metric_law, sizes, skew
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, negated
from attractor.theory.theorems.regimes.causal_collapse import stable
from attractor.theory.theorems.regimes.collapse import rotation

HORIZON = 100.0


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    norms = largest_norms(run)
    slope = power(run.times[alive(run)], norms) if len(norms) > 2 else 0.0
    return (Measurement("norms keep falling, as a power of time at least", -slope - 0.5, 0.3, asymptotic=True),)


def sample(draw: Draw) -> Case:
    n, d = sizes(draw)
    law = metric_law(draw, definite(draw, d, -1.0) + skew(draw, d, 0.8), definite(draw, d) + skew(draw, d, 0.8))
    return Case(law, cloud(draw, n, d, 0.7), horizon=HORIZON, options={"save": decades(HORIZON)})


THEOREM = Theorem(
    key="regimes.C1",
    title="Collapse with a stable value",
    statement=r"If one head has \(\operatorname{sym} A \prec 0\), \(\operatorname{sym} W \succ 0\), \(W = A V\), and every eigenvalue of "
    r"\(V\) has a negative real part, then \(x_l(t) \to 0\) for every token and every start.",
    citation=Citation(
        "pham2025dynamical",
        "its convergence theorem with a stable value as a further hypothesis",
        "W = Q'K is its QK^T; our value V is its V^T; A is its W (V^T)^-1",
    ),
    status=Status.CONJECTURE,
    hypotheses=(
        *given.PLAIN,
        given.TOKENS,
        given.ONE_HEAD,
        given.METRIC,
        given.METRIC_NEGATIVE,
        given.INTERACTION_POSITIVE,
        Hypothesis("value stable", r"\max \operatorname{Re}\lambda(V) < 0", stable),
    ),
    fate="collapse",
    rate=r"\|x\| \sim t^{-1/2}",
    conclude=conclude,
    sample=sample,
    violate={"value stable": rotation},
    broken=lambda case: replace(negated(case), horizon=5.0, options={}),
    proof="None known.",
)
