"""The mean-field limit: measures under attention, distances between them, and how n tokens approach their limit."""

from attractor.meanfield.conditional import conditional_wasserstein
from attractor.meanfield.distances import bures_wasserstein, energy_distance, sliced_wasserstein, wasserstein
from attractor.meanfield.entropic import sinkhorn_distance
from attractor.meanfield.rates import Rates, rates
from attractor.meanfield.sampling import sample
from attractor.meanfield.slopes import Slope
from attractor.meanfield.structure import Structure, energy_along, structures

__all__ = [
    "Rates",
    "Slope",
    "Structure",
    "bures_wasserstein",
    "conditional_wasserstein",
    "energy_along",
    "energy_distance",
    "rates",
    "sample",
    "sinkhorn_distance",
    "sliced_wasserstein",
    "structures",
    "wasserstein",
]
