"""Euler steps with a projection to positive matrices pass a blow-up time with finite numbers."""

import torch

from attractor.laws import Attention
from attractor.plotting import Curve, Panel
from attractor.solvers import flow
from attractor.states import Gaussian
from attractor.theory.claims import CounterExample, Evidence


def run() -> Evidence:
    """V = I, S = I / 2, Sigma_0 = I: T* = 1."""
    eye = torch.eye(2, dtype=torch.float64)
    curves, beyond = [], {}
    for step in (0.1, 0.02):
        covariance, times, traces = eye.clone(), [0.0], [2.0]
        while times[-1] < 1.0 + 2 * step:
            slope = covariance @ (0.5 * eye)
            covariance = covariance + step * (slope @ covariance + covariance @ slope.mT)
            values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
            covariance = (vectors * values.clamp_min(0.0)) @ vectors.mT
            times.append(times[-1] + step)
            traces.append(float(covariance.trace()))
        beyond[step] = traces[-1]
        curves.append(Curve(times, traces, f"projected Euler, step {step:g}"))
    shares = [0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999]
    law = Attention(eye, 0.5 * eye, eye)
    found = flow(law, Gaussian(torch.zeros(2, dtype=torch.float64), eye), save=shares, rtol=1e-10, stop=())
    traces = [float(covariance.trace()) for covariance in found.covariances]
    curves.append(Curve(shares, traces, "factor form", dots=True))
    exact = 2.0 / (1.0 - shares[-1])
    facts = {f"trace_beyond_the_blow_up_with_step_{step:g}": value for step, value in beyond.items()}
    facts |= {"trace_at_0.999_T_by_the_factor_form": traces[-1], "exact": exact}
    reproduced = all(value < 1e4 for value in beyond.values()) and abs(traces[-1] / exact - 1) < 1e-6
    sentence = (
        f"past T* = 1 projected Euler steps give finite traces of "
        f"{', '.join(f'{value:.3g} (step {step:g})' for step, value in beyond.items())}; the factor form "
        f"follows the exact solution to {abs(traces[-1] / exact - 1):.1g} at 0.999 T*"
    )
    return Evidence(facts, reproduced, sentence, (Panel(tuple(curves), y="trace of the covariance", log_y=True),))


EXAMPLE = CounterExample(
    key="meanfield.projected-euler",
    title="Euler with a projection",
    claim="Euler steps projected to positive semi-definite matrices show the fate of Gaussian covariances.",
    source="castin2025unified",
    place="the integrator of its released code",
    basis="code",
    verdict="misleading",
    truth="They pass through a finite-time blow-up with finite numbers; a factor of the covariance in rescaled "
    "time needs no projection.",
    run=run,
    theorems=("meanfield.T3",),
)
