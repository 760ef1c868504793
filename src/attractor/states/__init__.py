"""What moves: measures. ``Tokens`` are finitely many weighted points; ``Gaussian`` is a mean and a covariance factor."""

from attractor.states.arrays import (
    check_finite,
    convert_parameters,
    in_range,
    is_in_range,
    split_scale,
    split_size,
    tensor_version,
    to_float_tensor,
    vector_norm,
)
from attractor.states.gaussian import Gaussian, factor_of
from attractor.states.tokens import UNIT, Tokens, list_starts

__all__ = [
    "UNIT",
    "Gaussian",
    "Tokens",
    "check_finite",
    "convert_parameters",
    "factor_of",
    "in_range",
    "is_in_range",
    "list_starts",
    "split_scale",
    "split_size",
    "tensor_version",
    "to_float_tensor",
    "vector_norm",
]
