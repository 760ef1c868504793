"""Audit rows as text, CSV and Parquet."""

from __future__ import annotations

import csv
import statistics
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.errors import missing
from attractor.files import write_atomic
from attractor.weights import QUANTITIES

if TYPE_CHECKING:
    from attractor.models.audits import Audit

SHOWN = ("interaction_index", "reduced_metric_index", "metric_asymmetry", "value_abscissa", "value_radius")


def labels(heads: tuple[dict[str, Any], ...]) -> str:
    """How many heads have each label, and how many of these a theorem certifies."""
    counts = Counter(head["label"] for head in heads)
    certified = Counter(head["label"] for head in heads if head["certificate"] is not None)
    return ", ".join(f"{count} {label} ({certified[label]} certified)" for label, count in counts.most_common())


def line(audit: Audit) -> str:
    """One line."""
    how = "folded" if audit.folded else "plain"
    what = (
        labels(audit.heads) or f"no head has matrices: {audit.undefined[0]['reason']}"
        if audit.undefined
        else labels(audit.heads)
    )
    return (
        f"Audit({audit.model!r}, {audit.family}, {len(audit.layers)} layers, {len(audit.heads)} heads, {how}: {what})"
    )


def deviations(heads: list[dict[str, Any]], name: str, kind: str) -> float | None:
    """The median over heads of how many deviations they are from a null, whatever the side."""
    found = [
        null["deviations"] for head in heads if (null := head.get("nulls", {}).get(name, {}).get(kind)) is not None
    ]
    sizes = [abs(value) for value in found if value is not None]
    return statistics.median(sizes) if sizes else None


def median(heads: list[dict[str, Any]], name: str) -> float | None:
    """The median of a column, where it exists."""
    values = [head[name] for head in heads if head.get(name) is not None]
    return statistics.median(values) if values else None


def by_layer(audit: Audit) -> dict[str, list[dict[str, Any]]]:
    """The heads of each layer."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in audit.heads:
        found.setdefault(row["name"], []).append(row)
    return found


def table(audit: Audit) -> str:
    """Medians over the heads of each layer, in HTML."""
    titles = {quantity.name: quantity for quantity in QUANTITIES}
    head = "".join(f'<th title="{escape(titles[name].meaning)}">{escape(titles[name].title)}</th>' for name in SHOWN)
    rows = []
    for name, heads in by_layer(audit).items():
        cells = (f"<td>{'' if (value := median(heads, column)) is None else f'{value:.3g}'}</td>" for column in SHOWN)
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}<td>{escape(labels(tuple(heads)))}</td></tr>")
    rows += [f"<tr><th>{escape(row['name'])}</th><td>{escape(row['reason'])}</td></tr>" for row in audit.undefined]
    caption = f"<caption>{escape(line(audit))}<br>medians over heads; spectra of weights alone</caption>"
    return (
        f"<table>{caption}<thead><tr><th></th>{head}<th>labels</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def short_name(model: str) -> str:
    """The last telling part of a path or hub name."""
    parts = [part for part in Path(model).parts if part not in ("/", "model", "snapshots")]
    return parts[-1] if parts else model


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
    with write_atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
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
    with write_atomic(path) as temporary:
        parquet.write_table(table, temporary)


def needs_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its module for Parquet, or a sentence."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("pyarrow", "parquet") from None
    return pyarrow, pyarrow.parquet
