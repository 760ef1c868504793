"""Attention layers for training: layers with a regime by construction, plain layers, and refinements of existing models."""

from attractor.nn.attention_interface import register
from attractor.nn.attention_sites import BERT_LAYOUT, GPT2_LAYOUT, LLAMA_LAYOUT, ProjectionLayout
from attractor.nn.definite import DefiniteAttention
from attractor.nn.layer import AttentionLayer, PlainAttention, TransformerBlock, spectral, split_placement
from attractor.nn.parameters import Weights
from attractor.nn.patching import (
    MODEL_TYPE,
    RECORD,
    REFINEMENT,
    attach_strengths,
    is_refined,
    load_refined,
    plain_config,
    read_refined_config,
    refine,
    unrefine,
)
from attractor.nn.penalties import (
    UNDECAYED,
    Penalties,
    RegimeLoss,
    extreme_form,
    param_groups,
    regime_loss,
    value_abscissa,
)
from attractor.nn.refinements import MetricSlice, Refinement, Shift, Slice, make_refinement, restore_refinement

__all__ = [
    "BERT_LAYOUT",
    "GPT2_LAYOUT",
    "LLAMA_LAYOUT",
    "MODEL_TYPE",
    "RECORD",
    "REFINEMENT",
    "UNDECAYED",
    "AttentionLayer",
    "DefiniteAttention",
    "MetricSlice",
    "Penalties",
    "PlainAttention",
    "ProjectionLayout",
    "Refinement",
    "RegimeLoss",
    "Shift",
    "Slice",
    "TransformerBlock",
    "Weights",
    "attach_strengths",
    "extreme_form",
    "is_refined",
    "load_refined",
    "make_refinement",
    "param_groups",
    "plain_config",
    "read_refined_config",
    "refine",
    "regime_loss",
    "register",
    "restore_refinement",
    "spectral",
    "split_placement",
    "unrefine",
    "value_abscissa",
]
