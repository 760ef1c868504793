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
    Alibi,
    Attention,
    Block,
    Capped,
    Causal,
    Exponential,
    Kernel,
    LatentAttention,
    Law,
    LayerNorm,
    Linear,
    NormedAttention,
    Relative,
    RMSNorm,
    Rotary,
    ScaledRotary,
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
    from attractor import checkpoints, meanfield, nn, pictures, theory
    from attractor.checkpoints import audit, checkpoint, iterate, trace
    from attractor.theory import check, predict, regime, regimes

# Names that are looked up when they are first used, so that an import stays light: where each lives.
_LATER = {
    "meanfield": "attractor.meanfield",
    "checkpoints": "attractor.checkpoints",
    "checkpoint": "attractor.checkpoints",
    "audit": "attractor.checkpoints",
    "trace": "attractor.checkpoints",
    "iterate": "attractor.checkpoints",
    "nn": "attractor.nn",
    "pictures": "attractor.pictures",
    "theory": "attractor.theory",
    "check": "attractor.theory",
    "predict": "attractor.theory",
    "regime": "attractor.theory",
    "regimes": "attractor.theory",
}

__all__ = [
    "L2",
    "MLP",
    "Absolute",
    "Affine",
    "Alibi",
    "Attention",
    "AttractorError",
    "Block",
    "Capped",
    "Causal",
    "Ellipsoid",
    "Euclidean",
    "Event",
    "Exponential",
    "Gaussian",
    "Kernel",
    "LatentAttention",
    "Law",
    "LayerNorm",
    "Linear",
    "NormedAttention",
    "Outcome",
    "RMSNorm",
    "Relative",
    "Rotary",
    "ScaledRotary",
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
    "audit",
    "check",
    "checkpoint",
    "checkpoints",
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
    "iterate",
    "load",
    "mean",
    "meanfield",
    "nn",
    "observables",
    "pairwise_distance",
    "partition",
    "pictures",
    "predict",
    "regime",
    "regimes",
    "resume",
    "self_weight",
    "sharpness",
    "theory",
    "token_norm",
    "trace",
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
