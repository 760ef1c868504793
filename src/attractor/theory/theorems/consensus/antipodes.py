r"""N2: two tokens under values that are drawn anew for every layer.

Layers :math:`x^+ = N(x + \sigma\sqrt h\,V_k m_i)` with :math:`m_i = \sum_j w_{ij}x_j` and standard normal :math:`V_k` have a limit for
small h in which the cosine t of two tokens is a diffusion on [-1, 1]. With :math:`p = 1/(1+e^{-\beta(1-t)})`, :math:`A = p^2 + (1-p)^2`,

.. math:: dt = \sigma^2(1-t^2)\,[(d-2)(1-A) - At]\,ds + \sigma\sqrt{2A}\,(1-t^2)\,dW.

Near t = 1 the logarithm of 1 - t has the drift :math:`-(d-1)\sigma^2`: consensus attracts. Near t = -1 that of 1 + t has the drift
:math:`2\sigma^2[(d-2)(1-A)-A]`, :math:`A = (1+\tanh^2\beta)/2`: opposite tokens attract exactly where
:math:`\tanh^2\beta > (d-3)/(d-1)`. The probability of either end is that of the scale function, :math:`S' = e^{-\int 2\mu/\sigma^2}`.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from attractor.laws import Attention
from attractor.spaces import Sphere
from attractor.states import Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.hypotheses import SOFTMAX
from attractor.theory.noisy import EQUAL_TOKENS, ISOTROPIC, UNIT_SPHERE
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale

STEP, RUNS = 0.02, 1000  # h sigma^2 of a layer, and pairs that are simulated
END = 1e-5  # distance of the cosine from 1 or -1 at which a pair has arrived
REACH, CELLS = 150.0, 60_000  # of the integrals, in artanh t


def antipodal_threshold(dim: int) -> float:
    """Return the beta above which opposite tokens attract, in dimension ``dim``; 0 up to dimension 3."""
    return math.atanh(math.sqrt((dim - 3) / (dim - 1))) if dim > 3 else 0.0


def antipodal_probability(beta: float, dim: int, start: float = 0.0) -> float:
    """Return the probability that two tokens with the cosine ``start`` end at opposite points."""
    from scipy.integrate import cumulative_simpson

    if beta <= antipodal_threshold(dim):
        return 0.0
    y = np.linspace(-REACH, REACH, 2 * CELLS + 1)
    t = np.tanh(y)
    with np.errstate(over="ignore"):
        p = 1.0 / (1.0 + np.exp(-beta * (1.0 - t)))
    A = p**2 + (1.0 - p) ** 2
    slope = ((dim - 2) * (1.0 - A) - A * t) / A  # 2 mu / sigma^2 with dt = (1 - t^2) dy
    exponent = -cumulative_simpson(slope, x=y, initial=0.0)
    log_density = exponent - 2.0 * np.logaddexp(y, -y)  # times dt / dy = 1 / cosh^2, up to a constant
    share = cumulative_simpson(np.exp(log_density - log_density.max()), x=y, initial=0.0)
    return 1.0 - float(np.interp(math.atanh(start), y, share)) / float(share[-1])


def time_scale(case: Case) -> TimeScale:
    beta, d, points = float(case.attention.beta or 0.0), case.attention.dim, case.tokens.points
    chance = antipodal_probability(beta, d, float((points[0] @ points[1]).clamp(-1.0, 1.0)))
    side = "opposite points attract" if beta > antipodal_threshold(d) else "opposite points do not attract"
    words = f"{side} (beta = {beta:.5g}, threshold {antipodal_threshold(d):.5g})"
    return TimeScale(rate=f"{words}: the tokens end opposite with probability {chance:.4g}, and otherwise together")


def simulate(case: Case) -> tuple[float, float]:
    """Share of pairs of tokens that end opposite, and of those that ended at all, by layers with values drawn anew."""
    beta, d = float(case.attention.beta or 0.0), case.attention.dim
    rng = np.random.default_rng(int(case.facts["seed"]))
    x = np.repeat(case.tokens.points.double().numpy()[None], RUNS, axis=0)
    done = np.zeros(RUNS)
    for _ in range(int(case.horizon / STEP)):
        cosine = (x[:, 0] * x[:, 1]).sum(-1)
        done = np.where(done != 0, done, np.where(cosine > 1 - END, 1.0, np.where(cosine < -1 + END, -1.0, 0.0)))
        active = np.flatnonzero(done == 0)
        if not len(active):
            break
        y = x[active]
        p = 1.0 / (1.0 + np.exp(-beta * (1.0 - cosine[active])))[:, None]
        means = np.stack((p * y[:, 0] + (1 - p) * y[:, 1], (1 - p) * y[:, 0] + p * y[:, 1]), axis=1)
        values = math.sqrt(STEP) * rng.standard_normal((len(active), d, d))
        y = y + np.einsum("rde,rie->rid", values, means)
        x[active] = y / np.linalg.norm(y, axis=-1, keepdims=True)
    return float((done == -1).mean()), float((done != 0).mean())


def sample(rng: Rng) -> Case:
    d = int(rng.integers(3, 6))
    beta = float(rng.uniform(0.2, 3.0))
    points = torch.zeros(2, d, dtype=torch.float64)
    points[0, 0] = points[1, 1] = 1.0
    law = Attention.isotropic(d, beta)
    return Case(law, Tokens(points), Sphere(), 40.0, facts={"seed": rng.seed() % 2**31, "redrawn": True})


def _pair_margin(case: Case) -> Margin:
    return Margin.boolean(case.tokens.n == 2, f"{case.tokens.n} tokens")


def _redrawn_margin(case: Case) -> Margin:
    return Margin.boolean(
        bool(case.facts.get("redrawn")), "values are drawn anew" if case.facts.get("redrawn") else "values are constant"
    )


def _apart_margin(case: Case) -> Margin:
    threshold = antipodal_threshold(case.attention.dim)
    return Margin.nonzero(abs(float(case.attention.beta or 0.0) - threshold), 0.15)


def conclude(case: Case, found: tuple[float, float]) -> tuple[Measurement, ...]:
    beta, d = float(case.attention.beta or 0.0), case.attention.dim
    points = case.tokens.points
    expected = antipodal_probability(beta, d, float(points[0] @ points[1]))
    share, ended = found
    error = math.sqrt(max(expected * (1 - expected), 1.0 / RUNS) / RUNS)
    # pairs that have not ended yet, and the error of a layer of this size, are allowed for
    return (
        Measurement("the share that ends opposite", -abs(share - expected), 4.5 * error + (1 - ended) + 0.5 * STEP),
        Measurement("pairs end", ended, -0.9),
    )


THEOREM = Theorem(
    key="consensus.N2",
    title="Two tokens under redrawn values",
    statement=r"Two tokens on the unit sphere under softmax with \(P = \beta I\) and values \(\sigma\sqrt h\,V_k\), "
    r"\(V_k\) standard normal and independent in every layer: for \(h \to 0\) they tend to one point or to opposite points. "
    r"Opposite points have a positive probability exactly where \(\tanh^2\beta > (d-3)/(d-1)\); otherwise consensus is almost sure.",
    citation=Citation(
        "fedorov2026clustering",
        "its phase transition for two tokens; the threshold and the probability by the scale function here",
        "its interaction strength is our beta",
    ),
    status=Status.CHECKED,
    hypotheses=(
        SOFTMAX,
        UNIT_SPHERE,
        EQUAL_TOKENS,
        Hypothesis("redrawn values", r"V_k \text{ independent}", _redrawn_margin, structural=True),
        Hypothesis("two tokens", "n = 2", _pair_margin, structural=True),
        ISOTROPIC,
        Hypothesis("not at the threshold", r"\tanh^2\beta \ne \frac{d-3}{d-1}", _apart_margin),
    ),
    fate="identity",
    conclude=conclude,
    sample=sample,
    time_scale=time_scale,
    gather=gather_each(simulate),
    break_case=lambda case: replace(
        case, law=Attention.isotropic(case.attention.dim, 5.0 if float(case.attention.beta or 0) < 1.2 else 0.1)
    ),
    proof="The cosine is a diffusion on an interval whose scale density decides; its probabilities are compared with simulated layers.",
    noisy=True,
)
