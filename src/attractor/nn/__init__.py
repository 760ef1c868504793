"""Attention layers to train: regimes by construction, refinements of the scores, kernels, and what they are compared with."""

from attractor.nn.block import TransformerBlock
from attractor.nn.definite import DefiniteAttention
from attractor.nn.layer import AttentionLayer
from attractor.nn.plain import PlainAttention
from attractor.nn.refinements import MetricSlice, Refinement, Shift, Slice
from attractor.nn.spectral import spectral
from attractor.nn.weights import Weights

__all__ = [
    "AttentionLayer",
    "DefiniteAttention",
    "MetricSlice",
    "PlainAttention",
    "Refinement",
    "Shift",
    "Slice",
    "TransformerBlock",
    "Weights",
    "spectral",
]
