"""Fixed-step methods: Euler, classical RK4, the residual layer, and the splitting for noise."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor.solvers.noise import Deviations, Source
from attractor.solvers.steppers.stepper import Field, RungeKutta, Step, Stepper
from attractor.spaces import Space


class Euler(Stepper):
    r"""x <- N(x + h v(x)), order 1; with noise of weak order 1.

    Noise of the space is projected, :math:`x^+ = N(x + hv + \Pi_x(\sqrt{2\epsilon_i h}\,\xi_i + \sqrt{2\epsilon_c h}\,\xi))`; layer
    noise is not. Strengths are those at the start of the step. For a free token of the unit sphere
    :math:`E\langle x_k, x_0\rangle = m^k` with :math:`-\log m / h = (d-1)\epsilon\,[1 - (d+2)\epsilon h + O(h^2)]`.
    """

    name: ClassVar[str] = "euler"
    order: ClassVar[int] = 1
    weak_order: ClassVar[int] = 1

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = y + torch.from_numpy(h).to(y).view(-1, 1, 1) * f
        return Step(end, field.lifted_velocity(t + h, end), ())

    def deviations(self, source: Source, time: float, h: float, like: Tensor, space: Space) -> Deviations:
        return source.deviations(time, h, like)

    def noisy_step(
        self, field: Field, t: np.ndarray, h: float, x: Tensor, f: Tensor, source: Source, step: int
    ) -> Tensor:
        deviations = self.deviations(source, float(t[0]), h, x, field.space)
        return field.space.retract(x + h * f + source.displacement(field, step, deviations, x))


class Strang2(Stepper):
    r"""Half a step of the drift, a step of Brownian motion, half a step of the drift: weak order 2.

    The drift takes Heun's method in the lifted field. Brownian motion takes a geodesic step
    :math:`x^+ = \exp_x(\sqrt{2\epsilon h F}\,\Pi_x\xi)` with :math:`F = 1 - (d-2)\,\epsilon h\kappa/3` on a space of curvature
    :math:`\kappa`, which is exact in flat space and on the circle; with F = 1 the order would be 1 elsewhere. Strengths are those at the
    middle of the step.
    """

    name: ClassVar[str] = "strang2"
    order: ClassVar[int] = 2
    weak_order: ClassVar[int] = 2
    needs_noise: ClassVar[bool] = True
    cites: ClassVar[tuple[str, ...]] = ("kloeden1992numerical",)

    def deviations(self, source: Source, time: float, h: float, like: Tensor, space: Space) -> Deviations:
        return source.geodesic_deviations(time + h / 2, h, like, space)

    def noisy_step(
        self, field: Field, t: np.ndarray, h: float, x: Tensor, f: Tensor, source: Source, step: int
    ) -> Tensor:
        space, half = field.space, h / 2
        x = _heun(field, t, half, x, f)
        increment = source.increment(step, self.deviations(source, float(t[0]), h, x, space), x)
        x = space.exponential(x, space.white_noise(x, increment))
        return _heun(field, t + half, half, x, field.lifted_velocity(t + half, x))


def _heun(field: Field, t: np.ndarray, h: float, x: Tensor, f: Tensor) -> Tensor:
    """A step of Heun's method in the lifted field from points x of the space with velocities f."""
    slope = field.lifted_velocity(t + h, x + h * f)
    return field.space.retract(x + (h / 2) * (f + slope))


class RK4(RungeKutta):
    """Order 4, fixed step."""

    name: ClassVar[str] = "rk4"
    order: ClassVar[int] = 4
    nodes: ClassVar[int] = 3
    cites: ClassVar[tuple[str, ...]] = ("hairer1993solving",)

    @cached_property
    def tableau(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        A = np.array([[0, 0, 0, 0], [0.5, 0, 0, 0], [0, 0.5, 0, 0], [0, 0, 1, 0]])
        return A, np.array([1 / 6, 1 / 3, 1 / 3, 1 / 6]), np.array([0, 0.5, 0.5, 1])

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end, slope, _ = self.stages(field, t, h, y, f)
        return Step(end, slope, ())


class Layers(Stepper):
    """Residual layers x <- N(x + h b(x)) with the velocity b before projection; blocks apply their own norms.

    The order is 1 as h tends to 0, but one layer with h = 1 is not one unit of time: near consensus it corresponds to ln 2 for
    full attention and to 2 ln(4/3) for causal attention, whose rate is 1/2 (consensus.md, section 5).
    """

    name: ClassVar[str] = "layers"
    order: ClassVar[int] = 1
    discrete: ClassVar[bool] = True

    def attempt(self, field: Field, t: np.ndarray, h: np.ndarray, y: Tensor, f: Tensor) -> Step:
        end = field.layer(t, float(h[0]), y)
        return Step(end, (end - y) / torch.from_numpy(h).to(y).view(-1, 1, 1), ())
