"""``attractor iterate``: repeated passes of tokens through a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Outputs, print_rows, print_table
from attractor.cli.inputs import check_figure, check_file
from attractor.cli.options import (
    WidthOptions,
    command_line,
    given,
    panel,
    parse_numbers,
    print_result,
    result_option,
    seed_option,
    with_options,
)
from attractor.errors import InputError
from attractor.html_repr import format_number

if TYPE_CHECKING:
    from attractor.models import Checkpoint, Iteration

COLUMNS = {
    "metric": "consensus_metric",
    "least": "cosine_min",
    "cosine": "cosine",
    "norm": "token_norm",
    "rank": "effective_rank",
}
WORDS = 160  # characters of a decoded text


def print_iteration(report: dict[str, Any]) -> None:
    """Print the fitted decay, the curves at chosen passes, and the decoded texts."""
    law, protocol = report["law"], report["protocol"]
    name = {"none": "No law", "neither": "Neither law", "reached": "Consensus"}.get(
        law["name"], law["name"].capitalize()
    )
    print_rows(f"{name}: {law['message']}.", _how(report))
    several = " (means over prompts)" if len(report["prompts"]) > 1 else ""
    print_table(f"tokens after pass k{several}", ("k", *COLUMNS), _curves(report), right=None)
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
    parts.append(report["norm"])
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


def _curves(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for k in _shown(report["protocol"]["passes"]):
        means = (sum(row[k] for row in report["curves"][name]) / len(report["prompts"]) for name in COLUMNS.values())
        rows.append([str(k), *(format_number(float(f"{mean:.4g}")) for mean in means)])
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


def list_options(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, texts: Sequence[str]
) -> dict[str, Any]:
    """Return the options of a run by name, for JSON; files are replaced by their texts."""
    return asdict(model) | asdict(prompts) | asdict(passes) | {"text": list(texts) or None, "file": None}


def read_stored_options(
    model: IterateModel, prompts: IteratePrompts, passes: IteratePasses, output: IterateResults, named: dict[str, str]
) -> tuple[IterateModel, IteratePrompts, IteratePasses]:
    """Return the options of the run that ``--resume`` continues, overridden by those of the command line."""
    path = output.resume
    if path is None:
        return model, prompts, passes
    if output.out is not None:
        raise InputError("--resume writes to its own file: leave out --out")
    if not path.is_file():
        raise InputError(f"--resume: there is no run in {path}; start one with --out {path}")
    from attractor.models import read_request

    kept = {name: value for name, value in read_request(path).items() if name not in named}
    if "model" in named or "config" in named:
        kept = {name: value for name, value in kept.items() if name not in WHAT[: 2 if "config" in named else None]}
    if any(name in named for name in PROMPTS):
        kept = {name: value for name, value in kept.items() if name not in PROMPTS}
    return _with(model, kept), _with(prompts, kept), _with(passes, kept)


def _with(group: Any, kept: dict[str, Any]) -> Any:
    return replace(group, **{field.name: kept[field.name] for field in fields(group) if field.name in kept})


SCHEMA = "attractor.iterate/2"
DTYPES = ("float64", "float32", "bfloat16", "float16")
SIZES = {"layers": 12, "dim": 384, "heads": 6}
model_option, prompt_option, pass_option = panel("Model"), panel("Prompts"), panel("Passes")


@dataclass(frozen=True)
class IterateModel:
    """The model."""

    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", show_default=False,
                       help="A folder, a file, an asset of attractor fetch, or a name on the Hugging Face hub."),
    ] = None  # fmt: skip
    config: Annotated[
        str | None,
        model_option(
            "TYPE", "Instead of MODEL: a model type of transformers with random weights, such as gpt2 or llama."
        ),
    ] = None
    layers: Annotated[
        int | None,
        model_option("L", "Number of blocks; of a MODEL, only the first.", min=1, default="all, 12 with --config"),
    ] = None
    dim: Annotated[int | None, model_option("D", "Width, with --config.", min=2, default="384")] = None
    heads: Annotated[int | None, model_option("H", "Number of heads, with --config.", min=1, default="6")] = None
    random: Annotated[bool, model_option("", "Draw all weights at random before the run.", "--random")] = False
    redraw: Annotated[bool, model_option("", "Draw new random weights before every pass.", "--redraw")] = False
    init: Annotated[
        str,
        model_option(
            "NAME",
            "Distribution of random weights: family (as the model type initialises them), or plain (N(0, 0.02)).",
        ),
    ] = "family"
    dtype: Annotated[str, model_option("NAME", "float64, float32, bfloat16 or float16.")] = "float64"
    device: Annotated[str, model_option("NAME", "Device: cpu, or cuda for an NVIDIA GPU.")] = "cpu"


@dataclass(frozen=True)
class IteratePrompts:
    """The initial tokens."""

    text: Annotated[list[str] | None, prompt_option("TEXT", "A prompt; may be repeated.")] = None
    file: Annotated[list[Path] | None, prompt_option("FILE", "A file with a prompt; may be repeated.")] = None
    random_prompts: Annotated[
        int | None, prompt_option("K", "Prompts of random token ids.", min=1, default="1 if none is given")
    ] = None
    prompt_tokens: Annotated[int, prompt_option("N", "Tokens of a random prompt.", min=2)] = 24
    max_tokens: Annotated[
        int | None, prompt_option("N", "Truncate --text and --file to N tokens.", min=2, default="none")
    ] = None


@dataclass(frozen=True)
class IteratePasses:
    """The passes."""

    passes: Annotated[int, pass_option("N", "Passes through all blocks.", min=1)] = 100
    feedforward: Annotated[
        bool, pass_option("", "Include the feed-forward parts.", "--feedforward/--no-feedforward")
    ] = True
    final_norm: Annotated[
        bool,
        pass_option("", "Apply the final norm after every pass, or only at the end.", "--final-norm/--no-final-norm"),
    ] = True
    seed: Annotated[int, seed_option("Seed of random weights and prompts.", "Passes")] = 0
    decode: Annotated[
        str | None, pass_option("K,K,...", "Decode the tokens into text after these passes; 0 is the start.")
    ] = None


@dataclass(frozen=True)
class IterateResults(WidthOptions):
    """Where results go."""

    out: Annotated[
        Path | None, result_option("FILE", "Keep the state of the run in this .npz file.", "--out", "-o")
    ] = None
    resume: Annotated[
        Path | None, result_option("FILE", "Continue the run in this .npz file; --passes for more passes.")
    ] = None
    plot: Annotated[
        list[Path] | None, result_option("FILE", "Draw the decay: .png, .pdf or .svg; may be repeated.")
    ] = None

    @property
    def store(self) -> Path | None:
        return self.out or self.resume


def _interrupted(*parts: Any) -> str:
    store = next(part.store for part in parts if isinstance(part, IterateResults))
    return "interrupted" if store is None else f"interrupted; continue with attractor iterate --resume {store}"


@with_options(IterateModel, IteratePrompts, IteratePasses, IterateResults, interrupted=_interrupted)
def iterate(
    context: typer.Context,
    model: IterateModel,
    prompts: IteratePrompts,
    passes: IteratePasses,
    output: IterateResults,
) -> None:
    """Pass tokens repeatedly through all blocks of a model, and fit the decay towards consensus.

    The tokens are embedded once. Consensus is measured as in the published experiments, 1 - mean |cos(x_1, x_j)|, together with the
    smallest signed cosine, because two opposite clusters score 0 too. Exit code 0; 1 if the run fails, 2 for a bad argument.
    """
    from attractor.models import require_transformers, silence_transformers

    named = given(context)
    model, prompts, passes = read_stored_options(model, prompts, passes, output, named)
    check_options(model, prompts, output, named)
    require_transformers()
    decode = parse_passes(passes.decode)
    with silence_transformers():
        found = run_passes(model, prompts, passes, output, decode, named)
    for path in output.plot or ():
        found.plot(path)
    report, outputs = summarise_iteration(found), Outputs(output.plot or (), store=output.store)
    print_result(
        output,
        SCHEMA,
        command_line(context),
        report,
        outputs,
        lambda: print_iteration(report),
        packages=("transformers",),
    )


def check_options(model: IterateModel, prompts: IteratePrompts, output: IterateResults, named: dict[str, str]) -> None:
    """Raise for bad combinations of options, before the model is read."""
    from attractor.plotting import static_suffix

    if (model.model is None) == (model.config is None):
        raise InputError("give a MODEL, or --config with the type of one, and not both")
    sizes = [f"--{name}" for name in SIZES if name != "layers" and getattr(model, name) is not None]
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
        check_figure(path)
    if output.out is not None:
        if output.out.suffix != ".npz":
            raise InputError(f"--out {output.out}: the state is kept in a .npz file")
        check_file(output.out, "--out")
        if output.out.exists():
            raise InputError(
                f"--out {output.out} exists: continue it with --resume {output.out}, or choose another name"
            )


def check_stray(model: IterateModel, prompts: IteratePrompts, output: IterateResults, named: dict[str, str]) -> None:
    """Raise for options that have no effect."""
    own = bool(prompts.text or prompts.file)
    if "init" in named and not (model.config or model.random or model.redraw):
        raise InputError("--init is for random weights: give --random, --redraw or --config too")
    if "prompt_tokens" in named and own and prompts.random_prompts is None:
        raise InputError("--prompt-tokens belongs to --random-prompts: truncate other prompts with --max-tokens")
    if prompts.max_tokens is not None and not own:
        raise InputError("--max-tokens truncates --text and --file: the length of random prompts is --prompt-tokens")
    if "width" in named and not output.plot:
        raise InputError("--width belongs to --plot, which is not given")


def parse_passes(text: str | None) -> list[int]:
    """Return the pass numbers of a comma-separated list."""
    found = parse_numbers(text, "--decode") if text else []
    if any(value != int(value) for value in found):
        raise InputError(f"--decode must be passes such as 0,1,10, got {text}")
    return [int(value) for value in found]


def open_model(model: IterateModel, seed: int) -> Checkpoint:
    """Open the model, or create one with random weights."""
    import torch

    from attractor.memory import find_device
    from attractor.models import checkpoint, initialize, make_config

    if model.config is None:
        return checkpoint(str(model.model))
    layers, dim, heads = (getattr(model, name) or usual for name, usual in SIZES.items())
    config = make_config(model.config, layers, dim, heads)
    made = checkpoint(initialize(config, seed, model.init, getattr(torch, model.dtype)).to(find_device(model.device)))
    return replace(made, name=f"random {model.config} (d {dim}, {heads} heads, {model.init} weights)")


def run_passes(
    model: IterateModel,
    prompts: IteratePrompts,
    passes: IteratePasses,
    output: IterateResults,
    decode: list[int],
    named: dict[str, str],
) -> Iteration:
    """Run the passes."""
    import torch

    from attractor.cli.inputs import read_files
    from attractor.models import iterate as iterate_model

    own = [*(prompts.text or ()), *(part.text for part in read_files(prompts.file or ()))]
    random = prompts.random_prompts if prompts.random_prompts is not None else (0 if own else 1)
    with output.show_progress("passes") as update:
        source = open_model(model, passes.seed)
        if "prompt_tokens" in named and getattr(source.config, "image_size", None) is not None:
            raise InputError(
                "--prompt-tokens belongs to text models: the number of tokens of an image is fixed by the model"
            )
        return iterate_model(
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
            device=model.device,
            layers=None if model.config is not None else model.layers,
            store=output.store,
            resume=output.resume is not None,
            request=list_options(model, prompts, passes, own),
            progress=update,
        )


def summarise_iteration(found: Iteration) -> dict[str, Any]:
    """Return the iteration for JSON."""
    from attractor.files import to_json

    protocol = {**asdict(found.protocol), "dtype": str(found.protocol.dtype).removeprefix("torch.")}
    report = {
        "model": found.model,
        "layers": found.layers,
        "protocol": protocol,
        "norm": found.norm_between,
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
