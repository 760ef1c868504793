r"""T8: under a causal mask a stable value sends every token to zero, whatever the interaction and the rotary positions.

The first token obeys :math:`\dot x_1 = V x_1`; if the earlier ones are integrable, token l is bounded, its weight on itself stays above a
positive number, and it decays too. Near zero token l has the rate :math:`|\operatorname{Re}\lambda|/l`. Several heads need one norm that no
head lets grow (``attractor.weights.layers``): the usual one, or that of a definite metric that the heads share.
"""

import math

import torch

from attractor.laws import Rotary
from attractor.solvers import Trajectory
from attractor.theory.checking import STOP_FAR_AWAY, fit_exponential, select_valid_rows
from attractor.theory.conditions import Hypothesis, Margin, Verdict
from attractor.theory.hypotheses import CAUSAL, FLAT, NO_DRIFT, SOFTMAX, TOKENS, find_first_token
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.theory.timescales import NEAR, TimeScale, add_logs, format_time
from attractor.weights import Bounds, measure_contraction

SIZES = ((2, 4), (3, 4), (4, 2))
HORIZON = 64.0
SMALL = 1e-2  # self-weights below this are named


def stable_margin(case: Case) -> Margin:
    """One head: the spectrum of V. Several: in one norm no V_h expands in any direction and their sum contracts in all."""
    found = case.matrices
    size = float(torch.linalg.matrix_norm(found.value, 2).clamp_min(1e-300))
    if len(found.values) == 1:
        bounds = found.abscissa
        return Margin.bounded(Bounds(-bounds.value, -bounds.high, -bounds.low), size)
    usual = measure_contraction(found.values)
    assert usual is not None
    if Margin.nonnegative(-usual.excess).verdict is Verdict.HOLDS:
        return Margin.positive(usual.strength)
    own = measure_contraction(found.values, found.metric)
    # heads of less than full rank are zero elsewhere, which is an equation
    if own is not None and Margin.zero(max(own.excess, 0.0)).verdict is Verdict.HOLDS:
        return Margin.positive(own.strength, detail="in the norm of the metric of the heads")
    return Margin.nonnegative(
        -usual.excess, detail="a head expands in some direction, in the usual norm and in that of the metric"
    )


def solve_first_token(case: Case, run: Trajectory) -> torch.Tensor:
    """Return the exact solution of the first token, (S, d)."""
    times, value = run.times[select_valid_rows(run)], case.matrices.value
    return (
        torch.linalg.matrix_exp(times[:, None, None] * value)
        @ case.initial_tokens.points[find_first_token(case.tokens)]
    )


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    kept = select_valid_rows(run)
    points, first = run.points[kept], find_first_token(case.tokens)
    exact = solve_first_token(case, run)
    size = float(points[0].norm(dim=-1).max().clamp_min(1e-300))
    missed = float((points[:, first] - exact).norm(dim=-1).max()) / max(size, float(exact.norm(dim=-1).max()))
    norms = points.norm(dim=-1)
    worst = float((norms[-1] / size).max().clamp_min(1e-300).log10())
    rate = -float(torch.linalg.eigvals(case.matrices.value).real.max()) / case.tokens.n
    fitted = -fit_exponential(run.times[kept], norms.amax(-1)) if len(norms) > 4 else 0.0
    return (
        Measurement("the first token is e^(Vt) x_1(0)", -missed, 1e-7),
        Measurement("every norm falls below 1/50 of the start", -worst - 1.69897, asymptotic=True),
        Measurement("the slowest rate is near |Re| / n", -abs(fitted / rate - 1.0), 0.3, asymptotic=True),
    )


def draw_case(rng: Rng, n: int, value: torch.Tensor, **options: object) -> Case:
    law = rng.law(rng.definite(len(value)) + rng.skew(len(value)), value, **options)
    return Case(law, rng.tokens(n, len(value), 0.7), horizon=HORIZON, options=STOP_FAR_AWAY)


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    value = rng.definite(d, -1.0, 0.6, 1.2) + rng.skew(d, 0.3)
    return draw_case(rng, n, value, mask="causal", **({"positions": Rotary(10.0)} if rng.random() < 0.5 else {}))


def sample_unstable(rng: Rng) -> Case:
    n, d = rng.sizes(SIZES)
    return draw_case(rng, n, rng.definite(d, 1.0), mask="causal")


def sample_unmasked(rng: Rng) -> Case:
    """A stable value under full attention polarises if the metric is positive (T4)."""
    law = rng.metric_law(rng.definite(4), rng.definite(4, -1.0))
    return Case(law, rng.tokens(4, 4), horizon=16.0, options=STOP_FAR_AWAY)


def time_scale(case: Case) -> TimeScale:
    """Estimate by the self-weight of every token once the earlier ones are at zero, which may be tiny: there it hardly moves."""
    found, points = case.matrices, case.initial_tokens.points.double()
    slowest, n = -found.abscissa.value, len(points)
    rate = f"in the end norms fall like e^(-{slowest / n:.4g} t)"
    if len(found.values) > 1 or not slowest > 0:
        return TimeScale()
    order = torch.arange(n) if case.tokens.positions is None else case.tokens.positions.argsort().argsort()
    own, others = ((points @ found.interaction) * points).sum(-1), order.double().log()  # scores with zero are zero
    weights = own - torch.logaddexp(own, others)
    log_time = add_logs(-float(weights.min()), math.log(n * -math.log(NEAR))) - math.log(slowest)
    if float(weights.min()) < math.log(SMALL):
        share = format_time(float(weights.min()))
        rate = f"a token that gives itself the weight {share} hardly moves before; {rate}"
    return TimeScale(f"norms reach {NEAR:g} of the start", log_time, "order of magnitude", rate)


THEOREM = Theorem(
    key="regimes.T8",
    title="Causal collapse",
    statement=r"Under a causal mask, if every eigenvalue of \(V\) has a negative real part (several heads: one symmetric "
    r"\(L \succ 0\) has \(\operatorname{sym} L V_h \preceq 0\) for every head and \(\operatorname{sym} L \sum_h V_h \prec 0\)), every "
    r"token tends to zero exponentially, for any interaction, any rotary positions and any bounded bias of the scores; the first is "
    r"\(x_1(t) = e^{\sum_h V_h t} x_1(0)\).",
    citation=Citation("pham2025dynamical", "decoders, which it does not treat apart", "our value V is its V^T"),
    status=Status.HERE,
    hypotheses=(
        SOFTMAX,
        FLAT,
        TOKENS,
        NO_DRIFT,
        CAUSAL,
        Hypothesis("value stable", r"\max \operatorname{Re}\lambda(V) < 0", stable_margin),
    ),
    fate="collapse",
    time_scale=time_scale,
    rate=r"|x_l| \sim e^{-|\max\operatorname{Re}\lambda(V)|\,t/l}; \text{ slow where } \operatorname{sym} W \not\succeq 0",
    conclude=conclude,
    sample=sample,
    violate={"value stable": sample_unstable, "causal mask": sample_unmasked},
    proof="Induction over tokens: the earlier ones are integrable, so each is bounded (in the norm of L), sees itself with positive weight "
    "in every head, and decays.",
)
