"""Measures instead of tokens: Gaussian dynamics, blow-up and limits; distances, and how n tokens approach their limit."""

from attractor.meanfield.beyond import Beyond, past_blow_up
from attractor.meanfield.blow_up import BlowUp, blow_up, blow_up_map
from attractor.meanfield.bounds import BlowUpBounds, blow_up_bounds, growth_rate
from attractor.meanfield.closed_forms import (
    affine_feedforward,
    commuting,
    commuting_blow_up,
    identity_value,
    identity_value_blow_up,
    identity_value_limit,
    identity_value_mean,
    one_dimension,
    one_dimension_l2,
    one_dimension_sinkhorn,
)
from attractor.meanfield.conditional import conditional_wasserstein
from attractor.meanfield.densities import plot_densities
from attractor.meanfield.distances import bures_wasserstein, energy_distance, sliced_wasserstein, wasserstein
from attractor.meanfield.dobrushin import Constants, dobrushin, local_constants, log_bound
from attractor.meanfield.entropic import sinkhorn_distance
from attractor.meanfield.growth import support_bound, support_rate
from attractor.meanfield.isotropy import is_isotropic, rank_bound, stationary_residual
from attractor.meanfield.limits import Limit, limit
from attractor.meanfield.moment_closure import MomentRun, moment_closure
from attractor.meanfield.rank import limit_rank
from attractor.meanfield.rates import Rates, rates
from attractor.meanfield.sampling import sample
from attractor.meanfield.slopes import Slope
from attractor.meanfield.stability import Stability, perturbed, stability
from attractor.meanfield.structure import Structure, energy_along, structures

__all__ = [
    "Beyond",
    "BlowUp",
    "BlowUpBounds",
    "Constants",
    "Limit",
    "MomentRun",
    "Rates",
    "Slope",
    "Stability",
    "Structure",
    "affine_feedforward",
    "blow_up",
    "blow_up_bounds",
    "blow_up_map",
    "bures_wasserstein",
    "commuting",
    "commuting_blow_up",
    "conditional_wasserstein",
    "dobrushin",
    "energy_along",
    "energy_distance",
    "growth_rate",
    "identity_value",
    "identity_value_blow_up",
    "identity_value_limit",
    "identity_value_mean",
    "is_isotropic",
    "limit",
    "limit_rank",
    "local_constants",
    "log_bound",
    "moment_closure",
    "one_dimension",
    "one_dimension_l2",
    "one_dimension_sinkhorn",
    "past_blow_up",
    "perturbed",
    "plot_densities",
    "rank_bound",
    "rates",
    "sample",
    "sinkhorn_distance",
    "sliced_wasserstein",
    "stability",
    "stationary_residual",
    "structures",
    "support_bound",
    "support_rate",
    "wasserstein",
]
