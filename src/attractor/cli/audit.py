"""``attractor audit``: classify the heads of real models by their weights."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs, exit_on_failures, print_findings, print_rows, print_table
from attractor.cli.inputs import check_file
from attractor.cli.options import (
    CommonOptions,
    command_line,
    describe_columns,
    panel,
    parse_ranges,
    print_result,
    result_option,
    seed_option,
    with_options,
)
from attractor.html_repr import format_number
from attractor.models import count_labels, find_column, list_columns, median, median_deviation, name_label
from attractor.weights import QUANTITIES

if TYPE_CHECKING:
    from attractor.models import Audit, AuditHead, Checkpoint, Comparison, HeadChange
    from attractor.weights import Offset

COLUMNS = {
    name: name
    for name in ("interaction_index", "reduced_metric_index", "metric_asymmetry", "value_abscissa", "value_radius")
}  # as in JSON, CSV and the page
SUMS = ("value_abscissa", "value_radius", "residual", "growth_consensus", "growth_diffuse", "label")
TOP = 5


def format_short(value: float | None) -> str:
    return "-" if value is None else format_number(float(f"{value:.3g}"))


def print_audit(found: list[Audit]) -> None:
    """Print for every layer of every model medians over heads, their deviations from the nulls, and the labels."""
    for model in found:
        how = "norms folded in" if model.folded else "norms left out"
        notes = {f"note {index + 1}": note for index, note in enumerate(model.notes)}
        title = f"{model.model}: {len(model.heads)} heads of family {model.family}, {how}"
        print_rows(title, {**_card(model), **notes})
        if model.heads:
            print_findings([one.row() for one in model.findings])
            print_rows("how to read the tables", READING)
            print_table(
                "medians over the heads of a layer (deviations from random heads | from mismatched heads), and labels",
                ("layer", *COLUMNS, "labels"),
                _layers(model),
                fixed=("layer", *COLUMNS),
                right=tuple(COLUMNS),
            )
            _print_more(model)
        print_rows("", {row.name: f"undefined: {row.reason}" for row in model.undefined})


READING = {
    "numbers": "spectra of weights; none depends on data. Columns: attractor audit --columns",
    "labels": "of each head by itself, as a flow without norms and feed-forward; in parentheses how many are certified by a "
    "theorem, and the share of random heads of their shape, with the same mask and positions, that get the same label",
}


def _card(model: Audit) -> dict[str, str]:
    rows = {}
    verified = model.card.verified
    if verified is not None:
        layers = f"layers {', '.join(map(str, verified.layers))}"
        if verified.error is None:
            rows["verified"] = f"not possible: {verified.reason}"
        elif verified.passed:
            rows["verified"] = f"our attention is the model's own to {verified.error:.1g} ({layers})"
        else:
            rows["NOT VERIFIED"] = (
                f"our attention differs from the model's own by {verified.error:.2g} ({layers}): do not trust it"
            )
    return rows


def _layers(model: Audit) -> list[list[str]]:
    return [
        [name, *(_cell(heads, column) for column in COLUMNS.values()), count_labels(heads)]
        for name, heads in model.heads_by_layer.items()
    ]


def _cell(heads: list[AuditHead], column: str) -> str:
    middle = format_short(median(head.quantities[column] for head in heads))
    if heads[0].nulls is None:
        return middle
    away = [median_deviation(heads, column, kind) for kind in ("random", "mismatched")]
    return f"{middle} ({' | '.join('-' if value is None else f'{value:.1f}' for value in away)})"


def _print_more(model: Audit) -> None:
    """Print sums over heads, heads far from their nulls, rotary offsets and error bars."""
    summed = [layer.row() for layer in model.layers if layer.regime is not None]
    if summed:
        rows = [
            [
                row["name"],
                *(_layer_label(row) if name == "label" else format_short(row[name]) for name in SUMS),
            ]
            for row in summed
        ]
        print_table(
            "layers as wholes: sums over heads, residual of a shared metric, predicted growth of the norm",
            ("layer", *SUMS),
            rows,
            right=SUMS[:-1],
        )
    far = _far(model)
    if far:
        print_rows("heads farthest from mismatched ones", far)
    offsets = _offsets(model)
    if offsets:
        print_rows("rotary family: medians over all heads at each offset (key minus query)", offsets)
    bars = _bars(model)
    if bars:
        print_rows("error bars of quantised weights: median over heads of the number and of its bar", bars)


def _layer_label(row: dict[str, Any]) -> str:
    """The label of a sum of heads, and the share of sums of random heads with it."""
    named = name_label(row["label"], row["label_random_rate"])
    return f"{named}, certified" if row["certificate"] else named


def _far(model: Audit) -> dict[str, str]:
    found = [
        (abs(null.deviations), head, quantity.name, null.deviations)
        for head in model.heads
        for quantity in QUANTITIES
        if quantity.half == "both"
        and (null := head.null(quantity.name, "mismatched")) is not None
        and null.deviations is not None
    ]
    top = sorted(found, key=lambda row: -row[0])[:TOP]
    return {f"{head.name} head {head.head} {name}": f"{away:+.1f} deviations" for _, head, name, away in top}


def _offsets(model: Audit) -> dict[str, str]:
    by_offset: dict[int, list[Offset]] = {}
    for head in model.heads:
        for row in head.offsets:
            by_offset.setdefault(row.offset, []).append(row)
    return {
        str(offset): f"index {format_short(median(row.index for row in rows)):>9}   "
        f"change of W {format_short(median(row.change for row in rows)):>9}"
        for offset, rows in sorted(by_offset.items(), reverse=True)
    }


def _bars(model: Audit) -> dict[str, str]:
    rows = {}
    for title, column in COLUMNS.items():
        bars = [bar.bar for head in model.heads if (bar := (head.errors or {}).get(column)) is not None]
        if bars:
            rows[title] = (
                f"{format_short(median(head.quantities[column] for head in model.heads)):>9} +- {format_short(median(bars))}"
            )
    return rows


def print_comparison(compared: list[Comparison]) -> None:
    """Print what changed: the heads that moved most, labels, and the medians of both models."""
    for pair in compared:
        print_rows(f"{pair.first} -> {pair.second}", {"what changed": pair.describe()})
        if pair.reason is None and pair.most_moved:
            top = {f"{row.name} head {row.head}": _moved(row) for row in pair.most_moved[: 2 * TOP]}
            print_rows("heads that moved most", top)
        if pair.relabelled:
            labels = {f"{row.name} head {row.head}": " -> ".join(row.labels) for row in pair.relabelled[: 2 * TOP]}
            more = len(pair.relabelled) - len(labels)
            print_rows("labels that changed", labels | ({"and": f"{more} more"} if more else {}))
        medians = {
            quantity.name: f"{format_short(row.first):>10} -> {format_short(row.second):>10}"
            for quantity in QUANTITIES
            if (row := pair.summary[quantity.name]).first is not None and row.second is not None
        }
        print_rows("medians over all heads", medians)


def _moved(row: HeadChange) -> str:
    before, after = row.labels
    words = [f"numbers by {row.standardised:.2g} spreads"]
    if row.value_moved is not None:
        words = [f"W by {row.interaction_moved:.2g} and V by {row.value_moved:.2g} of their size", *words]
    return ", ".join(words) + ("" if row.label[0] == row.label[1] else f", {before} -> {after}")


SCHEMA = "attractor.audit/4"
option = panel("Weights")


def show_columns(wanted: bool) -> None:
    """Print the dictionary of columns for ``--columns``, and end."""
    if wanted:
        print_rows("columns of heads (CSV, Parquet, JSON, page, --fail-if)", list_columns("audit"))
        print_rows("columns of heads in a comparison", list_columns("comparison"))
        raise typer.Exit


class Detail(StrEnum):
    auto = "auto"
    full = "full"
    heads = "heads"


@dataclass(frozen=True)
class AuditOptions:
    """Which weights, and how they are analysed."""

    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="A folder, a file, an asset of attractor fetch, or a name on the Hugging Face hub."
        ),
    ]
    fold: Annotated[
        bool | None,
        option(
            "", "Fold the norm before attention into the weights.", "--fold/--no-fold", default="in pre-norm models"
        ),
    ] = None
    detail: Annotated[
        Detail,
        option(
            "",
            "heads: heads alone; full: also mismatched heads, rotary offsets, values without the norm, sums and error bars; "
            "auto: full up to width 1024.",
        ),
    ] = Detail.auto
    sums: Annotated[
        bool | None,
        option("", "Also classify the sum of the heads of each layer.", "--sums/--no-sums", default="as --detail"),
    ] = None
    nulls: Annotated[int, option("N", "Random heads for comparison; 0 for none.", min=0)] = 64
    verify: Annotated[
        bool | None,
        option("", "Compare our attention with the model's own.", "--verify/--no-verify", default="up to width 1024"),
    ] = None
    part: Annotated[
        str | None,
        option("NAME", "text, vision or audio: one part of a multimodal model.", default="the text"),
    ] = None
    layers: Annotated[str | None, option("LIST", "Layers to audit, such as 0,3,8-11.", default="all")] = None
    device: Annotated[str, option("NAME", "Device: cpu, or cuda for an NVIDIA GPU.")] = "cpu"
    dtype: Annotated[
        str | None,
        option("NAME", "float64, or float32.", default="float64; float32 for wide models with 16-bit weights"),
    ] = None
    unverified: Annotated[bool, option("", "Go on if that comparison fails, with a banner.", "--unverified")] = False
    seed: Annotated[int, seed_option("Seed of random heads and perturbed weights.", "Weights")] = 0
    fail_if: Annotated[
        list[str] | None,
        option(
            "CONDITION",
            "Exit with code 1 where a condition holds: 'value_radius > 3 at layers > 3', 'moved > 0.1' of a comparison, or the name of "
            "a finding; may be repeated.",
        ),
    ] = None
    columns: Annotated[
        bool,
        option("", "Print what every column means, and exit.", "--columns", is_eager=True, callback=show_columns),
    ] = False


@dataclass(frozen=True)
class AuditResults(CommonOptions):
    """Where results go."""

    csv: Annotated[Path | None, result_option("FILE", "Write one row for each head as CSV.")] = None
    parquet: Annotated[Path | None, result_option("FILE", "Write one row for each head as Parquet.")] = None
    report: Annotated[
        Path | None,
        result_option("FILE.html", "Write a page: heatmaps of all heads, labels, and changes between models."),
    ] = None


SHOWN = (*COLUMNS, "label", "label_random_rate", "value_index", "QUANTITY_random_deviations")


@with_options(AuditOptions, AuditResults, epilog=describe_columns(list_columns("audit"), SHOWN))
def audit(context: typer.Context, options: AuditOptions, output: AuditResults) -> None:
    """Classify every head of real models by its weights: definiteness, spectra, regime, theorems that certify it, and deviations
    from random and from mismatched heads. With several models, each is compared with the first.

    All numbers are spectra of weights alone, without data. Exit code 0; 1 if a model cannot be read or a condition of --fail-if
    holds, 2 for a bad argument.
    """
    from attractor.models import (
        AUDIT_KINDS,
        Condition,
        compare,
        find_violations,
        require_transformers,
        silence_transformers,
    )

    check_results(output)
    conditions = [Condition.parse(text, [kind.name for kind in AUDIT_KINDS]) for text in options.fail_if or ()]
    for one in conditions:
        known = find_column("audit", one.name) or find_column("comparison", one.name)
        if one.compare and known is None:  # before models are read, which may take long
            one.check_name([*list_columns("audit"), *list_columns("comparison")])
    require_transformers()
    command = command_line(context)
    with silence_transformers():
        (opened, first), *others = [audit_model(model, options, output) for model in options.models]
        found = [first, *(audited for _, audited in others)]
        compared = [compare(first, audited, (opened, other)) for other, audited in others]
    failures = {one.text: places for one in conditions if (places := find_violations(one, found, compared))}
    files = write_tables(found, output)
    if output.report is not None:
        from attractor.report import audit_report

        audit_report(found, compared, command).write(output.report)
    document = {
        "comparisons": [pair.row() for pair in compared],
        "models": [model.row() for model in found],
        "failures": failures,
    }

    def print_tables() -> None:
        print_comparison(compared)
        print_audit(found)

    print_result(output, SCHEMA, command, document, Outputs(report=output.report, files=files), print_tables)
    exit_on_failures(failures, "attractor audit")


def check_results(output: AuditResults) -> None:
    """Raise if results could not be written."""
    for path, option in ((output.csv, "--csv"), (output.parquet, "--parquet")):
        if path is not None:
            check_file(path, option)
    if output.report is not None:
        from attractor.report import check_place

        check_file(check_place(output.report, "--report"), "--report")
    if output.parquet is not None:
        from attractor.models import import_pyarrow

        import_pyarrow()


def audit_model(model: str, options: AuditOptions, output: AuditResults) -> tuple[Checkpoint, Audit]:
    """Open and audit one model."""
    from attractor.models import audit as audit_weights
    from attractor.models import checkpoint

    opened = checkpoint(model, part=options.part)
    names = ("fold", "detail", "sums", "nulls", "verify", "unverified", "seed", "device", "dtype")
    settings = {name: getattr(options, name) for name in names}
    layers = None if options.layers is None else parse_ranges(options.layers, "--layers")
    settings |= {"detail": options.detail.value, "layers": layers}
    total = len(opened.layers) if layers is None else len(layers)
    with output.show_progress(f"layers of {Path(model).name}", total=total) as update:
        return opened, audit_weights(opened, progress=update, **settings)


def write_tables(found: list[Audit], output: AuditResults) -> list[Path]:
    """Write the tables of heads, and return their paths."""
    from attractor.models import write_csv, write_parquet

    files = []
    for path, write in ((output.csv, write_csv), (output.parquet, write_parquet)):
        if path is not None:
            write(found, path)
            files.append(path)
    return files
