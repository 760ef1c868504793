"""``attractor trace``: where a real model's tokens go along depth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.bars import counted
from attractor.cli.ending import ending
from attractor.cli.files import check_picture
from attractor.cli.groups import given, grouped, panel, replay
from attractor.cli.pictures import PictureOptions
from attractor.cli.texts import Text, read_files, read_lines
from attractor.cli.written import Written
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.checkpoints import Checkpoint, Traces

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
        from attractor.cli.printing import print_json, version, versions
        from attractor.cli.tracetable import print_traces

        with offline_silence():
            opened, first, found = run(texts, named, model, output)
            pictures = draw(opened, first, texts, model, output)
        command = replay(context, without=("json", "progress", "debug"))
        written = Written(pictures, output.report)
        report = {"schema": SCHEMA, "command": command, **summary(opened, found), "written": written.row()}
        report["reads"] = "pictures" if texts.image else "texts"
        if output.report is not None:
            from attractor.cli.tracepage import trace_report

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
    from attractor.checkpoints.ablations import check_ablations

    check_ablations(tuple(model.without or ()))


def check_dataset(texts: TextOptions, named: dict[str, str]) -> None:
    """Refuse options that would say nothing about the texts."""
    from attractor.checkpoints.corpora import takes_column, takes_split

    for name in ("column", "split", "limit"):
        if name in named and texts.dataset is None:
            raise InputError(f"{named[name]} belongs to --dataset, which is not given")
    if texts.dataset is not None and "split" in named and not takes_split(texts.dataset):
        raise InputError(f"--split belongs to a --dataset of the hub: {texts.dataset} has none")
    if texts.dataset is not None and "column" in named and not takes_column(texts.dataset):
        raise InputError(f"--column belongs to a --dataset with columns: {texts.dataset} is plain text")


def read_texts(options: TextOptions) -> list[Text]:
    """Every text that was asked for."""
    found = [Text(text, f"--text {index}") for index, text in enumerate(options.text or (), 1)]
    found += (read_lines if options.lines else read_files)(options.file or ())
    if options.dataset is not None:
        from attractor.checkpoints.corpora import corpus

        many = corpus(options.dataset, options.limit, options.column, options.split)
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
    from attractor.checkpoints import checkpoint, trace_texts

    with counted("texts", output.progress) as show:
        opened = checkpoint(texts.model)
        read: list[Any] = [one.text for one in named]
        if texts.image:
            from attractor.checkpoints.images import picture

            read = [picture(opened, path) for path in texts.image]
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
    from attractor.checkpoints import trace as trace_one

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
    from attractor.checkpoints.running import text_notes
    from attractor.flow.summary import strict

    first = found.measurements[0]
    curves = {name: dict(zip(("mean", "spread"), found.curve(name), strict=True)) for name in first.curves}
    blocks = {name: dict(zip(("mean", "spread"), found.block(name), strict=True)) for name in first.blocks}
    heads = {name: found.head(name) for name in first.heads}
    report = {
        "model": {"name": opened.name, "family": opened.family.name, "layers": len(opened.layers), "dim": opened.dim},
        "notes": [*opened.notes, *text_notes(opened)],
        "texts": found.texts,
        "skipped": [{"text": one.name, "tokens": one.tokens} for one in found.skipped],
        "lengths": list(found.lengths),
        "without": list(found.without),
        "curves": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in curves.items()},
        "blocks": {name: {key: part.tolist() for key, part in parts.items()} for name, parts in blocks.items()},
        "heads": {name: part.tolist() for name, part in heads.items()},
        "seconds": found.seconds,
    }
    return strict(report)


def offline_silence() -> Any:
    """No bars and reports of transformers among our output."""
    from attractor.checkpoints.opening import needs_transformers
    from attractor.checkpoints.verification import quiet

    needs_transformers()
    return quiet()
