"""Checkpoints: real models, opened lazily, as laws layer by layer and head by head."""

from attractor.models.attention_layers import Layer
from attractor.models.audit_findings import AUDIT_KINDS, find_violations
from attractor.models.audit_results import (
    Audit,
    AuditHead,
    AuditLayer,
    Spectra,
    count_labels,
    import_pyarrow,
    median,
    median_deviation,
    name_label,
    write_csv,
    write_parquet,
)
from attractor.models.audits import audit
from attractor.models.checkpoints import Checkpoint, LayerCheck, Layers, Verification, silence_transformers
from attractor.models.columns import find_column, list_columns
from attractor.models.comparison import Comparison, HeadChange, compare
from attractor.models.decay import Decay
from attractor.models.exponents import DepthExponents, depth_exponents
from attractor.models.family import Family, list_families
from attractor.models.findings import Condition, Finding, Place, find_findings, list_kinds
from attractor.models.hooks import BlockStates, check_ablations
from attractor.models.inputs import has_columns, has_splits, read_image, read_texts
from attractor.models.iteration import Iteration, Protocol, iterate, read_request
from attractor.models.loading import load_model, load_tokenizer, tokenize, tokenizer_notes
from attractor.models.measurements import MeasurementCollector, Measurements, TraceBlock, TraceHead
from attractor.models.opening import checkpoint, require_transformers
from attractor.models.random_init import initialize, make_config
from attractor.models.structure import (
    BlockChain,
    call_model,
    choose_chain,
    choose_part,
    find_chains,
    record_chain,
    unwrap,
)
from attractor.models.tracing import Session, Trace, Traces, trace, trace_texts
from attractor.models.trained_models import open_loaded

__all__ = [
    "AUDIT_KINDS",
    "Audit",
    "AuditHead",
    "AuditLayer",
    "BlockChain",
    "BlockStates",
    "Checkpoint",
    "Comparison",
    "Condition",
    "Decay",
    "DepthExponents",
    "Family",
    "Finding",
    "HeadChange",
    "Iteration",
    "Layer",
    "LayerCheck",
    "Layers",
    "MeasurementCollector",
    "Measurements",
    "Place",
    "Protocol",
    "Session",
    "Spectra",
    "Trace",
    "TraceBlock",
    "TraceHead",
    "Traces",
    "Verification",
    "audit",
    "call_model",
    "check_ablations",
    "checkpoint",
    "choose_chain",
    "choose_part",
    "compare",
    "count_labels",
    "depth_exponents",
    "find_chains",
    "find_column",
    "find_findings",
    "find_violations",
    "has_columns",
    "has_splits",
    "import_pyarrow",
    "initialize",
    "iterate",
    "list_columns",
    "list_families",
    "list_kinds",
    "load_model",
    "load_tokenizer",
    "make_config",
    "median",
    "median_deviation",
    "name_label",
    "open_loaded",
    "read_image",
    "read_request",
    "read_texts",
    "record_chain",
    "require_transformers",
    "silence_transformers",
    "tokenize",
    "tokenizer_notes",
    "trace",
    "trace_texts",
    "unwrap",
    "write_csv",
    "write_parquet",
]
