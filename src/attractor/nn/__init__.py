"""Attention layers to train: regimes by construction, refinements of the scores, kernels, and what they are compared with."""

from attractor.nn.block import TransformerBlock
from attractor.nn.definite import DefiniteAttention
from attractor.nn.layer import AttentionLayer, PlainAttention, spectral
from attractor.nn.parameters import Weights
from attractor.nn.patching import load_refined, refine, refined, unrefine
from attractor.nn.refinements import MetricSlice, Refinement, Shift, Slice, refinement_named

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
    "refinement_named",
    "spectral",
    "unrefine",
]
