"""T1, second part: where attention is a gradient flow, every trajectory has a limit.

E is analytic, the metric is analytic and the manifold compact, so by Lojasiewicz's inequality every trajectory has
finite length and converges to one equilibrium, at an exponential rate where that is not degenerate.
"""

from collections.abc import Sequence
from dataclasses import replace

from attractor.solvers import Trajectory
from attractor.theory.checking import geometric_times, select_valid_rows
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import to_sphere
from attractor.theory.theorem import Case, Measurement, Status, Theorem, integrate
from attractor.theory.theorems.consensus import gradient

HORIZON, LATER = 5000.0, 1e6
AT_REST = 1e-3
LONG_RUN = {"max_evaluations": 20_000_000}


def late_motion(case: Case, run: Trajectory) -> float:
    """Return the largest path length of a token in the second half of the time."""
    kept = select_valid_rows(run)
    points, times = to_sphere(case).map_points(run.points[kept]), run.times[kept]
    steps = (points[1:] - points[:-1]).norm(dim=-1).amax(-1)
    late = steps[times[1:] > 0.5 * times[-1]]
    return float(late.sum()) if len(late) else 2.0


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    moved = late_motion(case, run)
    return (Measurement("the second half of the time moves nothing", -moved, AT_REST, asymptotic=True),)


def gather(cases: Sequence[Case]) -> list[Trajectory]:
    """Integrate; cases that still move at the end (a start near a saddle may stay long) are integrated much longer."""
    runs = integrate(cases)
    for index, (case, run) in enumerate(zip(cases, runs, strict=True)):
        if case.horizon == HORIZON and late_motion(case, run) > AT_REST:
            runs[index] = integrate(
                [replace(case, horizon=LATER, options={"save": geometric_times(LATER), **LONG_RUN})]
            )[0]
    return runs


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, interaction = rng.space(d), gradient.draw_interaction(rng, d)
    law = rng.sphere_law(space, float(rng.uniform(0.5, 2.0)) * interaction, [interaction])
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, HORIZON, {"save": geometric_times(HORIZON)})


def sample_skew_value(rng: Rng) -> Case:
    """Draw a value with a large skew part, under which a consensus keeps rotating."""
    n, d = rng.sizes(SPHERE_SIZES)
    space, interaction = rng.space(d, 0.0), gradient.draw_interaction(rng, d)
    law = rng.sphere_law(space, interaction + rng.skew(d, 2.0), [interaction])
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, 60.0, {"save": geometric_times(60.0)})


def add_skew_value(case: Case) -> Case:
    law, d = case.attention, case.attention.dim
    value = law.value.clone()
    value[0, 1] += 9.0
    value[1, 0] -= 9.0
    assert d > 1
    return replace(case, law=replace(law, value=value), horizon=60.0, options={"save": geometric_times(60.0)})


THEOREM = Theorem(
    key="consensus.T1-limit",
    title="Gradient flows converge",
    statement=r"If \(P = P^\top\) and \(W V = c P\) with \(c > 0\), then every trajectory converges to an equilibrium.",
    citation=gradient.CITATION,
    status=Status.HERE,
    hypotheses=gradient.HYPOTHESES,
    fate="equilibrium",
    conclude=conclude,
    gather=gather,
    sample=sample,
    violate={"value follows interaction": sample_skew_value},
    break_case=add_skew_value,
    proof="An analytic gradient flow on a compact analytic manifold: Lojasiewicz.",
)
