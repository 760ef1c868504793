r"""T1: attention is a gradient flow of the interaction energy exactly where the value follows the interaction.

On the unit sphere, :math:`E = \tfrac12\sum_{ij}m_im_je^{x_i^\top Px_j}` with P symmetric has :math:`\partial E/\partial
x_i = m_iZ_iP\tilde b_i`, where :math:`\tilde b_i = \sum_jw_{ij}x_j`. If :math:`U = cP`, this is :math:`m_iZ_iU\tilde
b_i/c`, whose tangent part is :math:`m_iZ_i\dot x_i/c`: the flow is c times the gradient in the metric :math:`g(u, v) =
\sum_im_iZ_iu_i^\top v_i`, definite P or not. On :math:`E_W` the condition reads :math:`WV = cP`.
"""

import torch
from torch import Tensor

from attractor.observables import energy, energy_rate, partition
from attractor.solvers import Trajectory, velocity
from attractor.states import Tokens
from attractor.theory.checking import select_valid_rows, smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import BIASES, FULL, NO_POSITIONS, ONE_HEAD, SOFTMAX, TOKENS
from attractor.theory.sampling import SPHERE_SIZES, Rng, map_to_space
from attractor.theory.spheres import ON_SPHERE, to_sphere
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem
from attractor.weights import asymmetry


def proportion(case: Case) -> tuple[float, float]:
    """c and the relative residual of U = c P."""
    found = to_sphere(case)
    value, interaction = found.total, found.interactions[0]
    c = float((value * interaction).sum() / interaction.square().sum().clamp_min(1e-300))
    return c, float((value - c * interaction).norm() / value.norm().clamp_min(1e-300))


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    c, _ = proportion(case)
    kept = select_valid_rows(run)
    rows = list(range(kept.stop))[:: max(1, kept.stop // 8)]
    states = [Tokens(run.points[row], case.tokens.masses) for row in rows]
    balance = max(_balance(case, state, c) for state in states)
    parallel = max(_parallel(case, state, c) for state in states[:3])
    level = torch.stack([energy(Tokens.unchecked(points, case.tokens.masses), case.law) for points in run.points[kept]])
    return (
        Measurement("energy rate is the squared speed", -balance, 1e-12),
        Measurement("the gradient points along the velocity", -parallel, 1e-12),
        Measurement("energy never decreases", smallest_increase(level, level), 1e-8),
    )


def _balance(case: Case, state: Tokens, c: float) -> float:
    """Return |dE/dt - (squared speed) / c| relative to the terms that cancel in it."""
    rate = float(energy_rate(state, case.law, case.space))
    found, motion = to_sphere(case), velocity(case.law, state, case.space)
    weights = state.weights * partition(state, case.law).squeeze(-2)
    speeds = found.map_points(motion).norm(dim=-1)
    squared = float((weights * speeds.square()).sum()) / c
    # near rest, rounding of the drive outweighs its tangent part
    drive = torch.linalg.matrix_norm(found.total, 2)
    size = squared + float((weights * (speeds + 1e-3 * drive)).sum() * found.score_bounds[0])
    return abs(rate - squared) / max(size, 1e-300)


def _parallel(case: Case, state: Tokens, c: float) -> float:
    """Return the relative difference of the tangent gradient (by automatic differentiation) and the weighted velocity."""
    found = to_sphere(case)
    points = found.map_points(state.points).requires_grad_()
    inverse = torch.linalg.inv(found.root)
    energy(Tokens.unchecked(points @ inverse.mT, state.masses), case.law).backward()
    assert isinstance(points.grad, Tensor)
    gradient, at = points.grad / state.weights[:, None], points.detach()
    gradient = gradient - at * (at * gradient).sum(-1, keepdim=True)
    motion = found.map_points(velocity(case.law, state, case.space))
    wanted = partition(state, case.law).squeeze(-2)[:, None] * motion / c
    return float((gradient - wanted).norm() / points.grad.norm().clamp_min(1e-300) * float(state.weights.min()))


def draw_interaction(rng: Rng, d: int) -> Tensor:
    return (rng.definite(d), rng.definite(d, -1.0), rng.indefinite(d))[int(rng.integers(3))]


def sample(rng: Rng) -> Case:
    n, d = rng.sizes(SPHERE_SIZES)
    space, interaction = rng.space(d), draw_interaction(rng, d)
    law = rng.sphere_law(space, float(rng.uniform(0.3, 2.0)) * interaction, [interaction])
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, horizon=6.0)


def draw_case(rng: Rng, shape: str) -> Case:
    """Draw a case that violates one hypothesis."""
    n, d = rng.sizes(SPHERE_SIZES)
    space = rng.space(d, 0.0)
    interaction = rng.definite(d, 1.0, 0.2, 4.0)
    value, mask = interaction, None
    if shape == "identity":
        value = torch.eye(d, dtype=torch.float64)
    elif shape == "skew":
        value = interaction = interaction + rng.skew(d, 2.0)
    elif shape == "negative":
        value = -interaction
    elif shape == "masked":
        mask = "causal"
    law = rng.sphere_law(space, value, [interaction], mask=mask)
    return Case(law, map_to_space(space, rng.unit_points(n, d)), space, horizon=6.0)


def _unbiased_margin(case: Case) -> Margin:
    law = case.attention
    biased = [name for name in BIASES if (bias := getattr(law, name)) is not None and bool((bias != 0).any())]
    return Margin.boolean(not biased, ", ".join(biased) or "no biases")


def _proportional_margin(case: Case) -> Margin:
    c, residual = proportion(case)
    return Margin.zero(residual, detail=f"c = {c:.4g}")


def _sign_margin(case: Case) -> Margin:
    found = to_sphere(case)
    return Margin.positive(
        proportion(case)[0] * float(found.interactions[0].norm() / found.total.norm().clamp_min(1e-300))
    )


def _symmetric_margin(case: Case) -> Margin:
    return Margin.zero(asymmetry(to_sphere(case).interactions[0]))


UNBIASED = Hypothesis("no biases at all", r"s_{ij} = x_i^\top P x_j", _unbiased_margin, structural=True)
SYMMETRIC = Hypothesis("interaction symmetric", r"P = P^\top", _symmetric_margin)
PROPORTIONAL = Hypothesis("value follows interaction", r"W V = c P", _proportional_margin)
FORM = (SOFTMAX, ON_SPHERE, TOKENS, FULL, NO_POSITIONS, UNBIASED, ONE_HEAD)
HYPOTHESES = (*FORM, SYMMETRIC, PROPORTIONAL, Hypothesis("ascent", r"c > 0", _sign_margin))
CITATION = Citation(
    "abella2024asymptotic",
    "the gradient structure, stated there for U = I and a positive definite P; that case needs the ellipsoid with "
    "W proportional to P",
    "P = scale Q'K is its P, V is its U, x'Wx = 1 its ellipsoid; its energy counts every token with mass one",
)


THEOREM = Theorem(
    key="consensus.T1",
    title="Gradient structure",
    statement=r"If \(P = P^\top\) and \(W V = c P\) with \(c > 0\), then \(E = \tfrac12\sum_{ij} m_i m_j e^{x_i^\top P x_j}\) "
    r"satisfies \(\dot E = \tfrac1c\sum_i m_i Z_i |\dot x_i|_W^2 \ge 0\): the flow is \(c\) times the gradient of \(E\) in the "
    r"metric \(\sum_i m_i Z_i u_i^\top W v_i\). \(P\) need not be definite; \(V = I\) on the sphere needs \(P\) proportional to "
    r"\(I\).",
    citation=CITATION,
    status=Status.HERE,
    hypotheses=HYPOTHESES,
    fate="monotone",
    quantity="the energy E = 1/2 sum_ij m_i m_j exp(<x_i, P x_j>)",
    conclude=conclude,
    sample=sample,
    violate={
        "value follows interaction": lambda rng: draw_case(rng, "identity"),
        "interaction symmetric": lambda rng: draw_case(rng, "skew"),
        "ascent": lambda rng: draw_case(rng, "negative"),
        "full attention": lambda rng: draw_case(rng, "masked"),
    },
    proof="The derivative of E in x_i is m_i Z_i P b_i = m_i Z_i W V b_i / c, and the projection to the tangent "
    "space is W-orthogonal.",
)
