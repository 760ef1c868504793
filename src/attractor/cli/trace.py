"""``attractor trace``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.inputs import Text, check_picture, read_files, read_lines
from attractor.cli.options import PictureOptions, given, grouped, panel, replay
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.progress import progress_bar

if TYPE_CHECKING:
    from attractor.models import Checkpoint, Traces

COLUMNS = {
    "norm": "token_norm",
    "distance": "pairwise_distance",
    "cosine": "cosine",
    "least": "cosine_min",
    "rank": "effective_rank",
    "sharpness": "sharpness",
    "clusters": "clusters",
    "energy": "energy",
    "first": "first_norm",
}
WIDTH = 11


def print_traces(report: dict[str, Any]) -> None:
    """The stream along depth, with and without the first token, and what every block did."""
    model, count = report["model"], report["texts"]
    tokens = sum(report["lengths"])
    without = f", without {' and '.join(report['without'])}" if report["without"] else ""
    unit = report["reads"] if count > 1 else report["reads"][:-1]
    title = f"{model['name']}: {model['layers']} layers, {count} {unit}, {tokens} tokens{without}"
    notes = {f"note {index + 1}": note for index, note in enumerate(report["notes"])}
    notes |= {f"left out {index + 1}": _skipped(one) for index, one in enumerate(report["skipped"])}
    print_rows(title, notes)
    mean = f" (means over {report['reads']})" if count > 1 else ""
    print_rows(f"the residual stream{mean}", _stream(report, ""))
    print_rows(f"without the first token of a {report['reads'][:-1]}", _stream(report, "_without_first"))
    print_rows("what every block moved, and its heads on average", _blocks(report))


def _skipped(one: dict[str, Any]) -> str:
    count = one["tokens"]
    return f"{one['text']}: {count or 'no'} token{'' if count == 1 else 's'}, and a trace follows two at least"


def _stream(report: dict[str, Any], suffix: str) -> dict[str, str]:
    shown = {label: name + suffix for label, name in COLUMNS.items() if name + suffix in report["curves"]}
    rows = {"block": "".join(f"{label:>{WIDTH}}" for label in shown)}
    columns = [report["curves"][name]["mean"] for name in shown.values()]
    for depth, values in enumerate(zip(*columns, strict=True)):
        label = "input" if depth == 0 else str(depth - 1)
        rows[label] = "".join(f"{_cell(value):>{WIDTH}}" for value in values)
    return rows


def _blocks(report: dict[str, Any]) -> dict[str, str]:
    names = {"attention": "attention", "feedforward": "feedforward"}
    heads = {"entropy": "attention_entropy", "self": "self_weight", "to first": "first_weight"}
    heads |= {"expansion": "expansion", "log energy": "log_energy"}
    columns = {label: report["blocks"][name]["mean"] for label, name in names.items()}
    columns |= {
        label: [_mean(row) for row in report["heads"][name]] for label, name in heads.items() if report["heads"]
    }
    rows = {"block": "".join(f"{name:>{WIDTH + 1}}" for name in columns)}
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        rows[str(index)] = "".join(f"{_cell(value):>{WIDTH + 1}}" for value in values)
    return rows


def _mean(row: list[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return sum(known) / len(known) if known else None


def _cell(value: float | None) -> str:
    return "n/a" if value is None else format_number(float(f"{value:.4g}"))


SCHEMA = "attractor.trace/1"
text_option, change, output = panel("Texts"), panel("Model"), panel("Results")


@dataclass(frozen=True)
class TextOptions:
    """What the model reads."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder, a file, a name of attractor fetch, or one on the Hugging Face hub."
        ),
    ]
    text: Annotated[list[str] | None, text_option("TEXT", "A text; may be repeated.")] = None
    file: Annotated[list[Path] | None, text_option("FILE", "A file with a text; may be repeated.")] = None
    lines: Annotated[
        bool, text_option("", "Every line of --file is a text; blank and one-token ones are left out.", "--lines")
    ] = False
    dataset: Annotated[
        str | None,
        text_option(
            "NAME|FILE",
            "Many texts: .txt, .json, .jsonl, .csv or .parquet, data of attractor fetch, or a datasets name.",
        ),
    ] = None
    column: Annotated[
        str | None, text_option("NAME", "The column of --dataset that is read.", default="text, content, ...")
    ] = None
    split: Annotated[str, text_option("NAME", "The split of a --dataset of the hub.")] = "train"
    limit: Annotated[int, text_option("N", "Read the first N texts of --dataset.", min=1)] = 32
    image: Annotated[list[Path] | None, text_option("FILE", "A picture, for a model of pictures; may be repeated.")] = (
        None
    )
    max_tokens: Annotated[
        int | None,
        text_option(
            "N", "Cut texts to their first N tokens.", min=2, default="the model's context with --dataset, else no cut"
        ),
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """What is taken away from the model, and what is measured."""

    without: Annotated[
        list[str] | None,
        change("PART", "Take away feedforward, attention or positions, or freeze norms; may be repeated."),
    ] = None
    attention: Annotated[
        bool,
        change("", "Measure entropy, weights, expansion and energy of every head.", "--attention/--no-attention"),
    ] = True
    summary: Annotated[
        bool, change("", "Only what hardly slows the model: norms, distances, mean cosine, sharpness.", "--summary")
    ] = False


@dataclass(frozen=True)
class TraceOutput:
    """What becomes of the trace."""

    plot: Annotated[
        list[Path] | None,
        output("FILE", "Draw the first text: .html, .png, .pdf, .svg, .gif or .mp4; may be repeated."),
    ] = None
    report: Annotated[
        Path | None, output("FILE.html", "Write a page: curves along depth, what every block moved, heads as heatmaps.")
    ] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(TextOptions, ModelOptions, TraceOutput, PictureOptions)
def trace(
    context: typer.Context, texts: TextOptions, model: ModelOptions, output: TraceOutput, paper: PictureOptions
) -> None:
    """Follow the tokens of a real model along depth: norms, distances, cosines, rank, and what every block moved.

    States are the residual stream before every block and after the last, before the final norm; with several texts, means over
    them. All numbers depend on the texts. Exit code 0; 1 if the model cannot be read, 2 for a bad argument.
    """
    with ending("attractor trace", output.debug), paper.sized():
        check_options(texts, model, output, given(context))
        named = read_texts(texts)
        from attractor.cli.console import print_json
        from attractor.cli.environment import version, versions

        with offline_silence():
            opened, first, found = run(texts, named, model, output)
            pictures = draw(opened, first, texts, model, output)
        command = replay(context, without=("json", "progress", "debug"))
        written = Written(pictures, output.report)
        report = {"schema": SCHEMA, "command": command, **summary(opened, found), "written": written.row()}
        report["reads"] = "pictures" if texts.image else "texts"
        if output.report is not None:
            from attractor.report import trace_report

            trace_report(report).write(output.report)
        if output.json:
            print_json({**report, "versions": {**versions(), "transformers": version("transformers")}})
        else:
            print_traces(report)
            written.tell(command)


def check_options(texts: TextOptions, model: ModelOptions, output: TraceOutput, named: dict[str, str]) -> None:
    """What can be known to fail before a model is read."""
    for path in output.plot or ():
        check_picture(path)
    if output.report is not None:
        from attractor.report import check_place

        check_place(output.report, "--report")
    if texts.image and (texts.text or texts.file or texts.dataset):
        raise InputError("a model reads texts or pictures: give --image alone")
    if texts.lines and not texts.file:
        raise InputError("--lines belongs to --file, which is not given")
    if texts.image and texts.max_tokens is not None:
        raise InputError("--max-tokens cuts texts: a picture has as many tokens as the model makes of it")
    if model.summary and named.get("attention") == "--attention":
        raise InputError("--summary leaves out what --attention measures: give one of them")
    if "width" in named and not output.plot:
        raise InputError("--width belongs to --plot, which is not given")
    check_dataset(texts, named)
    from attractor.models import check_ablations

    check_ablations(tuple(model.without or ()))


def check_dataset(texts: TextOptions, named: dict[str, str]) -> None:
    """Refuse options that would say nothing about the texts."""
    from attractor.models import has_columns, has_splits

    for name in ("column", "split", "limit"):
        if name in named and texts.dataset is None:
            raise InputError(f"{named[name]} belongs to --dataset, which is not given")
    if texts.dataset is not None and "split" in named and not has_splits(texts.dataset):
        raise InputError(f"--split belongs to a --dataset of the hub: {texts.dataset} has none")
    if texts.dataset is not None and "column" in named and not has_columns(texts.dataset):
        raise InputError(f"--column belongs to a --dataset with columns: {texts.dataset} is plain text")


def read_texts(options: TextOptions) -> list[Text]:
    """Every text that was asked for."""
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
            "give a text with --text, a file with --file, many texts with --dataset, or a picture with --image"
        )
    empty = next((one for one in found if not one.text.strip()), None)
    if empty is not None:
        raise InputError(f"a text is empty, {empty.place}; give at least two tokens")
    return found


def run(
    texts: TextOptions, named: list[Text], model: ModelOptions, output: TraceOutput
) -> tuple[Checkpoint, Any, Traces]:
    """The model opened once and run on every text or picture; the first that was followed comes with it."""
    from attractor.models import checkpoint, trace_texts

    with progress_bar("texts", output.progress) as show:
        opened = checkpoint(texts.model)
        read: list[Any] = [one.text for one in named]
        if texts.image:
            from attractor.models import read_image

            read = [read_image(opened, path) for path in texts.image]
        elif getattr(opened.config, "image_size", None) is not None:
            raise InputError(f"{opened.name} is a model of pictures; give it one with --image")
        found = trace_texts(
            opened,
            read,
            without=model.without or (),
            attention=model.attention,
            summary=model.summary,
            max_tokens=texts.max_tokens,
            cut=texts.dataset is not None,
            names=[one.name for one in named] or [str(path) for path in texts.image or ()],
            skip=texts.lines or texts.dataset is not None,
            progress=lambda count: show(count, len(read)),
        )
    skipped = {one.index for one in found.skipped}
    return opened, next(text for index, text in enumerate(read) if index not in skipped), found


def draw(opened: Checkpoint, first: Any, texts: TextOptions, model: ModelOptions, output: TraceOutput) -> list[str]:
    """Pictures of the first text."""
    if not output.plot:
        return []
    from attractor.models import trace as trace_one

    run = trace_one(
        opened, first, without=model.without or (), attention=False, max_tokens=texts.max_tokens,
        cut=texts.dataset is not None,
    )  # fmt: skip
    title = f"{'/'.join(Path(opened.name).parts[-2:])} along depth"
    for path in output.plot:
        run.plot(path, curves=("token_norm", "cosine", "effective_rank"), title=title)
    return [str(path) for path in output.plot]


def summary(opened: Checkpoint, found: Traces) -> dict[str, Any]:
    """The traces in numbers, ready for JSON; what is undefined is None."""
    from attractor.files import to_json
    from attractor.models import tokenizer_notes

    first = found.measurements[0]
    curves = {name: dict(zip(("mean", "spread"), found.curve(name), strict=True)) for name in first.curves}
    blocks = {name: dict(zip(("mean", "spread"), found.block(name), strict=True)) for name in first.blocks}
    heads = {name: found.head(name) for name in first.heads}
    report = {
        "model": {"name": opened.name, "family": opened.family.name, "layers": len(opened.layers), "dim": opened.dim},
        "notes": [*opened.notes, *tokenizer_notes(opened)],
        "texts": found.texts,
        "skipped": [{"text": one.name, "tokens": one.tokens} for one in found.skipped],
        "lengths": list(found.lengths),
        "without": list(found.without),
        "curves": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in curves.items()},
        "blocks": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in blocks.items()},
        "heads": {name: part.tolist() for name, part in heads.items()},
        "seconds": found.seconds,
    }
    return to_json(report)


def offline_silence() -> Any:
    """No bars and reports of transformers among our output."""
    from attractor.models import require_transformers, silence_transformers

    require_transformers()
    return silence_transformers()
