r"""Whole solves of :math:`\dot x_i = \Pi_{x_i}\sum_j w_{ij} x_j` on the sphere, by us and by everyone else.

Each function returns ``solve(rtol)``, which gives the points at the end; ``atol`` is the same number for all, since coordinates are
of order one. Peers integrate the field in the ambient space, where the sphere attracts, as their users do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attractor.bench.contest import peer

Solve = Callable[[float], Any]


def ours(x: Tensor, beta: float, until: float, **options: Any) -> Solve:
    """``flow`` as it comes, but that it may not end early."""
    from attractor.attention import Attention
    from attractor.flow import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens, space = Attention.isotropic(x.shape[-1], beta), Tokens(x), Sphere()
    asked = {"until": until, "save": [until], "stop": (), **options}
    # the last of the saved times is the end
    return lambda rtol: flow(law, tokens, space=space, rtol=rtol, atol=rtol, **asked).points[-1]


def torchdiffeq_dopri5(x: Tensor, beta: float, until: float) -> Solve:
    odeint = peer("torchdiffeq").odeint
    times = torch.tensor([0.0, until], dtype=x.dtype)

    def field(time: Tensor, x: Tensor) -> Tensor:
        drive = torch.softmax(beta * (x @ x.T), dim=-1) @ x
        return drive - (drive * x).sum(-1, keepdim=True) * x

    def solve(rtol: float) -> Tensor:
        with torch.no_grad():
            return odeint(field, x, times, rtol=rtol, atol=rtol, method="dopri5")[-1]

    return solve


def scipy_dop853(x: Tensor, beta: float, until: float) -> Solve:
    """Scipy with the field in numpy."""

    def drive(x: np.ndarray) -> np.ndarray:
        weights = beta * (x @ x.T)
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        return (weights @ x) / weights.sum(axis=-1, keepdims=True)

    return _scipy(x, until, drive)


def scipy_on_fused(x: Tensor, beta: float, until: float) -> Solve:
    """Scipy with our engine: an integrator that is not ours on a field that is fast, to check reference solutions."""
    from attractor.engines import attend

    def drive(x: np.ndarray) -> np.ndarray:
        points = torch.from_numpy(x)
        output, _ = attend(beta * points, points, points)
        assert output is not None
        return output.numpy()

    return _scipy(x, until, drive)


def _scipy(x: Tensor, until: float, drive: Callable[[np.ndarray], np.ndarray]) -> Solve:
    from scipy.integrate import solve_ivp

    shape = tuple(x.shape)

    def field(time: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(shape)
        b = drive(x)
        return (b - (b * x).sum(axis=-1, keepdims=True) * x).reshape(-1)

    def solve(rtol: float) -> np.ndarray:
        start = x.numpy().reshape(-1)
        return solve_ivp(field, (0.0, until), start, method="DOP853", rtol=rtol, atol=rtol).y[:, -1].reshape(shape)

    return solve


def diffrax_tsit5(x: Tensor, beta: float, until: float) -> Solve:
    """Compiled once for all tolerances; an ensemble (members, n, d) is vmapped, each member with its own steps."""
    jax, diffrax = peer("jax"), peer("diffrax")
    jax.config.update("jax_enable_x64", True)

    def field(time, x, _):
        drive = jax.nn.softmax(beta * (x @ x.T), axis=-1) @ x
        return drive - (drive * x).sum(-1, keepdims=True) * x

    def one(x, rtol):
        control = diffrax.PIDController(rtol=rtol, atol=rtol)
        where = {"saveat": diffrax.SaveAt(t1=True), "stepsize_controller": control, "max_steps": None, "throw": False}
        solution = diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, until, None, x, **where)
        return solution.ys[-1]

    compiled = jax.jit(one if x.ndim == 2 else jax.vmap(one, in_axes=(0, None)))
    start = jax.numpy.asarray(x.numpy())
    return lambda rtol: compiled(start, rtol).block_until_ready()
