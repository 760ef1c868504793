"""The mean-field limit: measures under attention, distances between them, and how n tokens approach their limit."""

from attractor.meanfield.conditional import conditional_wasserstein
from attractor.meanfield.distances import bures_wasserstein, energy_distance, sliced_wasserstein, wasserstein
from attractor.meanfield.entropic import sinkhorn_distance
from attractor.meanfield.rates import Rates, rates
from attractor.meanfield.sampling import sample
from attractor.meanfield.slopes import Slope

__all__ = [
    "Rates",
    "Slope",
    "bures_wasserstein",
    "conditional_wasserstein",
    "energy_distance",
    "rates",
    "sample",
    "sinkhorn_distance",
    "sliced_wasserstein",
    "wasserstein",
]
