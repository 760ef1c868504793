"""The mean-field limit: measures under attention, distances between them, and how n tokens approach their limit."""

from attractor.meanfield.beyond import Beyond, past_blow_up
from attractor.meanfield.conditional import conditional_wasserstein
from attractor.meanfield.densities import plot_densities
from attractor.meanfield.distances import bures_wasserstein, energy_distance, sliced_wasserstein, wasserstein
from attractor.meanfield.dobrushin import Constants, dobrushin, local_constants, log_bound
from attractor.meanfield.entropic import sinkhorn_distance
from attractor.meanfield.growth import support_bound, support_rate
from attractor.meanfield.rates import Rates, rates
from attractor.meanfield.sampling import sample
from attractor.meanfield.slopes import Slope
from attractor.meanfield.stability import Stability, perturbed, stability
from attractor.meanfield.structure import Structure, energy_along, structures

__all__ = [
    "Beyond",
    "Constants",
    "Rates",
    "Slope",
    "Stability",
    "Structure",
    "bures_wasserstein",
    "conditional_wasserstein",
    "dobrushin",
    "energy_along",
    "energy_distance",
    "local_constants",
    "log_bound",
    "past_blow_up",
    "perturbed",
    "plot_densities",
    "rates",
    "sample",
    "sinkhorn_distance",
    "sliced_wasserstein",
    "stability",
    "structures",
    "support_bound",
    "support_rate",
    "wasserstein",
]
