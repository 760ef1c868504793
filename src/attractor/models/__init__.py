"""Checkpoints: real models, opened lazily, as laws layer by layer and head by head."""

from attractor.models.attention_layers import Layer
from attractor.models.audit_results import (
    Audit,
    AuditHead,
    AuditLayer,
    Spectra,
    count_labels,
    import_pyarrow,
    median,
    median_deviation,
    write_csv,
    write_parquet,
)
from attractor.models.audits import audit
from attractor.models.checkpoints import Checkpoint, LayerCheck, Layers, Verification, quiet
from attractor.models.comparison import Comparison, HeadChange, compare
from attractor.models.decay import draw_iteration
from attractor.models.family import Family, list_families
from attractor.models.hooks import Passage, check_ablations
from attractor.models.inputs import corpus, picture, takes_column, takes_split
from attractor.models.iteration import Iteration, Protocol, iterate, request
from attractor.models.loading import text_notes, token_ids, tokenizer_of, whole_model
from attractor.models.opening import checkpoint, needs_transformers
from attractor.models.random_init import configuration, drawn
from attractor.models.tracing import Session, Trace, Traces, trace, trace_texts

__all__ = [
    "Audit",
    "AuditHead",
    "AuditLayer",
    "Checkpoint",
    "Comparison",
    "Family",
    "HeadChange",
    "Iteration",
    "Layer",
    "LayerCheck",
    "Layers",
    "Passage",
    "Protocol",
    "Session",
    "Spectra",
    "Trace",
    "Traces",
    "Verification",
    "audit",
    "check_ablations",
    "checkpoint",
    "compare",
    "configuration",
    "corpus",
    "count_labels",
    "draw_iteration",
    "drawn",
    "import_pyarrow",
    "iterate",
    "list_families",
    "median",
    "median_deviation",
    "needs_transformers",
    "picture",
    "quiet",
    "request",
    "takes_column",
    "takes_split",
    "text_notes",
    "token_ids",
    "tokenizer_of",
    "trace",
    "trace_texts",
    "whole_model",
    "write_csv",
    "write_parquet",
]
