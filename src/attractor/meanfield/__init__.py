"""Measures instead of tokens: Gaussian dynamics, their blow-up and their limits."""

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
from attractor.meanfield.isotropy import is_isotropic, rank_bound, stationary_residual
from attractor.meanfield.limits import Limit, limit
from attractor.meanfield.moment_closure import MomentRun, moment_closure
from attractor.meanfield.rank import limit_rank

__all__ = [
    "BlowUp",
    "BlowUpBounds",
    "Limit",
    "MomentRun",
    "affine_feedforward",
    "blow_up",
    "blow_up_bounds",
    "blow_up_map",
    "commuting",
    "commuting_blow_up",
    "growth_rate",
    "identity_value",
    "identity_value_blow_up",
    "identity_value_limit",
    "identity_value_mean",
    "is_isotropic",
    "limit",
    "limit_rank",
    "moment_closure",
    "one_dimension",
    "one_dimension_l2",
    "one_dimension_sinkhorn",
    "rank_bound",
    "stationary_residual",
]
