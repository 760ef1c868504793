"""Checkpoints: real models, opened lazily, as laws layer by layer and head by head."""

from attractor.checkpoints.checkpoint import Checkpoint, Layers
from attractor.checkpoints.family import Family, families
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.opening import checkpoint
from attractor.checkpoints.trace import Trace, Traces, trace, trace_texts
from attractor.checkpoints.verification import LayerCheck, Verification

__all__ = [
    "Checkpoint",
    "Family",
    "Layer",
    "LayerCheck",
    "Layers",
    "Trace",
    "Traces",
    "Verification",
    "checkpoint",
    "families",
    "trace",
    "trace_texts",
]
