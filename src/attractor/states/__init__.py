"""What moves: measures. ``Tokens`` are finitely many weighted points; ``Gaussian`` is a mean and a covariance factor."""

from attractor.states.arrays import alike, finite, floating, version
from attractor.states.gaussian import Gaussian
from attractor.states.tokens import UNIT, Tokens, drawn, list_starts

__all__ = ["UNIT", "Gaussian", "Tokens", "alike", "drawn", "finite", "floating", "list_starts", "version"]
