r"""N3: noise brings the blow-up of a Gaussian forward.

Under softmax with V = I the covariance obeys :math:`\dot\Sigma = 2\Sigma S\Sigma + 2\epsilon I`, S the symmetric part of the
interaction. With :math:`\Sigma = YX^{-1}` this is the linear system :math:`\dot X = -2SY`, :math:`\dot Y = 2\epsilon X`,
:math:`X_0 = I`, :math:`Y_0 = \Sigma_0`: the covariance is infinite where X is first singular. Solutions of the Riccati equation are
monotone in the source term, so that the time falls with the noise.
"""

import math
from dataclasses import replace

import numpy as np
import torch

from attractor.errors import InputError
from attractor.laws import Attention
from attractor.solvers import Noise, Trajectory, flow
from attractor.theory.gaussians import FULL_RANK, IDENTITY_VALUE, SOFTMAX_GAUSSIAN, SYMMETRIC_POSITIVE, cite
from attractor.theory.noisy import NOISE, strength
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale
from attractor.weights import symmetrize


def quiet_time(S: np.ndarray, covariance: np.ndarray) -> float:
    """The blow-up time without noise, where X = I - 2 S Sigma t."""
    factor = np.linalg.cholesky(covariance)
    return 1.0 / (2.0 * float(np.linalg.eigvalsh(factor.T @ S @ factor)[-1]))


def singular_time(S: np.ndarray, covariance: np.ndarray, noise: float) -> float:
    r"""The first time at which X is singular, for S > 0.

    :math:`X = \cos\omega t - \epsilon^{-1/2}S^{1/2}\sin(\omega t)\Sigma_0` with :math:`\omega = 2(\epsilon S)^{1/2}` is singular where the
    symmetric matrix :math:`S^{-1/2}\cot(\omega t) - \epsilon^{-1/2}\Sigma_0` is. Its least eigenvalue falls from infinity, so that
    multiple eigenvalues are no exception.
    """
    from scipy.optimize import brentq

    values, vectors = np.linalg.eigh(S)
    if values[0] <= 0:
        raise InputError(
            f"the symmetric part of the interaction must be positive definite, its least eigenvalue is {values[0]:.3g}"
        )
    frequencies = 2.0 * np.sqrt(noise * values)

    def least(time: float) -> float:
        diagonal = 1.0 / (np.sqrt(values) * np.tan(frequencies * time))
        return float(np.linalg.eigvalsh((vectors * diagonal) @ vectors.T - covariance / noise**0.5)[0])

    end = np.pi / frequencies[-1]
    begin = min(1e-3 * end, 0.1 / (values[-1] * np.linalg.eigvalsh(covariance)[-1]))
    return float(brentq(least, begin, (1.0 - 1e-9) * end, xtol=1e-14, rtol=1e-14))  # type: ignore[arg-type]


def sample(rng: Rng) -> Case:
    d = int(rng.integers(1, 4))
    eye = torch.eye(d, dtype=torch.float64)
    law = Attention(rng.definite(d) + 0.3 * rng.skew(d), eye, eye)
    gaussian = replace(rng.gaussian(d), mean=torch.zeros(d, dtype=torch.float64))
    return Case(law, gaussian, horizon=1e3, options={"noise": Noise(float(rng.uniform(0.05, 1.0)))})


def sample_negative(rng: Rng) -> Case:
    case = sample(rng)
    return replace(case, law=replace(case.attention, query=-case.attention.query), horizon=20.0)


def time_scale(case: Case) -> TimeScale:
    S, covariance = symmetrize(case.matrices.transposed).double().numpy(), case.gaussian.covariance.double().numpy()
    return TimeScale("the covariance blows up", math.log(singular_time(S, covariance, strength(case))), "exact")


def integrate(case: Case) -> Trajectory:
    return flow(case.law, case.gaussian, until=case.horizon, stop=(), **case.options)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    if run.outcome.name != "blow_up":
        return (Measurement("the covariance blows up", -1.0),)
    S = symmetrize(case.matrices.transposed).double().numpy()
    covariance = case.gaussian.covariance.numpy()
    quiet = quiet_time(S, covariance)
    expected = singular_time(S, covariance, strength(case))
    return (
        Measurement("the time at which X is singular", -abs(run.outcome.time / expected - 1.0), 1e-6),
        Measurement("it is before that without noise", 1.0 - run.outcome.time / quiet, -1e-9),
    )


THEOREM = Theorem(
    key="meanfield.N3",
    title="Noise brings blow-up forward",
    statement=r"A Gaussian under softmax attention with \(V = I\), \(S = \operatorname{sym} A \succ 0\) and noise \(\epsilon\) has "
    r"\(\Sigma = YX^{-1}\) with \(\dot X = -2SY\), \(\dot Y = 2\epsilon X\), and blows up where \(X\) is first singular, before the time "
    r"\(1/(2\lambda_{\max}(\Sigma_0^{1/2}S\Sigma_0^{1/2}))\) of the same Gaussian without noise.",
    citation=cite("the closure without noise; noise here"),
    status=Status.HERE,
    hypotheses=(*SOFTMAX_GAUSSIAN, NOISE, IDENTITY_VALUE, SYMMETRIC_POSITIVE, FULL_RANK),
    fate="blow-up",
    conclude=conclude,
    sample=sample,
    violate={"interaction positive": sample_negative},
    time_scale=time_scale,
    gather=gather_each(integrate),
    break_case=lambda case: replace(case, options={"noise": Noise(0.1 * strength(case))}),
    proof="The Riccati equation is linear in (X, Y), and its solutions grow with the source term.",
    noisy=True,
)
