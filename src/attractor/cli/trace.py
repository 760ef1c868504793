"""``attractor trace``: follow the tokens of a real model along depth."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs, exit_on_failures, print_findings, print_rows, print_table
from attractor.cli.inputs import Text, check_figure, read_files, read_lines
from attractor.cli.options import (
    RunOptions,
    WidthOptions,
    command_line,
    describe_columns,
    given,
    panel,
    print_result,
    result_option,
    with_options,
)
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.models import list_columns

if TYPE_CHECKING:
    from attractor.models import Checkpoint, DepthExponents, Traces

COLUMNS = (
    "token_norm",
    "pairwise_distance",
    "cosine",
    "cosine_min",
    "effective_rank",
    "sharpness",
    "clusters",
    "energy",
    "first_norm",
)
HEADS = ("attention_entropy", "self_weight", "first_weight", "expansion", "log_energy")


def print_traces(report: dict[str, Any]) -> None:
    """Print the findings, the residual stream along depth, with and without the first token, and the displacement of blocks."""
    model, count = report["model"], report["texts"]
    tokens = sum(report["lengths"])
    without = f", without {' and '.join(report['without'])}" if report["without"] else ""
    unit = report["reads"] if count > 1 else report["reads"][:-1]
    title = f"{model['name']}: {model['layers']} layers, {count} {unit}, {tokens} tokens{without}"
    notes = {f"note {index + 1}": note for index, note in enumerate(report["notes"])}
    notes |= {f"skipped {index + 1}": _skipped(row) for index, row in enumerate(report["skipped"])}
    print_rows(title, notes)
    print_findings(report["findings"])
    mean = f" (means over {report['reads']})" if count > 1 else ""
    print_table(f"the residual stream{mean}", *_stream(report, ""), right=None)
    print_table(f"without the first token of a {report['reads'][:-1]}", *_stream(report, "_without_first"), right=None)
    print_table("displacement of every block, and means over its heads", *_blocks(report), right=None)
    if report["lyapunov"] is not None:
        print_table("exponents of the first text along depth", *_exponents(report["lyapunov"]), right=None)
        print_rows("", {"exponents": report["lyapunov"]["sentence"]})


def _skipped(row: dict[str, Any]) -> str:
    count = row["tokens"]
    return f"{row['text']}: {count or 'no'} token{'' if count == 1 else 's'}, a trace needs at least two"


def _stream(report: dict[str, Any], suffix: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the residual stream: the input, and the output of every block."""
    shown = [name for name in COLUMNS if name + suffix in report["curves"]]
    columns = [report["curves"][name + suffix]["mean"] for name in shown]
    rows = [
        ["input" if depth == 0 else str(depth - 1), *map(_cell, values)]
        for depth, values in enumerate(zip(*columns, strict=True))
    ]
    return ["block", *shown], rows


def _blocks(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the blocks."""
    columns = {name: found["mean"] for name, found in report["blocks"].items()}
    columns |= {name: [_mean(row) for row in report["heads"][name]] for name in HEADS if report["heads"]}
    rows = [[str(index), *map(_cell, values)] for index, values in enumerate(zip(*columns.values(), strict=True))]
    return ["block", *columns], rows


def _exponents(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the exponents: means over blocks, of the model and of random weights."""
    rows = []
    for one in (found, *found["random"]):
        name = one["model"] if one is not found else "model"
        means = [sum(one[key]) / len(one[key]) for key in ("gradient", "angle", "norm")]
        rows.append([name, *map(_cell, (*one["exponents"][:4], *means))])
    count = min(4, len(found["exponents"]))
    return ["per block", *(f"exponent {k}" for k in range(1, count + 1)), "gradient", "angle", "norm"], rows


def _mean(row: list[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> str:
    return "n/a" if value is None else format_number(float(f"{value:.4g}"))


SCHEMA = "attractor.trace/3"
text_option, model_option = panel("Texts"), panel("Model")


def show_columns(wanted: bool) -> None:
    """Print the dictionary of columns for ``--columns``, and end."""
    if wanted:
        print_rows("columns of blocks and heads (JSON, page, --fail-if)", list_columns("trace"))
        raise typer.Exit


@dataclass(frozen=True)
class TextOptions:
    """The input of the model."""

    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="A folder, a file, an asset of attractor fetch, or a name on the Hugging Face hub."
        ),
    ] = None
    states: Annotated[
        Path | None,
        text_option(
            "FILE",
            "Instead of a model and a text: hidden states (blocks + 1, tokens, d) in an .npy, .npz, .safetensors or Zarr file.",
        ),
    ] = None
    text: Annotated[list[str] | None, text_option("TEXT", "A text; may be repeated.")] = None
    file: Annotated[list[Path] | None, text_option("FILE", "A file with a text; may be repeated.")] = None
    lines: Annotated[
        bool,
        text_option(
            "", "Read every line of --file as a text; blank lines and lines of one token are left out.", "--lines"
        ),
    ] = False
    dataset: Annotated[
        str | None,
        text_option(
            "NAME|FILE",
            "Many texts: .txt, .json, .jsonl, .csv or .parquet, an asset of attractor fetch, or a name for datasets.",
        ),
    ] = None
    column: Annotated[str | None, text_option("NAME", "Column of --dataset.", default="text, content, ...")] = None
    split: Annotated[str, text_option("NAME", "Split of a --dataset of the hub.")] = "train"
    limit: Annotated[int, text_option("N", "Read the first N texts of --dataset.", min=1)] = 32
    image: Annotated[list[Path] | None, text_option("FILE", "An image, for a vision model; may be repeated.")] = None
    max_tokens: Annotated[
        int | None,
        text_option(
            "N", "Truncate texts to N tokens.", min=2, default="the context of the model with --dataset, else none"
        ),
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """Ablations and measures."""

    stack: Annotated[
        str | None,
        model_option(
            "NAME", "encoder or decoder, or the path of the blocks of a model without a family.", default="the first"
        ),
    ] = None
    part: Annotated[
        str | None,
        model_option("NAME", "text, vision or audio: one part of a multimodal model.", default="what reads the input"),
    ] = None
    without: Annotated[
        list[str] | None,
        model_option("PART", "Remove feedforward, attention or positions, or freeze norms; may be repeated."),
    ] = None
    attention: Annotated[
        bool,
        model_option("", "Measure entropy, weights, expansion and energy of every head.", "--attention/--no-attention"),
    ] = True
    summary: Annotated[
        bool, model_option("", "Only the cheap measures: norms, distances, mean cosine, sharpness.", "--summary")
    ] = False
    nulls: Annotated[
        int | None,
        model_option(
            "N",
            "Models with random weights that read the same texts, for the rates of findings.",
            min=0,
            default="1 for models of at most 3e8 parameters, else 0",
        ),
    ] = None
    lyapunov: Annotated[
        bool,
        model_option(
            "",
            "Measure Lyapunov, angle and gradient exponents of the first text along depth, beside those of random weights.",
            "--lyapunov",
        ),
    ] = False
    fail_if: Annotated[
        list[str] | None,
        model_option(
            "CONDITION",
            "Exit with code 1 where a condition holds: 'effective_rank < 5 at layers > 3', or the name of a finding; may be repeated.",
        ),
    ] = None
    columns: Annotated[
        bool,
        model_option("", "Print what every column means, and exit.", "--columns", is_eager=True, callback=show_columns),
    ] = False


@dataclass(frozen=True)
class TraceResults(WidthOptions):
    """Where results go."""

    plot: Annotated[
        list[Path] | None,
        result_option("FILE", "Draw the first text: .html, .png, .pdf, .svg, .gif, .webp or .mp4; may be repeated."),
    ] = None
    lyapunov_plot: Annotated[
        Path | None, result_option("FILE", "Draw the exponents of --lyapunov: .png, .pdf or .svg.")
    ] = None
    report: Annotated[
        Path | None,
        result_option("FILE.html", "Write a page: curves along depth, displacement of every block, heatmaps of heads."),
    ] = None


PARTS = ("displacement", "attention", "feedforward")


@with_options(
    TextOptions,
    ModelOptions,
    RunOptions,
    TraceResults,
    epilog=describe_columns(list_columns("trace"), (*COLUMNS, *PARTS, *HEADS)),
)
def trace(
    context: typer.Context, texts: TextOptions, model: ModelOptions, run: RunOptions, output: TraceResults
) -> None:
    """Trace the tokens of a real model along depth: norms, distances, cosines, rank, and the displacement of every block.

    States are the residual stream before every block and after the last, before the final norm; with several texts, means over
    them. All numbers depend on the texts. Models without a family are traced by their structure. Exit code 0; 1 if the model cannot
    be read or a condition of --fail-if holds, 2 for a bad argument.
    """
    from attractor.models import Condition

    check_options(texts, model, output, given(context))
    conditions = [Condition.parse(text) for text in model.fail_if or ()]
    exponents = None
    if texts.states is not None:
        found, opened, figures = trace_states(texts.states, model, output)
    else:
        found, opened, figures, exponents = trace_model(texts, model, run, output)
    report = summarise_traces(found, opened)
    report["lyapunov"] = None if exponents is None else exponents.row()
    failures = {one.text: one.violations(found.measurements, found.findings) for one in conditions}
    report["failures"] = {text: places for text, places in failures.items() if places}
    command = command_line(context)
    report["reads"] = "pictures" if texts.image else "texts"
    if output.report is not None:
        from attractor.report import trace_report

        trace_report({"command": command, **report}).write(output.report)
    outputs = Outputs(figures, output.report)
    print_result(output, SCHEMA, command, report, outputs, lambda: print_traces(report), packages=("transformers",))
    exit_on_failures(report["failures"], "attractor trace")


def trace_states(path: Path, model: ModelOptions, output: TraceResults) -> tuple[Traces, None, list[str]]:
    """Measure hidden states that were computed elsewhere; return the measurements and the figures."""
    from attractor.models import trace as trace_one

    run = trace_one(states=path, attention=model.attention and not model.summary)
    return run.as_traces(str(path)), None, draw_trace(run, str(path), output)


def trace_model(
    texts: TextOptions, model: ModelOptions, run: RunOptions, output: TraceResults
) -> tuple[Traces, Checkpoint, list[str], DepthExponents | None]:
    """Run a model; return the measurements, the model, the figures and the exponents of the first text."""
    from attractor.models import require_transformers, silence_transformers
    from attractor.models import trace as trace_one

    named = read_texts(texts)
    require_transformers()
    with silence_transformers():
        opened, first, found = run_model(texts, named, model, run, output)
        figures = []
        if output.plot:
            options: Any = {"without": model.without or (), "stack": model.stack, "max_tokens": texts.max_tokens}
            options |= asdict(run)
            one = trace_one(opened, first, attention=False, cut=texts.dataset is not None, **options)
            figures = draw_trace(one, opened.name, output)
        exponents = None
        if model.lyapunov:
            from attractor.models import depth_exponents

            with output.show_progress("exponents") as update:
                exponents = depth_exponents(
                    opened,
                    first,
                    nulls=model.nulls,
                    stack=model.stack,
                    max_tokens=texts.max_tokens,
                    progress=update,
                    **asdict(run),
                )
            if output.lyapunov_plot is not None:
                exponents.plot(output.lyapunov_plot)
                figures = [*figures, str(output.lyapunov_plot)]
    return found, opened, figures, exponents


def check_options(texts: TextOptions, model: ModelOptions, output: TraceResults, named: dict[str, str]) -> None:
    """Raise for bad combinations of options, before the model is read."""
    if (texts.model is None) == (texts.states is None):
        raise InputError(
            "give a model, or hidden states with --states FILE" + " and no model" * (texts.model is not None)
        )
    if texts.states is not None:
        reads = ["text", "file", "lines", "dataset", "image", "max_tokens", "without", "stack", "part", "nulls"]
        reads += ["device", "dtype", "layers", "lyapunov"]
        if other := next((named[name] for name in reads if name in named), None):
            raise InputError(f"{other} belongs to a model, and --states takes the place of a model and its texts")
    if output.lyapunov_plot is not None:
        check_figure(output.lyapunov_plot, still=True)
        if not model.lyapunov:
            raise InputError("--lyapunov-plot belongs to --lyapunov, which is not given")
    if model.lyapunov and model.without:
        raise InputError("--lyapunov measures the whole model: leave out --without")
    for path in output.plot or ():
        check_figure(path)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")
    if texts.image and (texts.text or texts.file or texts.dataset):
        raise InputError("a model reads texts or images: give --image alone")
    if texts.lines and not texts.file:
        raise InputError("--lines belongs to --file, which is not given")
    if texts.image and texts.max_tokens is not None:
        raise InputError("--max-tokens truncates texts: the number of tokens of an image is fixed by the model")
    if model.summary and named.get("attention") == "--attention":
        raise InputError("--summary leaves out what --attention measures: give one of them")
    if "width" in named and not output.plot and output.lyapunov_plot is None:
        raise InputError("--width belongs to --plot, which is not given")
    check_dataset(texts, named)
    from attractor.models import check_ablations

    check_ablations(tuple(model.without or ()))


def check_dataset(texts: TextOptions, named: dict[str, str]) -> None:
    """Raise for options of ``--dataset`` that have no effect."""
    from attractor.models import has_columns, has_splits

    for name in ("column", "split", "limit"):
        if name in named and texts.dataset is None:
            raise InputError(f"{named[name]} belongs to --dataset, which is not given")
    if texts.dataset is not None and "split" in named and not has_splits(texts.dataset):
        raise InputError(f"--split belongs to a --dataset of the hub: {texts.dataset} has none")
    if texts.dataset is not None and "column" in named and not has_columns(texts.dataset):
        raise InputError(f"--column belongs to a --dataset with columns: {texts.dataset} is plain text")


def read_texts(options: TextOptions) -> list[Text]:
    """Return all texts."""
    found = [Text(text, f"--text {index}") for index, text in enumerate(options.text or (), 1)]
    found += (read_lines if options.lines else read_files)(options.file or ())
    if options.dataset is not None:
        from attractor.models import read_texts

        many = read_texts(options.dataset, options.limit, options.column, options.split)
        found += [Text(text, f"text {index} of {options.dataset}") for index, text in enumerate(many, 1)]
    if not found and options.file:
        raise InputError(f"--file {' '.join(map(str, options.file))} has no line with text in it")
    if not found and not options.image:
        raise InputError(
            "give a text with --text, a file with --file, many texts with --dataset, or an image with --image"
        )
    empty = next((text for text in found if not text.text.strip()), None)
    if empty is not None:
        raise InputError(f"a text is empty, {empty.place}; give at least two tokens")
    return found


def run_model(
    texts: TextOptions, named: list[Text], model: ModelOptions, run: RunOptions, output: TraceResults
) -> tuple[Checkpoint, Any, Traces]:
    """Run the model on every text or image; return it, the first input that was traced, and the traces."""
    from attractor.models import checkpoint, trace_texts

    with output.show_progress("texts") as update:
        opened = checkpoint(texts.model, structural=True, part=model.part)
        read: list[Any] = [text.text for text in named]
        if texts.image:
            from attractor.models import read_image

            read = [read_image(opened, path) for path in texts.image]
        elif getattr(opened.config, "image_size", None) is not None and not hasattr(opened.config, "text_config"):
            raise InputError(f"{opened.name} is a vision model; give an image with --image")
        found = trace_texts(
            opened,
            read,
            without=model.without or (),
            stack=model.stack,
            attention=model.attention,
            summary=model.summary,
            max_tokens=texts.max_tokens,
            cut=texts.dataset is not None,
            names=[text.name for text in named] or [str(path) for path in texts.image or ()],
            skip=texts.lines or texts.dataset is not None,
            nulls=model.nulls,
            **asdict(run),
            progress=lambda count: update(count, len(read)),
        )
    skipped = {text.index for text in found.skipped}
    return opened, next(text for index, text in enumerate(read) if index not in skipped), found


def draw_trace(run: Any, name: str, output: TraceResults) -> list[str]:
    """Draw a trace, and return the files."""
    title = f"{'/'.join(Path(name).parts[-2:])} along depth"
    for path in output.plot or ():
        run.plot(path, curves=("token_norm", "cosine", "effective_rank"), title=title)
    return [str(path) for path in output.plot or ()]


def summarise_traces(found: Traces, opened: Checkpoint | None) -> dict[str, Any]:
    """Return the traces for JSON; undefined numbers are None."""
    from attractor.files import to_json
    from attractor.models import tokenizer_notes

    first = found.measurements[0]
    curves = {name: dict(zip(("mean", "spread"), found.curve(name), strict=True)) for name in first.curves}
    blocks = {name: dict(zip(("mean", "spread"), found.block(name), strict=True)) for name in first.blocks}
    heads = {name: found.head(name) for name in first.heads}
    report = {
        "model": {
            "name": found.model,
            "family": None if opened is None else opened.family.name,
            "layers": len(first.blocks["displacement"]),
            "dim": first.dim,
        },
        "notes": [*found.notes] if opened is None else [*opened.notes, *tokenizer_notes(opened), *found.notes],
        "findings": [one.row() for one in found.findings],
        "texts": found.texts,
        "skipped": [{"text": text.name, "tokens": text.tokens} for text in found.skipped],
        "lengths": list(found.lengths),
        "without": list(found.without),
        "curves": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in curves.items()},
        "blocks": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in blocks.items()},
        "heads": {name: part.tolist() for name, part in heads.items()},
        "seconds": found.seconds,
    }
    return to_json(report)
