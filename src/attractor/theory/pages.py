"""Theorems as words: rows for lists, and the table and pages of the documentation."""

from __future__ import annotations

from typing import Any

from attractor.theory.library import theorems
from attractor.theory.theorem import Theorem


def summary(theorem: Theorem) -> dict[str, Any]:
    """One theorem, ready for JSON."""
    return {
        "key": theorem.key,
        "title": theorem.title,
        "status": theorem.status.value,
        "statement": theorem.statement,
        "fate": theorem.fate if isinstance(theorem.fate, str) else "depends on the case",
        "rate": theorem.rate,
        "hypotheses": {hypothesis.name: hypothesis.formula for hypothesis in theorem.hypotheses},
        "citation": {
            "key": theorem.citation.key,
            "place": theorem.citation.place,
            "symbols": theorem.citation.symbols,
        },
        "proof": theorem.proof,
    }


def dollars(text: str) -> str:
    r"""LaTeX between \( and \) as Markdown has it."""
    return text.replace(r"\(", "$").replace(r"\)", "$")


def markdown(paper: str | None = None) -> str:
    """All theorems of one source, or of all, as Markdown with mathematics."""
    parts = []
    for theorem in theorems(paper):
        lines = [
            f"## {theorem.key}: {theorem.title}",
            f"*{theorem.status.value}*; {theorem.citation.place or 'source'}: {{cite:p}}`{theorem.citation.key}`",
            dollars(theorem.statement),
            "Hypotheses: " + "; ".join(f"{item.name} (${item.formula}$)" for item in theorem.hypotheses) + ".",
        ]
        if theorem.rate:
            lines.append(f"Rate: ${theorem.rate}$.")
        if theorem.proof:
            lines.append(f"Proof: {theorem.proof}")
        lines.append(f"Symbols: {theorem.citation.symbols}.")
        lines.append(f"Check: `attractor check --theorem {theorem.key}`")
        parts.append("\n\n".join(lines))
    return "\n\n".join(parts) + "\n"
