"""What moves: measures. ``Tokens`` are finitely many weighted points, ``Gaussian`` is a mean and a covariance factor, and
``Density`` is a density on the circle."""

from attractor.states.arrays import (
    check_finite,
    convert_parameters,
    in_range,
    is_in_range,
    read_contents,
    split_scale,
    split_size,
    tensor_state,
    to_float_tensor,
    vector_norm,
)
from attractor.states.density import (
    RESOLVED,
    Density,
    circle_points,
    grid_angles,
    grid_values,
    modes_tail,
)
from attractor.states.equiangular import Equiangular, cosine_and_radius
from attractor.states.gaussian import Gaussian, factor_of
from attractor.states.tokens import UNIT, Tokens, list_starts

__all__ = [
    "RESOLVED",
    "UNIT",
    "Density",
    "Equiangular",
    "Gaussian",
    "Tokens",
    "check_finite",
    "circle_points",
    "convert_parameters",
    "cosine_and_radius",
    "factor_of",
    "grid_angles",
    "grid_values",
    "in_range",
    "is_in_range",
    "list_starts",
    "modes_tail",
    "read_contents",
    "split_scale",
    "split_size",
    "tensor_state",
    "to_float_tensor",
    "vector_norm",
]
