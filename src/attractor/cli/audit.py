"""``attractor audit``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.inputs import check_file
from attractor.cli.options import grouped, panel, replay
from attractor.html_repr import format_number
from attractor.models import count_labels, median, median_deviation
from attractor.progress import progress_bar
from attractor.weights import QUANTITIES

if TYPE_CHECKING:
    from attractor.models import Audit, AuditHead, Checkpoint, Comparison, HeadChange
    from attractor.weights import Offset

COLUMNS = {
    "W index": "interaction_index",
    "metric index": "reduced_metric_index",
    "asymmetry of A": "metric_asymmetry",
    "value": "value_abscissa",
    "radius": "value_radius",
}
SUMS = {
    "value": "value_abscissa",
    "radius": "value_radius",
    "residual": "residual",
    "growth": "growth_consensus",
    "drift only": "growth_diffuse",
    "label": "label",
}
WIDTH, TOP = 22, 5


def short(value: float | None) -> str:
    return "-" if value is None else format_number(float(f"{value:.3g}"))


def print_audit(found: list[Audit]) -> None:
    """For every model a line a layer: medians over heads, how far these are from their nulls, and the labels."""
    for model in found:
        how = "norms folded in" if model.folded else "norms left out"
        notes = {f"note {index + 1}": note for index, note in enumerate(model.notes)}
        title = f"{model.model}: {len(model.heads)} heads of family {model.family}, {how}"
        print_rows(title, {**_card(model), **notes})
        if model.heads:
            print_rows(
                "medians over the heads of a layer (deviations from random heads | from mismatched heads), and labels (certified)",
                _layers(model),
            )
            _print_more(model)
        print_rows("", {row.name: f"undefined: {row.reason}" for row in model.undefined})


def _card(model: Audit) -> dict[str, str]:
    rows = {
        "weights alone": "every number below is a spectrum of weights; none depends on data",
        "labels": "of each head by itself, as a flow without norms and feed-forward; (n): as many are certified by a theorem",
    }
    verified = model.card.verified
    if verified is not None:
        layers = f"layers {', '.join(map(str, verified.layers))}"
        rows["verified"] = (
            f"not possible: {verified.reason}"
            if verified.error is None
            else f"our attention is the model's own to {verified.error:.1g} ({layers})"
        )
    return rows


def _layers(model: Audit) -> dict[str, str]:
    rows = {"": "".join(f"{name:>{WIDTH}}" for name in COLUMNS) + "   labels"}
    for name, heads in model.heads_by_layer.items():
        rows[name] = (
            "".join(f"{_cell(heads, column):>{WIDTH}}" for column in COLUMNS.values()) + f"   {count_labels(heads, '')}"
        )
    return rows


def _cell(heads: list[AuditHead], column: str) -> str:
    middle = short(median(head.quantities[column] for head in heads))
    if heads[0].nulls is None:
        return middle
    away = [median_deviation(heads, column, kind) for kind in ("random", "mismatched")]
    return f"{middle} ({' | '.join('-' if value is None else f'{value:.1f}' for value in away)})"


def _print_more(model: Audit) -> None:
    """Layers as wholes, heads far from their nulls, rotary offsets, error bars."""
    summed = [layer.row() for layer in model.layers if layer.regime is not None]
    if summed:
        rows = {"": "".join(f"{name:>{WIDTH // 2 + 1}}" for name in list(SUMS)[:-1]) + "   label"}
        for row in summed:
            cells = [row[name] if name == "label" else short(row[name]) for name in SUMS.values()]
            rows[row["name"]] = "".join(f"{cell:>{WIDTH // 2 + 1}}" for cell in cells[:-1]) + f"   {cells[-1]}"
        print_rows("layers as wholes: sums over heads, residual of a shared metric, predicted growth of the norm", rows)
    far = _far(model)
    if far:
        print_rows("heads farthest from mismatched ones", far)
    offsets = _offsets(model)
    if offsets:
        print_rows("rotary family: medians over all heads at each offset (key minus query)", offsets)
    bars = _bars(model)
    if bars:
        print_rows("error bars of quantised weights: median over heads of the number and of its bar", bars)


def _far(model: Audit) -> dict[str, str]:
    found = [
        (abs(null.deviations), head, quantity.title, null.deviations)
        for head in model.heads
        for quantity in QUANTITIES
        if quantity.half == "both"
        and (null := head.null(quantity.name, "mismatched")) is not None
        and null.deviations is not None
    ]
    top = sorted(found, key=lambda row: -row[0])[:TOP]
    return {f"{head.name} head {head.head} {title}": f"{away:+.1f} deviations" for _, head, title, away in top}


def _offsets(model: Audit) -> dict[str, str]:
    by_offset: dict[int, list[Offset]] = {}
    for head in model.heads:
        for row in head.offsets:
            by_offset.setdefault(row.offset, []).append(row)
    return {
        str(offset): f"index {short(median(row.index for row in rows)):>9}   "
        f"change of W {short(median(row.change for row in rows)):>9}"
        for offset, rows in sorted(by_offset.items(), reverse=True)
    }


def _bars(model: Audit) -> dict[str, str]:
    rows = {}
    for title, column in COLUMNS.items():
        bars = [bar.bar for head in model.heads if (bar := (head.errors or {}).get(column)) is not None]
        if bars:
            rows[title] = (
                f"{short(median(head.quantities[column] for head in model.heads)):>9} +- {short(median(bars))}"
            )
    return rows


def print_comparison(compared: list[Comparison]) -> None:
    """Which heads moved most, and the medians of both models."""
    for one in compared:
        medians = {
            quantity.title: f"{short(row.first):>10} -> {short(row.second):>10}"
            for quantity in QUANTITIES
            if (row := one.summary[quantity.name]).first is not None and row.second is not None
        }
        print_rows(f"{one.first} -> {one.second}: medians over all heads", medians)
        if one.reason is not None:
            print_rows("", {"heads": one.reason})
            continue
        top = {f"{row.name} head {row.head}": _moved(row) for row in one.most_moved[: 2 * TOP]}
        print_rows("heads that moved most", top or {"none": "no head moved"})


def _moved(row: HeadChange) -> str:
    before, after = row.label
    words = [f"numbers by {row.standardised:.2g} spreads"]
    if row.value_moved is not None:
        words = [f"W by {row.interaction_moved:.2g} and V by {row.value_moved:.2g} of their size", *words]
    return ", ".join(words) + ("" if before == after else f", {before} -> {after}")


SCHEMA = "attractor.audit/2"
change, output = panel("Weights"), panel("Results")


class Detail(StrEnum):
    auto = "auto"
    full = "full"
    heads = "heads"


@dataclass(frozen=True)
class AuditOptions:
    """Which weights, and how they are taken."""

    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="A folder, a file, a name of attractor fetch, or one on the Hugging Face hub."
        ),
    ]
    fold: Annotated[
        bool | None,
        change(
            "", "Take the norm before attention into the weights.", "--fold/--no-fold", default="in pre-norm models"
        ),
    ] = None
    detail: Annotated[
        Detail,
        change(
            "",
            "heads: heads alone; full: also mismatched heads, rotary offsets, numbers without the norm, sums and error bars; "
            "auto: full up to width 1024.",
        ),
    ] = Detail.auto
    sums: Annotated[
        bool | None, change("", "Classify layers as wholes too.", "--sums/--no-sums", default="as --detail")
    ] = None
    nulls: Annotated[int, change("N", "Random heads to compare with; 0: no nulls.", min=0)] = 64
    verify: Annotated[
        bool | None,
        change("", "Compare with the model's own attention.", "--verify/--no-verify", default="up to width 1024"),
    ] = None
    seed: Annotated[int, change("N", "Of random heads and perturbed weights.", min=0)] = 0


@dataclass(frozen=True)
class AuditOutput:
    """What becomes of the audit."""

    csv: Annotated[Path | None, output("FILE", "Write one row for each head.")] = None
    parquet: Annotated[Path | None, output("FILE", "The same as a Parquet table.")] = None
    report: Annotated[
        Path | None, output("FILE.html", "Write a page: every head as a heatmap, labels, and what moved.")
    ] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(AuditOptions, AuditOutput)
def audit(context: typer.Context, options: AuditOptions, output: AuditOutput) -> None:
    """Classify every head of real models by its weights: definiteness, spectra, regime, whether a theorem certifies it, and how far it is
    from a random head and from mismatched ones. Several models are compared with the first.

    All numbers are spectra of weights alone, without data. Exit code 0; 1 if a model cannot be read, 2 for a bad argument.
    """
    with ending("attractor audit", output.debug):
        _check(output)
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.models import require_transformers, silence_transformers

        require_transformers()
        command = replay(context, without=("json", "progress", "debug"))
        with silence_transformers():
            pairs = [one(model, options, output) for model in options.models]
            found = [audited for _, audited in pairs]
            compared = _compared(pairs)
        files = _write(found, output)
        if output.report is not None:
            from attractor.report import audit_report

            audit_report(found, compared, command).write(output.report)
        written = Written(report=output.report, files=files)
        if output.json:
            parts = {"models": [model.row() for model in found], "comparisons": [one.row() for one in compared]}
            document = {"schema": SCHEMA, "command": command, **parts, "written": written.row()}
            print_json({**document, "versions": versions()})
        else:
            print_audit(found)
            print_comparison(compared)
            written.tell(command)


def _check(output: AuditOutput) -> None:
    """Refuse what could not be written at the end."""
    for path, option in ((output.csv, "--csv"), (output.parquet, "--parquet")):
        if path is not None:
            check_file(path, option)
    if output.report is not None:
        from attractor.report import check_place

        check_file(check_place(output.report, "--report"), "--report")
    if output.parquet is not None:
        from attractor.models import import_pyarrow

        import_pyarrow()


def one(model: str, options: AuditOptions, output: AuditOutput) -> tuple[Checkpoint, Audit]:
    """One model, with a bar."""
    from attractor.models import audit as audit_one
    from attractor.models import checkpoint

    opened = checkpoint(model)
    with progress_bar(f"layers of {Path(model).name}", output.progress, total=len(opened.layers)) as update:
        settings = {name: getattr(options, name) for name in ("fold", "detail", "sums", "nulls", "verify", "seed")}
        return opened, audit_one(opened, progress=update, **{**settings, "detail": options.detail.value})


def _compared(pairs: list[tuple[Checkpoint, Audit]]) -> list:
    from attractor.models import compare

    (opened, first), *others = pairs
    return [compare(first, audited, (opened, other)) for other, audited in others]


def _write(found: list[Audit], output: AuditOutput) -> list[Path]:
    from attractor.models import write_csv, write_parquet

    written = []
    for path, write in ((output.csv, write_csv), (output.parquet, write_parquet)):
        if path is not None:
            write(found, path)
            written.append(path)
    return written
