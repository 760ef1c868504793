"""What to look at: plain functions of tokens, and of a law and a space where they need one.

``observable(tokens, law=None, space=None, **options)`` gives a tensor of shape ``tokens.batch_shape``, or with the
further axes that its docstring names. Leading axes may be saved times, ensemble members, or both. Lengths and angles
are those of the space if one is given, Euclidean otherwise. A new file with a function under ``@observable`` is a new
observable, known by its name.
"""

import importlib
import pkgutil

from attractor.observables.clustering import cluster_sizes, clusters
from attractor.observables.consensus import consensus_gap, consensus_metric
from attractor.observables.cosines import cosine, cosine_min
from attractor.observables.distances import pairwise_distance, sharpness
from attractor.observables.energies import energy
from attractor.observables.farthest import diameter
from attractor.observables.gaussian_energies import gaussian_energy
from attractor.observables.hemisphere import hemisphere_margin
from attractor.observables.moments import covariance, mean
from attractor.observables.norm import token_norm
from attractor.observables.partitions import partition
from attractor.observables.ranks import effective_rank
from attractor.observables.rates import energy_rate
from attractor.observables.registry import Observable, named, names, observable
from attractor.observables.tilt import tilt
from attractor.observables.weights import attention_entropy, self_weight

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Observable",
    "attention_entropy",
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
    "gaussian_energy",
    "hemisphere_margin",
    "mean",
    "named",
    "names",
    "observable",
    "pairwise_distance",
    "partition",
    "self_weight",
    "sharpness",
    "tilt",
    "token_norm",
]
