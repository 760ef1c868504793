"""Steppers: one-step methods of time integration."""

from attractor.solvers.steppers.dormand_prince import Dop853, Dopri5
from attractor.solvers.steppers.fixed_step import RK4, Euler, Layers
from attractor.solvers.steppers.radau import Radau5, Radau9
from attractor.solvers.steppers.stepper import Stepper, default_method, stepper_named

__all__ = [
    "RK4",
    "Dop853",
    "Dopri5",
    "Euler",
    "Layers",
    "Radau5",
    "Radau9",
    "Stepper",
    "default_method",
    "stepper_named",
]
