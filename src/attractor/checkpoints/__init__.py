"""Checkpoints: real models, opened lazily, as laws layer by layer and head by head."""

from attractor.checkpoints.audit import Audit, audit
from attractor.checkpoints.checkpoint import Checkpoint, Layers
from attractor.checkpoints.comparison import Comparison, compare
from attractor.checkpoints.family import Family, families
from attractor.checkpoints.iterate import Iteration, Protocol, iterate
from attractor.checkpoints.layer import Layer
from attractor.checkpoints.opening import checkpoint
from attractor.checkpoints.trace import Trace, Traces, trace, trace_texts
from attractor.checkpoints.verification import LayerCheck, Verification

__all__ = [
    "Audit",
    "Checkpoint",
    "Comparison",
    "Family",
    "Iteration",
    "Layer",
    "LayerCheck",
    "Layers",
    "Protocol",
    "Trace",
    "Traces",
    "Verification",
    "audit",
    "checkpoint",
    "compare",
    "families",
    "iterate",
    "trace",
    "trace_texts",
]
