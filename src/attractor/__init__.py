"""attractor: where do a Transformer's tokens go?

A law moves a state over a space, along depth. Everything else observes, predicts, audits or trains laws.
"""

from typing import TYPE_CHECKING, Any

from attractor import engines, errors, observables
from attractor._version import __version__
from attractor.attention import (
    L2,
    MLP,
    Absolute,
    Affine,
    Attention,
    Block,
    Causal,
    Exponential,
    Kernel,
    Law,
    LayerNorm,
    Linear,
    RMSNorm,
    Rotary,
    Schedule,
    Sigmoid,
    Sinkhorn,
    Softmax,
    Stack,
    Window,
)
from attractor.errors import AttractorError
from attractor.flow import Event, Outcome, Trajectory, flow, load, resume, velocity
from attractor.observables import (
    attention_entropy,
    cluster_sizes,
    clusters,
    consensus_gap,
    consensus_metric,
    cosine,
    cosine_min,
    covariance,
    diameter,
    effective_rank,
    energy,
    energy_rate,
    hemisphere_margin,
    mean,
    pairwise_distance,
    partition,
    self_weight,
    sharpness,
    token_norm,
)
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Gaussian, Tokens

if TYPE_CHECKING:
    from attractor import nn

# Names that are looked up when they are first used, so that an import stays light: where each lives.
_LATER = {"nn": "attractor.nn"}

__all__ = [
    "L2",
    "MLP",
    "Absolute",
    "Affine",
    "Attention",
    "AttractorError",
    "Block",
    "Causal",
    "Ellipsoid",
    "Euclidean",
    "Event",
    "Exponential",
    "Gaussian",
    "Kernel",
    "Law",
    "LayerNorm",
    "Linear",
    "Outcome",
    "RMSNorm",
    "Rotary",
    "Schedule",
    "Sigmoid",
    "Sinkhorn",
    "Softmax",
    "Space",
    "Sphere",
    "Stack",
    "Tokens",
    "Trajectory",
    "Window",
    "__version__",
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
    "engines",
    "errors",
    "flow",
    "hemisphere_margin",
    "load",
    "mean",
    "nn",
    "observables",
    "pairwise_distance",
    "partition",
    "resume",
    "self_weight",
    "sharpness",
    "token_norm",
    "velocity",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'attractor' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LATER[name])
    return module if _LATER[name] == f"attractor.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
