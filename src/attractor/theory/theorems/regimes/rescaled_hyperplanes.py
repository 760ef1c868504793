r"""Rescaled tokens :math:`z_i = e^{-tV}x_i` tend to at most three parallel hyperplanes if V has one leading eigenvalue.

With :math:`V^\top u = \lambda u`, :math:`\lambda > 0`, the heights :math:`u\cdot z_i` obey :math:`\tfrac{d}{dt}u\cdot z_i =
\lambda(\sum_jw_{ij}\,u\cdot z_j - u\cdot z_i)`, so the largest never grows and the smallest never falls, under any rows of weights that
sum to one. That every height tends to one of three numbers is the theorem of the paper.
"""

import torch

from attractor.solvers import Trajectory
from attractor.theory.checking import smallest_increase
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import ONE_HEAD, STANDARD_SETTING
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.theory.theorems.regimes.rescaled_polytope import SYMBOLS, integrate_rescaled

HORIZON = 12.0


def leading_eigenvectors(value: torch.Tensor) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return the eigenvalue of largest modulus by its real part, and unit right and left eigenvectors."""
    found, right = torch.linalg.eig(value)
    place = int(found.abs().argmax())
    others, left = torch.linalg.eig(value.mT)
    match = int((others - found[place]).abs().argmin())
    phi, u = right[:, place].real, left[:, match].real
    return float(found[place].real), phi / phi.norm(), u / u.norm()


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    _, _, u = leading_eigenvectors(case.matrices.value)
    heights = run.points @ u
    size = heights[0].abs().max()
    last = heights[-1]
    levels = torch.stack((last.max(), last.min(), last.new_zeros(())))
    away = (last[:, None] - levels).abs().amin(-1) / (last.abs().max())
    return (
        Measurement("the largest height never grows", smallest_increase(-heights.amax(-1), size), 1e-7),
        Measurement("the smallest height never falls", smallest_increase(heights.amin(-1), size), 1e-7),
        Measurement("heights end at three values", -float(away.max()), 0.02, asymptotic=True),
    )


def draw_case(rng: Rng, ratio: float = 0.5, sign: float = 1.0) -> Case:
    """Draw V with leading eigenvalue 1 and others up to ``ratio``, and W whose form on the leading eigenvector has a sign."""
    n, d = rng.sizes(((6, 2), (8, 3)))
    spectrum = torch.from_numpy(rng.uniform(-0.5, 0.5, d))
    spectrum[0] = 1.0
    spectrum[1] = ratio if ratio > 1 else spectrum[1]
    frame = rng.orthogonal(d) + 0.2 * torch.from_numpy(rng.standard_normal((d, d)))
    value = frame @ torch.diag(spectrum) @ torch.linalg.inv(frame)
    interaction = rng.definite(d, sign)
    return Case(rng.law(interaction, value), rng.tokens(n, d), horizon=HORIZON)


def _leading_margin(case: Case) -> Margin:
    found = torch.linalg.eigvals(case.matrices.value)
    order = found.abs().argsort(descending=True)
    first = found[order[0]]
    size = float(first.abs())
    if abs(float(first.imag)) > 1e-12 * size or float(first.real) <= 0:
        return Margin.boolean(False, f"the leading eigenvalue is {complex(first):.4g}")
    second = float(found[order[1]].abs()) if len(found) > 1 else 0.0
    return Margin.positive((size - second) / size, 1e-8)


def _attracting_margin(case: Case) -> Margin:
    _, phi, _ = leading_eigenvectors(case.matrices.value)
    interaction = case.matrices.interaction
    return Margin.positive(float(phi @ interaction @ phi / torch.linalg.matrix_norm(interaction, 2)))


THEOREM = Theorem(
    key="regimes.hyperplanes",
    title="Rescaled tokens tend to three hyperplanes",
    statement=r"Let the eigenvalue of largest modulus of \(V\) be simple and positive, \(V\varphi = \lambda\varphi\), "
    r"\(V^\top u = \lambda u\), and \(\varphi^\top W\varphi > 0\), one head. With \(z_i(t) = e^{-tV}x_i(t)\), \(\max_i u\cdot z_i\) "
    r"never grows, \(\min_i u\cdot z_i\) never falls, and every \(u\cdot z_i\) tends to one of at most three values: the limits of "
    r"the largest and of the smallest, and zero.",
    citation=Citation(
        "geshkovski2023emergence",
        "Theorem 4.2 (in the authors' code the folder movies/Th42, and Theorem 3.1 in a comment)",
        SYMBOLS + "; phi is its leading eigenvector and u its dual one",
        "4.2",
    ),
    status=Status.PAPER,
    hypotheses=(
        *STANDARD_SETTING,
        ONE_HEAD,
        Hypothesis("leading eigenvalue", r"\lambda > |\lambda_k| \text{ for all others}", _leading_margin),
        Hypothesis("attraction along it", r"\varphi^\top W\varphi > 0", _attracting_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=draw_case,
    violate={"attraction along it": lambda rng: draw_case(rng, sign=-1.0)},
    gather=gather_each(integrate_rescaled),
    proof="Heights along u are averaged by the weights; the limits are the theorem of the paper.",
)
