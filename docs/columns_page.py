"""Generate the dictionary of the columns of audits and traces."""

from __future__ import annotations

HEAD = """# Columns of audits and traces

One quantity has one name in the terminal, in JSON, in CSV and Parquet files, in `frame()`, on pages and in conditions of `--fail-if`.
`attractor audit --columns` and `attractor trace --columns` print the same. $W = \\mathrm{scale}\\,Q^\\top K$ is the interaction of a head,
$V$ (also written O V) its value map; QUANTITY stands for one of the names of the null models below, K for a number, MEASURE for a measure
of the stream.
"""
TITLES = {
    "audit": "Heads of an audit",
    "comparison": "Heads of a comparison of audits",
    "trace": "Blocks and heads of a trace",
}


def page() -> str:
    """Return the page in Markdown."""
    from attractor.models import list_columns
    from attractor.weights import NAMES

    parts = [HEAD, "QUANTITY is one of " + ", ".join(f"`{name}`" for name in NAMES) + ".\n"]
    tables = ("audit", "comparison", "trace")
    for table in tables:
        rows = [
            f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in list_columns(table).items()
        ]
        parts += [f"## {TITLES[table]}\n", "| column | meaning |", "|---|---|", *rows, ""]
    return "\n".join(parts)
