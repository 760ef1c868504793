"""A trace as a card for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attractor.cards import card
from attractor.flow.carding import drawing

if TYPE_CHECKING:
    from attractor.checkpoints.trace import Trace

FIRST = 12  # words that a card shows


def trace_card(trace: Trace) -> str:
    """Blocks, tokens and words, and what changed from the first block to the last."""
    rows: dict[str, Any] = {"blocks": len(trace.times) - 1, "tokens": f"{trace.n:,} of dimension {trace.dim}"}
    if trace.words:
        rows["words"] = " ".join(trace.words[:FIRST]) + (" ..." if len(trace.words) > FIRST else "")
    for name in ("token_norm", "cosine"):
        values = trace.observe(name)
        rows[name.replace("_", " ")] = (
            f"{float(values[0]):.4g} before the first block, {float(values[-1]):.4g} after the last"
        )
    return card("Trace", rows | {"took": f"{trace.stats.seconds:.3g} s"}, drawing(trace))
