r"""N1: deviations from the uniform density grow or decay with noise, mode by mode.

Linearised at :math:`f = 1/2\pi` the drift of the density is :math:`\partial(K*g)/\beta` (over :math:`I_0` for softmax), and harmonics are
eigenfunctions of the convolution with :math:`K = e^{\beta\cos}` to the Bessel functions :math:`I_k(\beta)`.
"""

import math
from dataclasses import replace

import numpy as np

from attractor.laws import Attention
from attractor.meanfield import critical_noise, mode_growth
from attractor.solvers import Noise, Trajectory, flow
from attractor.spaces import Sphere
from attractor.states import Density
from attractor.theory.noisy import DENSITY, EITHER_KERNEL, IDENTITY_VALUES, ISOTROPIC, NEAR_UNIFORM, NOISE, strength
from attractor.theory.sampling import Rng
from attractor.theory.theorem import Case, Citation, Measurement, Status, Theorem, gather_each
from attractor.theory.timescales import TimeScale

MODES, SIZE = 5, 48


def sample(rng: Rng) -> Case:
    kernel = str(rng.choice(["softmax", "exponential"]))
    beta = float(rng.uniform(0.5, 4.0))
    noise = critical_noise(beta, kernel) * float(rng.uniform(0.3, 2.0))
    modes = 1e-5 * np.exp(2j * np.pi * np.array([float(rng.uniform(0.0, 1.0)) for _ in range(MODES)]))
    law = Attention.isotropic(2, beta, kernel=kernel)
    fastest = float(np.abs(mode_growth(beta, noise, MODES, kernel)).max())
    options = {"noise": Noise(noise), "save": 1, "rtol": 1e-14, "stop": ()}
    return Case(law, Density.from_modes(modes, SIZE), Sphere(), 2.0 / fastest, options)


def sample_far(rng: Rng) -> Case:
    return replace(sample(rng), state=Density.from_modes([0.2, 0.15], SIZE))


def sample_turned(rng: Rng) -> Case:
    case = sample(rng)
    law = case.attention
    return replace(case, law=replace(law, value=-law.value))


def time_scale(case: Case) -> TimeScale:
    beta, kernel, noise = float(case.attention.beta or 0.0), case.attention.kernel.name, strength(case)
    critical = critical_noise(beta, kernel)
    if noise > critical:
        return TimeScale(
            rate=f"supercritical noise: the uniform density is stable, eps = {noise:.6g} > eps_c = {critical:.6g}"
        )
    rates = mode_growth(beta, noise, int(3.0 * math.sqrt(beta)) + 10, kernel)
    k = 1 + int(rates.argmax())
    words = f"subcritical noise: the uniform density is unstable, eps = {noise:.6g} < eps_c = {critical:.6g}"
    return TimeScale(rate=f"{words}; mode {k} grows fastest, at the rate {float(rates.max()):.6g}")


def move(case: Case) -> Trajectory:
    assert case.state is not None
    return flow(case.law, case.state, space=case.space, until=case.horizon, **case.options)


def conclude(case: Case, run: Trajectory) -> tuple[Measurement, ...]:
    beta, kernel = float(case.attention.beta or 0.0), case.attention.kernel.name
    expected = mode_growth(beta, strength(case), MODES, kernel)
    sizes = np.abs(run.modes[[0, -1], 1 : MODES + 1].numpy())
    found = np.log(sizes[1] / sizes[0]) / case.horizon
    missed = np.abs(found - expected).max() / np.abs(expected).max()
    fastest = float(found.max()) / float(np.abs(expected).max())  # negative where all modes decay
    side = 1.0 if strength(case) > critical_noise(beta, kernel) else -1.0
    return (
        Measurement("every mode grows at its rate", -float(missed), 1e-3),
        Measurement("all modes decay above the critical noise, and one grows below", -side * fastest, 1e-3),
    )


THEOREM = Theorem(
    key="meanfield.N1",
    title="Critical noise",
    statement=r"On the circle with \(P = \beta I\), \(V = I\), a small deviation of order \(k\) from the uniform density grows at the rate "
    r"\(k^2(r_k/\beta - \epsilon)\), with \(r_k = I_k(\beta)/I_0(\beta)\) for softmax and \(I_k(\beta)\) for the exponential kernel. The "
    r"uniform density is stable where \(\epsilon > r_1/\beta\).",
    citation=Citation(
        "mun2026phase",
        "its linear-stability threshold, for the exponential kernel; softmax and all modes here",
        "its coupling K is 1/(beta eps) in the exponential kernel's units",
    ),
    status=Status.HERE,
    hypotheses=(EITHER_KERNEL, DENSITY, ISOTROPIC, NOISE, IDENTITY_VALUES, NEAR_UNIFORM),
    fate="identity",
    conclude=conclude,
    sample=sample,
    violate={"close to uniform": sample_far, "identity values": sample_turned},
    time_scale=time_scale,
    gather=gather_each(move),
    break_case=lambda case: replace(
        case, law=Attention.isotropic(2, 2.0 * float(case.attention.beta or 0.0), kernel=case.attention.kernel)
    ),
    rate=r"k^2(r_k/\beta - \epsilon)",
    proof="Harmonics are eigenfunctions of the convolution with the kernel and of the Laplacian.",
    noisy=True,
)
