"""C1, a conjecture: both symmetric-part conditions and a stable value, without any symmetry, might be enough for collapse.

The symmetric-part conditions alone are not: W = R(a), A = -R(-a) with 45 < a < 90 degrees satisfies them with an unstable value.
"""

from dataclasses import replace

from attractor.solvers import Trajectory
from attractor.theory.checking import fit_power, geometric_times, largest_norms, select_valid_rows
from attractor.theory.conditions import Hypothesis
from attractor.theory.hypotheses import (
    INTERACTION_POSITIVE,
    METRIC,
    METRIC_NEGATIVE,
    ONE_HEAD,
    STANDARD_SETTING,
    cite_regimes,
)
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, reverse_velocity
from attractor.theory.theorems.regimes.causal_collapse import stable_margin
from attractor.theory.theorems.regimes.collapse import sample_rotation
from attractor.theory.timescales import fall_algebraically

HORIZON = 100.0


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    norms = largest_norms(run)
    slope = fit_power(run.times[select_valid_rows(run)], norms) if len(norms) > 2 else 0.0
    return (Measurement("norms keep falling, as a power of time at least", -slope - 0.5, 0.3, asymptotic=True),)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes()
    law = rng.metric_law(rng.definite(d, -1.0) + rng.skew(d, 0.8), rng.definite(d) + rng.skew(d, 0.8))
    return Case(law, rng.tokens(n, d, 0.7), horizon=HORIZON, options={"save": geometric_times(HORIZON)})


THEOREM = Theorem(
    key="regimes.C1",
    title="Collapse with a stable value",
    statement=r"If one head has \(\operatorname{sym} A \prec 0\), \(\operatorname{sym} W \succ 0\), \(W = A V\), and every eigenvalue of "
    r"\(V\) has a negative real part, then \(x_l(t) \to 0\) for every token and every start.",
    citation=cite_regimes("its convergence theorem with a stable value as a further hypothesis"),
    status=Status.CONJECTURE,
    hypotheses=(
        *STANDARD_SETTING,
        ONE_HEAD,
        METRIC,
        METRIC_NEGATIVE,
        INTERACTION_POSITIVE,
        Hypothesis("value stable", r"\max \operatorname{Re}\lambda(V) < 0", stable_margin),
    ),
    fate="collapse",
    time_scale=fall_algebraically,
    rate=r"\|x\| \sim t^{-1/2}",
    conclude=conclude,
    sample=sample,
    violate={"value stable": sample_rotation},
    break_case=lambda case: replace(reverse_velocity(case), horizon=5.0, options={}),
    proof="None known.",
)
