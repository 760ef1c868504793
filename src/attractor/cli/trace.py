"""``attractor trace``: where a real model's tokens go along depth."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.ending import ending
from attractor.cli.files import check_picture
from attractor.cli.groups import grouped, panel, replay
from attractor.cli.pictures import PictureOptions
from attractor.errors import InputError

if TYPE_CHECKING:
    from attractor.checkpoints import Checkpoint, Traces

SCHEMA = "attractor.trace/1"
text_option, change, output = panel("Texts"), panel("Model"), panel("Results")


@dataclass(frozen=True)
class TextOptions:
    """What the model reads."""

    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A folder, a GGUF file, or a name on the Hugging Face hub.")
    ]
    text: Annotated[list[str] | None, text_option("TEXT", "A text; may be repeated.")] = None
    file: Annotated[list[Path] | None, text_option("FILE", "A file with a text; may be repeated.")] = None
    lines: Annotated[bool, text_option("", "Every line of --file that is not blank is a text.", "--lines")] = False
    max_tokens: Annotated[
        int | None, text_option("N", "Cut texts to their first N tokens.", min=2, default="the model's context")
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """What is taken away from the model."""

    without: Annotated[
        list[str] | None,
        change("PART", "Take away feedforward, attention or positions, or freeze norms; may be repeated."),
    ] = None
    attention: Annotated[
        bool,
        change("", "Measure entropy, self-weight and expansion of every head.", "--attention/--no-attention"),
    ] = True


@dataclass(frozen=True)
class TraceOutput:
    """What becomes of the trace."""

    plot: Annotated[
        list[Path] | None,
        output("FILE", "Draw the first text: .html, .png, .pdf, .svg, .gif or .mp4; may be repeated."),
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
        given = read_texts(texts)
        for path in output.plot or ():
            check_picture(path)
        from attractor.cli.printing import print_json, versions
        from attractor.cli.tracetable import print_traces

        with offline_silence():
            opened, found = run(texts, given, model, output)
            pictures = draw(opened, given[0], texts, model, output)
        command = replay(context, without=("json", "progress", "debug"))
        report = {"schema": SCHEMA, "command": command, **summary(opened, found), "pictures": pictures}
        if output.json:
            print_json({**report, "versions": {**versions(), "transformers": _transformers()}})
        else:
            print_traces(report)


def read_texts(options: TextOptions) -> list[str]:
    """Every text that was asked for."""
    found = list(options.text or ())
    for path in options.file or ():
        if not path.is_file():
            raise InputError(f"--file {path} is not a file that can be read")
        try:
            whole = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--file {path} cannot be read as text: {error}") from None
        found += [line for line in whole.splitlines() if line.strip()] if options.lines else [whole]
    if not found:
        raise InputError("give a text with --text or a file with --file")
    if any(not text.strip() for text in found):
        raise InputError("a text is empty; give at least two tokens")
    return found


def run(texts: TextOptions, given: list[str], model: ModelOptions, output: TraceOutput) -> tuple[Checkpoint, Traces]:
    """The model opened once and run on every text."""
    from rich.console import Console
    from rich.progress import Progress

    from attractor.checkpoints import checkpoint, trace_texts

    shows = sys.stderr.isatty() if output.progress is None else output.progress
    with Progress(console=Console(stderr=True), disable=not shows, transient=True) as bar:
        task = bar.add_task("texts", total=len(given))
        opened = checkpoint(texts.model)
        found = trace_texts(
            opened,
            given,
            without=model.without or (),
            attention=model.attention,
            max_tokens=texts.max_tokens,
            progress=lambda count: bar.update(task, completed=count),
        )
    return opened, found


def draw(opened: Checkpoint, text: str, texts: TextOptions, model: ModelOptions, output: TraceOutput) -> list[str]:
    """Pictures of the first text."""
    if not output.plot:
        return []
    from attractor.checkpoints import trace as trace_one

    run = trace_one(opened, text, without=model.without or (), attention=False, max_tokens=texts.max_tokens)
    title = f"{'/'.join(Path(opened.name).parts[-2:])} along depth"
    for path in output.plot:
        run.plot(path, curves=("token_norm", "cosine", "effective_rank"), title=title)
    return [str(path) for path in output.plot]


def summary(opened: Checkpoint, found: Traces) -> dict[str, Any]:
    """The traces in numbers, ready for JSON; what is undefined is None."""
    from attractor.flow.summary import strict

    first = found.measurements[0]
    curves = {name: dict(zip(("mean", "spread"), found.curve(name), strict=True)) for name in first.curves}
    blocks = {name: dict(zip(("mean", "spread"), found.block(name), strict=True)) for name in first.blocks}
    heads = {name: found.head(name) for name in first.heads}
    report = {
        "model": {"name": opened.name, "family": opened.family.name, "layers": len(opened.layers), "dim": opened.dim},
        "notes": list(opened.notes),
        "texts": found.texts,
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


def _transformers() -> str | None:
    from attractor.cli.printing import version

    return version("transformers")
