"""attractor: where do a Transformer's tokens go?

A law moves a state over a space, along depth. Everything else observes, predicts, audits or trains laws.
"""

from typing import TYPE_CHECKING, Any

from attractor import engines, errors, observables
from attractor._version import __version__
from attractor.errors import AttractorError
from attractor.laws import (
    KERNELS,
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
from attractor.observables import (
    attention_entropy,
    cluster_entropy,
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
    kernel_clusters,
    leaders,
    mean,
    order_parameter,
    pair_fraction,
    pairwise_distance,
    partition,
    self_weight,
    sharpness,
    token_norm,
)
from attractor.solvers import (
    Event,
    LogTime,
    Noise,
    Outcome,
    Redrawn,
    Trajectory,
    exp,
    flow,
    jacobian,
    load,
    lyapunov,
    resume,
    stability,
    velocity,
)
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Density, Equiangular, Gaussian, Tokens

if TYPE_CHECKING:
    from attractor import meanfield, models, nn, papers, plotting, sweeps, theory, training, weights
    from attractor.models import audit, checkpoint, iterate, trace
    from attractor.sweeps import grid, sweep
    from attractor.theory import check, predict
    from attractor.training import monitor
    from attractor.weights import regime, regimes

# Names imported on first use, and the module of each: `import attractor` loads only what `flow` needs.
_LAZY = {
    **{
        name: f"attractor.{name}"
        for name in ("meanfield", "models", "nn", "papers", "plotting", "sweeps", "theory", "training", "weights")
    },
    **dict.fromkeys(("audit", "checkpoint", "iterate", "trace"), "attractor.models"),
    **dict.fromkeys(("grid", "sweep"), "attractor.sweeps"),
    **dict.fromkeys(("check", "predict"), "attractor.theory"),
    "monitor": "attractor.training",
    **dict.fromkeys(("regime", "regimes"), "attractor.weights"),
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
    "Density",
    "Ellipsoid",
    "Equiangular",
    "Euclidean",
    "Event",
    "Exponential",
    "Gaussian",
    "Kernel",
    "LatentAttention",
    "Law",
    "LayerNorm",
    "Linear",
    "LogTime",
    "Noise",
    "NormedAttention",
    "Outcome",
    "RMSNorm",
    "Redrawn",
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
    "engines",
    "errors",
    "exp",
    "flow",
    "grid",
    "hemisphere_margin",
    "iterate",
    "jacobian",
    "kernel_clusters",
    "leaders",
    "load",
    "lyapunov",
    "mean",
    "meanfield",
    "models",
    "monitor",
    "nn",
    "observables",
    "order_parameter",
    "pair_fraction",
    "pairwise_distance",
    "papers",
    "partition",
    "plotting",
    "predict",
    "regime",
    "regimes",
    "resume",
    "self_weight",
    "sharpness",
    "stability",
    "sweep",
    "sweeps",
    "theory",
    "token_norm",
    "trace",
    "training",
    "velocity",
    "weights",
]


# a kernel in a new file is exported without a line here
globals().update(KERNELS)
__all__ += [name for name in KERNELS if name not in __all__]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'attractor' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_LAZY[name])
    return module if _LAZY[name] == f"attractor.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
