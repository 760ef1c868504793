"""Laws: what gives every token its velocity."""

from attractor.attention.attention import Attention
from attractor.attention.block import Block
from attractor.attention.feedforward import MLP, Affine
from attractor.attention.kernels import L2, Capped, Exponential, Kernel, Linear, Sigmoid, Sinkhorn, Softmax
from attractor.attention.latent import Feature, LatentAttention
from attractor.attention.law import Law, Total
from attractor.attention.masks import Causal, Mask, Visible, Window
from attractor.attention.normed import NormedAttention
from attractor.attention.norms import LayerNorm, Norm, RMSNorm
from attractor.attention.positions import Absolute, Alibi, Positions, Relative, Rotary, ScaledRotary
from attractor.attention.schedule import Schedule
from attractor.attention.stack import Stack

__all__ = [
    "L2",
    "MLP",
    "Absolute",
    "Affine",
    "Alibi",
    "Attention",
    "Block",
    "Capped",
    "Causal",
    "Exponential",
    "Feature",
    "Kernel",
    "LatentAttention",
    "Law",
    "LayerNorm",
    "Linear",
    "Mask",
    "Norm",
    "NormedAttention",
    "Positions",
    "RMSNorm",
    "Relative",
    "Rotary",
    "ScaledRotary",
    "Schedule",
    "Sigmoid",
    "Sinkhorn",
    "Softmax",
    "Stack",
    "Total",
    "Visible",
    "Window",
]
