"""Tokens, densities and Gaussians with noise: hypotheses and bounds that several theorems share."""

from __future__ import annotations

import math

import numpy as np
import torch

from attractor.laws import Attention, has_kernel
from attractor.solvers import Noise
from attractor.spaces import Sphere
from attractor.states import Density, Tokens
from attractor.theory.conditions import Hypothesis, Margin
from attractor.theory.theorem import Case

NEAR = 1e-3  # Fourier coefficients up to which a density is close to uniform


def strength(case: Case) -> float:
    """The strength of noise of a case."""
    noise = case.options.get("noise")
    return float(noise.strength) if isinstance(noise, Noise) and isinstance(noise.strength, float) else math.nan


def _noise_margin(case: Case) -> Margin:
    noise = case.options.get("noise")
    if not isinstance(noise, Noise) or noise.has_common or not isinstance(noise.strength, float):
        return Margin.boolean(False, "no independent noise of one strength")
    return Margin.positive(float(noise.strength))


def _isotropic_margin(case: Case) -> Margin:
    law = case.law
    if not isinstance(law, Attention) or law.beta is None or law.mask is not None or law.positions is not None:
        return Margin.boolean(False, "the interaction is not a multiple of the identity")
    return Margin.positive(float(law.beta))


def _identity_margin(case: Case) -> Margin:
    value = case.matrices.values[0]
    return Margin.zero(float((value - torch.eye(len(value), dtype=value.dtype)).norm()))


def _kernel_margin(case: Case) -> Margin:
    name = getattr(getattr(case.law, "kernel", None), "label", type(case.law).__name__)
    return Margin.boolean(has_kernel(case.law, "softmax", "exponential"), f"the kernel is {name}")


def _density_margin(case: Case) -> Margin:
    return Margin.boolean(
        isinstance(case.state, Density) and not case.state.batch_shape, f"a {type(case.state).__name__}"
    )


def _near_margin(case: Case) -> Margin:
    assert isinstance(case.state, Density)
    return Margin.nonnegative(NEAR - float(np.abs(case.state.modes[1:]).max()))


def _sphere_margin(case: Case) -> Margin:
    round_unit = isinstance(case.space, Sphere) and case.space.radius == 1.0
    return Margin.boolean(round_unit, f"the space is {case.space!r}")


def _tokens_margin(case: Case) -> Margin:
    plain = isinstance(case.state, Tokens) and not case.state.batch_shape and case.state.masses is None
    return Margin.boolean(plain, "tokens of equal masses" if plain else type(case.state).__name__)


NOISE = Hypothesis("independent noise", r"\epsilon > 0", _noise_margin, structural=True)
EITHER_KERNEL = Hypothesis("softmax or exponential", r"w \propto e^s", _kernel_margin, structural=True)
ISOTROPIC = Hypothesis("isotropic interaction", r"P = \beta I,\ \beta > 0", _isotropic_margin, structural=True)
IDENTITY_VALUES = Hypothesis("identity values", "V = I", _identity_margin)
DENSITY = Hypothesis("density on the circle", r"\mu = f\,d\theta", _density_margin, structural=True)
NEAR_UNIFORM = Hypothesis("close to uniform", r"|c_k| \le 10^{-3}", _near_margin)
UNIT_SPHERE = Hypothesis("unit sphere", r"x_i \in S^{d-1}", _sphere_margin, structural=True)
EQUAL_TOKENS = Hypothesis("equal tokens", r"m_i = 1/n", _tokens_margin, structural=True)
