"""Observables: functions of tokens, and of a law and a space if they need one.

``observable(tokens, law=None, space=None, **options)`` gives a tensor of shape ``tokens.batch_shape``, or with the
further axes that its docstring names. Leading axes may be saved times, ensemble members, or both. Lengths and angles
are those of the space if one is given, Euclidean otherwise. A new file with a function under ``@observable`` is a new
observable, known by its name.
"""

from attractor.observables.clustering import cluster_entropy, cluster_sizes, clusters, kernel_clusters
from attractor.observables.consensus import consensus_gap, consensus_metric, hemisphere_margin
from attractor.observables.energies import (
    TILT_LIMIT,
    energy,
    energy_rate,
    gaussian_energy,
    has_heavy_tails,
    head_masses,
    partition,
    tilt,
)
from attractor.observables.geometry import (
    cosine,
    cosine_min,
    covariance,
    diameter,
    effective_rank,
    mean,
    order_parameter,
    pair_fraction,
    pairwise_distance,
    sharpness,
    token_norm,
)
from attractor.observables.registry import Observable, find_observable, list_observables, observable, pairing_of
from attractor.observables.weights import attention_entropy, leaders, self_weight

__all__ = [
    "TILT_LIMIT",
    "Observable",
    "attention_entropy",
    "cluster_entropy",
    "cluster_sizes",
    "clusters",
    "consensus_gap",
    "consensus_metric",
    "cosine",
    "cosine_min",
    "covariance",
    "diameter",
    "effective_rank",
    "energy",
    "energy_rate",
    "find_observable",
    "gaussian_energy",
    "has_heavy_tails",
    "head_masses",
    "hemisphere_margin",
    "kernel_clusters",
    "leaders",
    "list_observables",
    "mean",
    "observable",
    "order_parameter",
    "pair_fraction",
    "pairing_of",
    "pairwise_distance",
    "partition",
    "self_weight",
    "sharpness",
    "tilt",
    "token_norm",
]
