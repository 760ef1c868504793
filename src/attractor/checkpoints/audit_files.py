"""The rows of audits in files: CSV, and Parquet through pyarrow."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import missing
from attractor.pictures.writing import atomic

if TYPE_CHECKING:
    from attractor.checkpoints.audit import Audit


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """A head's row with one number in each column: nulls, plain numbers, error bars and rotary offsets spread out."""
    columns = {name: value for name, value in row.items() if not isinstance(value, (list, dict))}
    for name, kinds in row.get("nulls", {}).items():
        for kind, null in kinds.items():
            if null is not None:
                columns |= {f"{name}_{kind}_{part}": null[part] for part in ("mean", "spread", "deviations")}
    for kind in ("plain", "folded"):
        columns |= {f"{kind}_{name}": value for name, value in row.get(kind, {}).items()}
    for name, bar in row.get("errors", {}).items():
        columns |= {} if bar is None else {f"{name}_error": bar["bar"], f"{name}_error_shift": bar["shift"]}
    for offset in row.get("offsets", []):
        columns |= {f"offset_{offset['offset']}_{part}": offset[part] for part in ("index", "low", "high", "change")}
    return columns


def rows_of(audits: Sequence[Audit]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns of all audits together, and one row for each head; what a head has not got is missing."""
    rows = [{"model": audit.model, **flat(row)} for audit in audits for row in audit.heads]
    columns = list(dict.fromkeys(name for row in rows for name in row)) or ["model"]
    return columns, rows


def write_csv(audits: Sequence[Audit], path: Path) -> None:
    """One row for each head of every model, whole or not at all."""
    columns, rows = rows_of(audits)
    with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(audits: Sequence[Audit], path: Path) -> None:
    """The same as a Parquet table, with the card of every model in its metadata."""
    import json

    pyarrow, parquet = needs_pyarrow()
    columns, rows = rows_of(audits)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    cards = {audit.model: audit.card for audit in audits}
    table = table.replace_schema_metadata({"attractor.audit": json.dumps(cards, default=str)})
    with atomic(path) as temporary:
        parquet.write_table(table, temporary)


def needs_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its module for Parquet, or a sentence."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet
