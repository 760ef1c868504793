"""Laws: what gives every token its velocity."""

from attractor.attention.attention import Attention
from attractor.attention.block import Block
from attractor.attention.feedforward import MLP, Affine
from attractor.attention.kernels import L2, Exponential, Kernel, Linear, Sigmoid, Sinkhorn, Softmax
from attractor.attention.law import Law, Total
from attractor.attention.masks import Causal, Mask, Visible, Window
from attractor.attention.norms import LayerNorm, Norm, RMSNorm
from attractor.attention.positions import Absolute, Positions, Rotary
from attractor.attention.schedule import Schedule
from attractor.attention.stack import Stack

__all__ = [
    "L2",
    "MLP",
    "Absolute",
    "Affine",
    "Attention",
    "Block",
    "Causal",
    "Exponential",
    "Kernel",
    "Law",
    "LayerNorm",
    "Linear",
    "Mask",
    "Norm",
    "Positions",
    "RMSNorm",
    "Rotary",
    "Schedule",
    "Sigmoid",
    "Sinkhorn",
    "Softmax",
    "Stack",
    "Total",
    "Visible",
    "Window",
]
