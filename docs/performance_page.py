"""The page of measured speeds, from the reports in benchmarks/results: no number in it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
HEAD = """# Performance

Written from the reports in `benchmarks/results/` when this documentation is built. A ratio is (time of the contender) / (our time),
the median over rounds in which every contender has a turn, with the least and the most; targets are those of the project, and one
that is missed stays in the table.
[How fast it is](../benchmarks.md) says how to measure it and how to read it.
"""


def page(folder: Path = RESULTS) -> str:
    """Markdown of all reports, those of processors first."""
    reports = [(path.name, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    parts = [bench(name, report) for name, report in reports if report.get("schema") == "benchmarks/1"]
    parts += [refinement(name, report) for name, report in reports if report.get("schema") == "attractor.refinement/1"]
    parts += [
        flow(name, report) for name, report in reports if report.get("schema", "").startswith("attractor.simulate/")
    ]
    parts += [large(name, report) for name, report in reports if report.get("schema") == "attractor.large_checkpoint/1"]
    return "\n".join([HEAD, *parts])


def flow(name: str, report: dict[str, Any]) -> str:
    """One run of ``attractor simulate``."""
    stats, outcome = report["stats"], report["outcome"]
    return "\n".join(
        [
            f"## A run of {report['sizes']['tokens']:,} tokens (`{name}`)",
            "",
            f"`{report['command']}`: {outcome['name']} at t = {outcome['time']:.3g} after {stats['seconds']:.0f} s "
            f"and {stats['evaluations']:,} evaluations (engines {stats['engine']}), {stats['peak_memory'] / 2**30:.2f} GiB at most.",
            "",
        ]
    )


def large(name: str, report: dict[str, Any]) -> str:
    """One report of ``benchmarks/large_checkpoint.py``."""
    wanted, extra = report["targets"]["ratio"], report["targets"]["extra_memory"]
    allowed = report["layer_attention_bytes"] + extra
    lines = [
        f"## Audit of a checkpoint of {report['bytes'] / 1e9:.0f} GB (`{name}`)",
        "",
        f"`{report['command']}` on {report['cores']} cores at a load of {report['load'][0]:.0f}: {report['layers']} layers, "
        f"{report['heads']} heads. Ratios are processor time of the audit to that of reading the attention tensors.",
        "",
        "| what | measured | target | |",
        "|---|---|---|---|",
    ]
    for source in ("disk", "cache"):
        times = report.get(source, {}).get("processor")
        if times:
            ratio = min(times["audit"]) / min(times["reading"])
            lines.append(
                f"| time, from {source} | {ratio:.1f} | {wanted:g} | {'' if ratio <= wanted else '**missed**'} |"
            )
    peak = report["peak"]
    lines.append(
        f"| peak memory | {peak / 1e9:.2f} GB | {allowed / 1e9:.2f} GB | {'' if peak <= allowed else '**missed**'} |"
    )
    return "\n".join([*lines, ""])


def bench(name: str, report: dict[str, Any]) -> str:
    """One report of ``python -m benchmarks``."""
    machine, settings, summary = report["machine"], report["settings"], report["summary"]
    where = ", ".join(str(part) for part in (machine["gpu"], machine["processor"], machine["instruction_set"]) if part)
    lines = [
        f"## {where}, {settings['threads']} threads (`{name}`)",
        "",
        f"`{command(report)}`, {report['ended'][:10]}, commit `{report['commit'][:7]}`{changed(report)}: {summary['met']} targets met, "
        f"{summary['missed']} missed, {summary['skipped']} contenders not installed.",
        "",
        "| row | contender | time | ratio | least to most | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    for contest in report["contests"]:
        timed = [entry for entry in contest["contenders"] if entry["status"] == "timed"]
        lines += [row("" if number else contest["name"], entry) for number, entry in enumerate(timed)]
    lines += [""]
    picture = RESULTS / name.replace(".json", ".png")
    if picture.exists():
        lines += [f"![Ratios of {name} beside their targets](../../benchmarks/results/{picture.name})", ""]
    lines += [
        f"- {curve['name']}: cost grows like {curve['variable']}^{curve['slope']:.2f}"
        for curve in report["growth"]
        if curve["status"] == "timed"
    ]
    return "\n".join([*lines, ""])


def changed(report: dict[str, Any]) -> str:
    """That the tree had changes beside its commit."""
    return " with changes" if "with changes" in report["commit"] else ""


def command(report: dict[str, Any]) -> str:
    """The command of a report without the places its files went to."""
    words, kept = report["command"].split(), []
    while words:
        word = words.pop(0)
        if word in ("--json", "--out", "--plot") and words:
            words.pop(0)
        else:
            kept.append(word)
    return " ".join(kept)


def row(name: str, entry: dict[str, Any]) -> str:
    ratio, target = entry["ratio"], entry["target"]
    middle = f"{ratio['median']:.2f}" if ratio else ""
    spread = f"{ratio['least']:.2f} to {ratio['most']:.2f}" if ratio else ""
    asked = (
        ""
        if target is None
        else f"{target['least']:g}"
        if target["what"] == "ratio"
        else f"{target['least']:.3g} pairs/s"
    )
    verdict = "" if entry["met"] is None else "met" if entry["met"] else "**missed**"
    contender = f"**{entry['name']}**" if entry["ours"] else entry["name"]
    return f"| {name} | {contender} | {duration(entry['median'])} | {middle} | {spread} | {asked} | {verdict} |"


def duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def refinement(name: str, report: dict[str, Any]) -> str:
    """What a learned term of the scores adds to a training step."""
    sizes = f"{report['layers']} layers, {report['dim']} dimensions, {report['context']} tokens"
    lines = [
        f"## Training steps with a refinement: {report['hardware']} (`{name}`)",
        "",
        f"`python benchmarks/refinement.py`, PyTorch {report['torch']}: {report['family']}, {sizes}, batches of {report['batch']}. "
        f"A ratio is (time of a step) / (that of the plain model); the target is {report['target']:g}.",
        "",
        "| attention | a step | ratio | middle half | |",
        "|---|---|---|---|---|",
    ]
    for entry in report["rows"]:
        low, _, high = entry["ratio_quartiles"]
        verdict = "" if entry["contender"] == "plain" else "met" if entry["within_target"] else "**missed**"
        lines.append(
            f"| {entry['contender']} | {duration(entry['seconds'])} | {entry['ratio']:.3f} | {low:.3f} to {high:.3f} | {verdict} |"
        )
    return "\n".join([*lines, ""])
