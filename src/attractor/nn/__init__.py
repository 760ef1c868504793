"""Attention layers to train: regimes by construction, refinements of the scores, kernels, and what they are compared with."""

from attractor.nn.block import TransformerBlock
from attractor.nn.definite import DefiniteAttention
from attractor.nn.layer import AttentionLayer
from attractor.nn.patching.refine import refine, refined, unrefine
from attractor.nn.patching.saving import load_refined
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
    "load_refined",
    "refine",
    "refined",
    "spectral",
    "unrefine",
]
