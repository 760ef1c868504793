"""One step of time: one method a file."""

from attractor.flow.steppers.dop853 import Dop853
from attractor.flow.steppers.dopri5 import Dopri5
from attractor.flow.steppers.euler import Euler
from attractor.flow.steppers.layers import Layers
from attractor.flow.steppers.rk4 import RK4
from attractor.flow.steppers.stepper import Stepper, default_method, stepper_named

__all__ = ["RK4", "Dop853", "Dopri5", "Euler", "Layers", "Stepper", "default_method", "stepper_named"]
