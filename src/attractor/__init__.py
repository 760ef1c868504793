"""attractor: where do a Transformer's tokens go?

A law moves a state over a space, along depth. Everything else observes, predicts, audits or trains laws.
"""

from attractor import engines, errors
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
from attractor.spaces import Ellipsoid, Euclidean, Space, Sphere
from attractor.states import Gaussian, Tokens
