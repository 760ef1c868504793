"""What moves: measures. ``Tokens`` are finitely many weighted points; ``Gaussian`` is a mean and a covariance factor."""

from attractor.states.gaussian import Gaussian
from attractor.states.tokens import Tokens

__all__ = ["Gaussian", "Tokens"]
