"""``attractor iterate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.inputs import check_file, check_picture
from attractor.cli.options import PictureOptions, given, grouped, numbers, panel, replay
from attractor.errors import InputError
from attractor.html_repr import format_number
from attractor.progress import progress_bar

if TYPE_CHECKING:
    from attractor.models import Checkpoint, Iteration

COLUMNS = {
    "metric": "consensus_metric",
    "least": "cosine_min",
    "cosine": "cosine",
    "norm": "token_norm",
    "rank": "effective_rank",
}
WIDTH = 11
WORDS = 160  # characters of a decoded text


def print_iteration(report: dict[str, Any]) -> None:
    """The law first, then the curves at chosen passes, and the words."""
    law, protocol = report["law"], report["protocol"]
    name = {"none": "No law", "neither": "Neither law", "reached": "Consensus"}.get(
        law["name"], law["name"].capitalize()
    )
    print_rows(f"{name}: {law['message']}.", _how(report))
    several = " (means over prompts)" if len(report["prompts"]) > 1 else ""
    print_rows(f"tokens after pass k{several}", _curves(report))
    if law["fits"]:
        print_rows("fits of log metric", _fits(law))
    for k, texts in report["words"].items():
        print_rows(
            f"words after pass {k}", {name: _cut(text) for name, text in zip(_labels(report), texts, strict=True)}
        )
    rows = {"seed": f"{protocol['seed']}, {protocol['dtype']}", "seconds": f"{report['seconds']:.3g}"}
    if len(report["prompts"]) > 1:
        rows["laws"] = ", ".join(each["name"] for each in report["laws"])
    rows |= {f"note {index + 1}": note for index, note in enumerate(report["notes"])}
    print_rows("", rows)


def _how(report: dict[str, Any]) -> dict[str, str]:
    protocol = report["protocol"]
    parts = ["with feed-forward" if protocol["feedforward"] else "without feed-forward"]
    parts.append("final norm between passes" if protocol["final_norm"] else "no final norm between passes")
    if protocol["redraw"]:
        parts.append("weights drawn anew before every pass")
    elif protocol["random"]:
        parts.append("random weights")
    tokens = ", ".join(map(str, report["lengths"][:8])) + (", ..." if len(report["lengths"]) > 8 else "")
    return {
        "model": f"{report['model']}, {report['layers']} blocks",
        "passes": f"{protocol['passes']}, {', '.join(parts)}",
        "prompts": f"{len(report['prompts'])} with {tokens} tokens",
    }


def _curves(report: dict[str, Any]) -> dict[str, str]:
    rows = {"k": "".join(f"{name:>{WIDTH}}" for name in COLUMNS)}
    for k in _shown(report["protocol"]["passes"]):
        means = (sum(row[k] for row in report["curves"][name]) / len(report["prompts"]) for name in COLUMNS.values())
        rows[str(k)] = "".join(f"{format_number(float(f'{mean:.4g}')):>{WIDTH}}" for mean in means)
    return rows


def _shown(passes: int) -> list[int]:
    """0, 1, 2, 5, 10, ... and the last pass."""
    round_ones = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    return [0, *(k for k in round_ones if k < passes), passes]


def _fits(law: dict[str, Any]) -> dict[str, str]:
    formulas = {"exponential": "metric = c exp(-r k)", "power": "metric = c k^-r"}
    return {
        name: f"{formulas[name]:<22} r {fit['rate']:.4g} (halves {fit['halves'][0]:.3g}, {fit['halves'][1]:.3g}), "
        f"residual {fit['residual']:.3g}, AIC {fit['criterion']:.4g}"
        for name, fit in law["fits"].items()
    }


def _labels(report: dict[str, Any]) -> list[str]:
    return [f"prompt {index}" for index in range(len(report["prompts"]))]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WORDS else line[: WORDS - 1] + "…"


WHAT = ("model", "config", "layers", "dim", "heads")  # another model or type has other sizes
PROMPTS = ("text", "file", "random_prompts")  # given together


def request(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, texts: Sequence[str]
) -> dict[str, Any]:
    """The options of a run by name, ready for JSON; files as the texts that they held."""
    return asdict(model) | asdict(prompts) | asdict(passes) | {"text": list(texts) or None, "file": None}


def resumed(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, output: IterateOutput, named: dict[str, str]
) -> tuple[IterateModel, IteratePrompts, IteratePasses]:
    """The options of the run that goes on; those that are given stand, and a run that differs in them is refused when it is opened."""
    path = output.resume
    if path is None:
        return model, prompts, passes
    if output.out is not None:
        raise InputError("--resume goes on in its own file: leave out --out")
    if not path.is_file():
        raise InputError(f"--resume: there is no run in {path} to go on with; begin one with --out {path}")
    from attractor.models import read_request

    kept = {name: value for name, value in read_request(path).items() if name not in named}
    if "model" in named or "config" in named:
        kept = {name: value for name, value in kept.items() if name not in WHAT[: 2 if "config" in named else None]}
    if any(name in named for name in PROMPTS):
        kept = {name: value for name, value in kept.items() if name not in PROMPTS}
    return _with(model, kept), _with(prompts, kept), _with(passes, kept)


def _with(group: Any, kept: dict[str, Any]) -> Any:
    return replace(group, **{field.name: kept[field.name] for field in fields(group) if field.name in kept})


SCHEMA = "attractor.iterate/1"
DTYPES = ("float64", "float32", "bfloat16", "float16")
SIZES = {"layers": 12, "dim": 384, "heads": 6}
model_option, prompt, change, output = panel("Model"), panel("Prompts"), panel("Passes"), panel("Results")


@dataclass(frozen=True)
class IterateModel:
    """What the tokens go through."""

    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", show_default=False,
                       help="A folder, a file, a name of attractor fetch, or one on the Hugging Face hub."),
    ] = None  # fmt: skip
    config: Annotated[
        str | None,
        model_option("TYPE", "Instead of a model, a type of transformers with random weights: gpt2, llama..."),
    ] = None
    layers: Annotated[int | None, model_option("L", "With --config: blocks.", min=1, default="12")] = None
    dim: Annotated[int | None, model_option("D", "With --config: width.", min=2, default="384")] = None
    heads: Annotated[int | None, model_option("H", "With --config: heads.", min=1, default="6")] = None
    random: Annotated[bool, model_option("", "Draw all weights at random before the run.", "--random")] = False
    redraw: Annotated[bool, model_option("", "Draw them anew before every pass.", "--redraw")] = False
    init: Annotated[
        str, model_option("NAME", "Random weights as the family draws them, or plain: N(0, 0.02) everywhere.")
    ] = "family"
    dtype: Annotated[str, model_option("NAME", "float64, float32, bfloat16 or float16.")] = "float64"


@dataclass(frozen=True)
class IteratePrompts:
    """What the tokens are at the start."""

    text: Annotated[list[str] | None, prompt("TEXT", "A prompt; may be repeated.")] = None
    file: Annotated[list[Path] | None, prompt("FILE", "A file with a prompt; may be repeated.")] = None
    random_prompts: Annotated[
        int | None, prompt("K", "Prompts of random token ids.", min=1, default="1 if none is given")
    ] = None
    prompt_tokens: Annotated[int, prompt("N", "Tokens of a random prompt.", min=2)] = 24
    max_tokens: Annotated[
        int | None, prompt("N", "Cut --text and --file to their first N tokens.", min=2, default="no cut")
    ] = None


@dataclass(frozen=True)
class IteratePasses:
    """What is done in every pass."""

    passes: Annotated[int, change("N", "How often the tokens go through all blocks.", min=1)] = 100
    feedforward: Annotated[bool, change("", "With or without the feed-forward.", "--feedforward/--no-feedforward")] = (
        True
    )
    final_norm: Annotated[
        bool, change("", "The final norm between passes, or only at the end.", "--final-norm/--no-final-norm")
    ] = True
    seed: Annotated[int, change("N", "Of random weights and prompts.", min=0)] = 0
    decode: Annotated[str | None, change("K,K,...", "Read the tokens as words after these passes; 0 is the start.")] = (
        None
    )


@dataclass(frozen=True)
class IterateOutput:
    """What becomes of the run."""

    out: Annotated[Path | None, output("FILE", "Keep the state in this .npz file as the run goes.", "--out", "-o")] = (
        None
    )
    resume: Annotated[
        Path | None, output("FILE", "Go on with the run in this .npz file, as it began; --passes for more of them.")
    ] = None
    plot: Annotated[list[Path] | None, output("FILE", "Draw the decay: .png, .pdf or .svg; may be repeated.")] = None
    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A bar on stderr.", "--progress/--no-progress", default="if stderr is a terminal")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(IterateModel, IteratePrompts, IteratePasses, IterateOutput, PictureOptions)
def iterate(
    context: typer.Context,
    model: IterateModel,
    prompts: IteratePrompts,
    passes: IteratePasses,
    output: IterateOutput,
    paper: PictureOptions,
) -> None:
    """Push tokens through all blocks of a model again and again, and say by which law they come to consensus.

    The tokens are embedded once. Consensus is measured as the published experiments do, 1 - mean |cos(x_1, x_j)|, with the smallest
    signed cosine beside it: two opposite clusters score 0 too. Exit code 0; 1 if the run fails, 2 for a bad argument.
    """
    with ending("attractor iterate", output.debug, interrupted=lambda: _interrupted(output)), paper.sized():
        named = given(context)
        model, prompts, passes = resumed(model, prompts, passes, output, named)
        check_options(model, prompts, output, named)
        from attractor.cli.console import print_json
        from attractor.cli.environment import version, versions
        from attractor.models import require_transformers, silence_transformers

        require_transformers()
        decode = whole_numbers(passes.decode)
        with silence_transformers():
            found = run(model, prompts, passes, output, decode, named)
        pictures = draw(found, output)
        command = replay(context, without=("json", "progress", "debug"))
        written = Written(pictures, store=output.out or output.resume)
        report = {"schema": SCHEMA, "command": command, **summary(found), "written": written.row()}
        if output.json:
            print_json({**report, "versions": {**versions(), "transformers": version("transformers")}})
        else:
            print_iteration(report)
            written.tell(command)


def check_options(model: IterateModel, prompts: IteratePrompts, output: IterateOutput, named: dict[str, str]) -> None:
    """What can be known to fail before anything is read."""
    from attractor.plotting import static_suffix

    if (model.model is None) == (model.config is None):
        raise InputError("give a MODEL, or --config with the type of one, and not both")
    sizes = [f"--{name}" for name in SIZES if getattr(model, name) is not None]
    if model.config is None and sizes:
        raise InputError(f"{', '.join(sizes)} describe a random model: give --config too")
    if model.dtype not in DTYPES:
        raise InputError(f"--dtype must be {', '.join(DTYPES[:-1])} or {DTYPES[-1]}, got {model.dtype!r}")
    if model.init not in ("family", "plain"):
        raise InputError(f"--init must be family or plain, got {model.init!r}")
    if model.config is not None and (prompts.text or prompts.file):
        raise InputError("a random configuration has no tokenizer, so it reads no text: use --random-prompts")
    check_stray(model, prompts, output, named)
    for path in output.plot or ():
        static_suffix(path)
        check_picture(path)
    if output.out is not None:
        if output.out.suffix != ".npz":
            raise InputError(f"--out {output.out}: the state is kept in a .npz file")
        check_file(output.out, "--out")
        if output.out.exists():
            raise InputError(
                f"--out {output.out} exists: go on with it with --resume {output.out}, or choose another name"
            )


def check_stray(model: IterateModel, prompts: IteratePrompts, output: IterateOutput, named: dict[str, str]) -> None:
    """Refuse options that would change nothing."""
    own = bool(prompts.text or prompts.file)
    if "init" in named and not (model.config or model.random or model.redraw):
        raise InputError("--init says how random weights are drawn: give --random, --redraw or --config too")
    if "prompt_tokens" in named and own and prompts.random_prompts is None:
        raise InputError("--prompt-tokens belongs to --random-prompts: cut prompts of your own with --max-tokens")
    if prompts.max_tokens is not None and not own:
        raise InputError("--max-tokens cuts --text and --file: say how long random prompts are with --prompt-tokens")
    if "width" in named and not output.plot:
        raise InputError("--width belongs to --plot, which is not given")


def whole_numbers(text: str | None) -> list[int]:
    """Passes from a comma-separated list."""
    found = numbers(text, "--decode") if text else []
    if any(value != int(value) for value in found):
        raise InputError(f"--decode must be passes such as 0,1,10, got {text}")
    return [int(value) for value in found]


def opened(model: IterateModel, seed: int) -> Checkpoint:
    """The model, or one of random weights."""
    import torch

    from attractor.models import checkpoint, initialize, make_config

    if model.config is None:
        return checkpoint(str(model.model))
    layers, dim, heads = (getattr(model, name) or usual for name, usual in SIZES.items())
    config = make_config(model.config, layers, dim, heads)
    made = checkpoint(initialize(config, seed, model.init, getattr(torch, model.dtype)))
    return replace(made, name=f"random {model.config} (d {dim}, {heads} heads, {model.init} weights)")


def run(
    model: IterateModel,
    prompts: IteratePrompts,
    passes: IteratePasses,
    output: IterateOutput,
    decode: list[int],
    named: dict[str, str],
) -> Iteration:
    """The iteration, with a bar."""
    import torch

    from attractor.cli.inputs import read_files
    from attractor.models import iterate as iterate_all

    own = [*(prompts.text or ()), *(one.text for one in read_files(prompts.file or ()))]
    random = prompts.random_prompts if prompts.random_prompts is not None else (0 if own else 1)
    with progress_bar("passes", output.progress) as show:
        source = opened(model, passes.seed)
        if "prompt_tokens" in named and getattr(source.config, "image_size", None) is not None:
            raise InputError(
                "--prompt-tokens belongs to models of text: a picture has as many tokens as the model makes of it"
            )
        return iterate_all(
            source,
            own,
            passes=passes.passes,
            feedforward=passes.feedforward,
            final_norm=passes.final_norm,
            random=model.random and model.config is None,
            redraw=model.redraw,
            init=model.init,
            seed=passes.seed,
            dtype=getattr(torch, model.dtype),
            random_prompts=random,
            prompt_tokens=prompts.prompt_tokens,
            max_tokens=prompts.max_tokens,
            decode=decode,
            store=output.out or output.resume,
            resume=output.resume is not None,
            request=request(model, prompts, passes, own),
            progress=show,
        )


def draw(found: Iteration, output: IterateOutput) -> list[str]:
    """Pictures of the decay."""
    for path in output.plot or ():
        found.plot(path)
    return [str(path) for path in output.plot or ()]


def summary(found: Iteration) -> dict[str, Any]:
    """The iteration in numbers, ready for JSON."""
    from attractor.files import to_json

    protocol = {**asdict(found.protocol), "dtype": str(found.protocol.dtype).removeprefix("torch.")}
    report = {
        "model": found.model,
        "layers": found.layers,
        "protocol": protocol,
        "prompts": list(found.prompts),
        "lengths": list(found.lengths),
        "notes": list(found.notes),
        "law": asdict(found.decay),
        "laws": [asdict(decay) for decay in found.decays],
        "curves": {name: rows.tolist() for name, rows in found.curves.items()},
        "normed": found.normed.tolist(),
        "by_layer": found.by_layer.tolist(),
        "words": {str(k): list(texts) for k, texts in found.words.items()},
        "seconds": found.seconds,
    }
    return to_json(report)


def _interrupted(output: IterateOutput) -> str:
    store = output.out or output.resume
    return "interrupted" if store is None else f"interrupted; go on with attractor iterate --resume {store}"
