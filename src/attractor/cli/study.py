"""``attractor study``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import Written, ending, print_rows
from attractor.cli.environment import accelerator_name, source_commit, version
from attractor.cli.inputs import check_folder_to_make, check_picture
from attractor.cli.options import PictureOptions, grouped, panel, replay
from attractor.errors import InputError
from attractor.progress import progress_lines

if TYPE_CHECKING:
    from attractor.training import StudyResults

UNITS = {"bits_per_byte": "bits per byte", "accuracy": "accuracy"}
MANY = 6  # pairs that are named one by one
WIDEST = 160
FOLLOWED = ("plain", "convergent", "intermediate", "divergent", "scattered-convergent")


def print_results(document: dict[str, Any]) -> None:
    """Arms, comparisons by question, and where they come from."""
    unit = UNITS[document["measure"]]
    asked = {row[side] for row in document["comparisons"] for side in ("arm", "reference")}
    rows = []
    for row in document["arms"]:
        if row["arm"] in asked or row["lost"] or not asked:
            interval = "" if row["interval"] is None else "{:.4f} to {:.4f}".format(*row["interval"])
            mean = "none" if row["mean"] is None else f"{row['mean']:.4f}"
            lost = str(row["lost"]) if row["lost"] else ""
            rows.append((row["arm"], f"{row['parameters']:,}", str(row["count"]), lost, mean, interval))
    print_table(f"{document['study']}: arms", ("arm", "parameters", "seeds", "lost", unit, "95%"), rows)
    better = "negative is better" if document["lower_is_better"] else "positive is better"
    heads = "arm", "reference", "difference", "95%", "deviations", "p", "Holm", "p flips"
    for question in dict.fromkeys(row["question"] for row in document["comparisons"]):
        pairs = [_cells(row) for row in document["comparisons"] if row["question"] == question]
        print_table(f"{question}: differences of {unit} ({better}), seed by seed", heads, pairs)
    count, missing = len(document["seeds"]), document["missing"]
    print_rows("", _facts(document, count, missing))


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A comparison as a line; beside an arm stands how many of its runs ended in no number."""
    names = [
        row[side] + (f" ({row[lost]} lost)" if row[lost] else "")
        for side, lost in (("arm", "lost"), ("reference", "reference_lost"))
    ]
    interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
    size = "" if row["deviations"] is None else f"{row['deviations']:+.1f}"
    flips = "" if row["p_flips"] is None else f"{row['p_flips']:.3g}"
    return *names, f"{row['difference']:+.4f}", interval, size, f"{row['p']:.2g}", f"{row['p_holm']:.2g}", flips


def _facts(document: dict[str, Any], count: int, missing: list[str]) -> dict[str, str]:
    named = ", ".join(missing) if len(missing) <= MANY else f"{len(missing)} pairs of arms; --json names them"
    places = {"runs": str(document["runs"]), "not run": named or "nothing"}
    if document["lost"]:
        places["lost"] = f"{document['lost']} runs ended in no finite number; means and differences are of the others"
    if document["untested"]:
        why = "too few seeds are left, or those that are left speak for a side that lost runs"
        places["not tested"] = f"{'; '.join(document['untested'])}: {why}"
    return places | {
        "p flips": f"all flips of signs, exact; at least {2 / 2**count:.3g} with {count} seeds",
        "hardware": ", ".join(document["hardware"]),
        "made by": "; ".join(document["made_by"]),
    }


def print_table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table whose numbers are never cut, however narrow the terminal."""
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, header_style="cyan", title=title, title_justify="left", title_style="bold")
    for index, head in enumerate(heads):
        drawn.add_column(head, no_wrap=True, justify="left" if index == 0 or head == "reference" else "right")
    for row in rows:
        drawn.add_row(*row)
    console = Console(highlight=False)
    Console(highlight=False, width=max(console.width, WIDEST)).print(drawn, soft_wrap=True)


def draw_differences(document: dict[str, Any], path: Path) -> Path:
    """Every pair as its improvement with its interval; right of zero the arm is better than its reference."""
    from attractor.plotting import Interval, Rows, draw_intervals

    sign, unit = -1.0 if document["lower_is_better"] else 1.0, UNITS[document["measure"]]
    intervals, names, groups = [], [], []
    for row in document["comparisons"]:
        ends = sorted((sign * row["low"], sign * row["high"]))
        intervals.append(Interval(sign * row["difference"], *ends))
        lost = row["lost"] + row["reference_lost"]
        names.append(f"{row['arm']} − {row['reference']}" + (f" ({lost} lost)" if lost else ""))
        groups.append(row["question"])
    caption = (
        f"Means of differences of equal seeds, {len(document['seeds'])} seeds; bars: 95% intervals of Student's t, each for itself. "
        "Right of zero the arm is better than its reference. "
        f"{lost_words(document)}Colours: questions; the second panel leaves out larger differences. "
        f"Drawn by: {document['command']}"
    )
    title = f"{document['study']}: what each change is worth"
    ends = sorted(max(abs(one.low), abs(one.high)) for one in intervals) or [1.0]
    whole, near = (
        1.08 * ends[-1] or 1.0,
        1.4 * ends[len(ends) // 2] or 1.0,
    )  # more than half of the pairs are seen near zero
    panels = [Rows("all", intervals, whole), Rows("near zero", intervals, near)]
    x = f"{unit} {'saved' if sign < 0 else 'gained'}"
    return draw_intervals(names, groups, panels, title, caption, x, path, grouped=False)


def lost_words(document: dict[str, Any]) -> str:
    """What a picture says of runs that are in no difference."""
    if not document["lost"]:
        return ""
    return f"{document['lost']} runs ended in no number; pairs that would speak for what lost them are not drawn. "


def draw_depth(results: StudyResults, command: str, path: Path) -> Path:
    """Norms, distances, cosines and growth along depth, means over seeds, for arms with the first arm's positions."""
    from attractor.plotting import Curve, Panel, draw_panels
    from attractor.training import mean_dynamics

    study, runs = results.study, results.runs
    positions = study.arms[0].partition("/")[2]
    there = {run.arm for run in runs if run.result.dynamics is not None}
    curves = {kind: mean_dynamics(runs, f"{kind}/{positions}") for kind in FOLLOWED if f"{kind}/{positions}" in there}

    def panel(measure: str, label: str, named: bool = False) -> Panel:
        lines = [
            Curve(
                range(1 if measure == "growth" else 0, len(found["norm"])),
                found[measure],
                kind.partition("-")[0] if named else "",
            )
            for kind, found in curves.items()
        ]
        x = "layer" if measure == "growth" else "blocks passed"
        return Panel(tuple(lines), x, label, log_y=measure == "distance")

    panels = (
        panel("norm", "mean norm of tokens", named=True),
        panel("distance", "mean squared distance of pairs"),
        panel("cosine", "mean cosine of pairs"),
        panel("growth", "max Re λ of the value map"),
    )
    caption = (
        f"Trained models with {positions} positions, means over seeds; colours: the same in all panels; scattered: scattered-convergent. "
        f"Drawn by: {command}"
    )
    return draw_panels(panels, f"{study.name}: tokens along the depth of trained models", caption, path)


SCHEMA = "attractor.study/1"
what, how, output = panel("Study"), panel("How it is run"), panel("Results")


@dataclass(frozen=True)
class StudyOptions:
    """What is compared."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="bytes, bpe or vision.")]
    data: Annotated[Path, what("PATH", "Text (a file or a folder), or a folder of CIFAR-10.")]
    out: Annotated[Path, what("FOLDER", "Where runs.jsonl is; a study that is there goes on.", "--out", "-o")]
    arms: Annotated[
        str | None, what("ARM,...", "Some of the arms, such as plain/rotary,shift/rotary.", default="all")
    ] = None
    seeds: Annotated[str, what("S,S,...", "Seeds; the same for every arm.")] = "0,1,2,3,4"
    change: Annotated[
        str | None, what("ENTRY=VALUE,...", "Other entries of the configuration of every run.", "--set", default="none")
    ] = None


@dataclass(frozen=True)
class StudyHow:
    """How it is run."""

    workers: Annotated[int, how("N", "Processes that share the arms.", min=1)] = 1
    max_seconds: Annotated[float | None, how("S", "Begin no arm after this many seconds.", min=0)] = None
    compile: Annotated[bool, how("", "Compile blocks, on a GPU.", "--compile/--no-compile", default="compiled")] = True
    kept: Annotated[Path | None, how("FOLDER", "Where tokens made of text are kept.", default="a folder of --out")] = (
        None
    )


@dataclass(frozen=True)
class StudyOutput:
    """What becomes of it."""

    json: Annotated[bool, output("", "Print one JSON object.", "--json")] = False
    progress: Annotated[
        bool | None, output("", "A line on stderr for each arm.", "--progress/--no-progress", default="shown")
    ] = None
    debug: Annotated[bool, output("", "Show the traceback of an error.", "--debug")] = False


@grouped(StudyOptions, StudyHow, StudyOutput)
def study(context: typer.Context, options: StudyOptions, how: StudyHow, output: StudyOutput) -> None:
    """Train every arm of a study with every seed, and keep a line of runs.jsonl for each finished run.

    Seeds of an arm run side by side as one batched program. A study that was stopped goes on where it was; what failed or was not begun
    in time is said on stderr. Exit code 0; 1 if arms are missing, 2 for a bad argument.
    """
    with ending("attractor study", output.debug):
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions
        from attractor.training import Provenance, run_study

        plan = planned(options, how)
        command = replay(context, without=("json", "progress", "debug"))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        provenance = Provenance(command, accelerator_name(), source_commit(), now, version("torch"))
        count, missing = run_study(
            plan,
            options.out,
            provenance,
            progress_lines(output.progress),
            progress_lines(True),
        )
        if output.json:
            found = {"study": options.name, "runs": count, "missing": missing, "file": str(options.out / "runs.jsonl")}
            print_json({"schema": SCHEMA, "command": command, **found, "versions": versions()})
        else:
            typer.echo(
                f"{options.out / 'runs.jsonl'}: {count} runs" + (f", without {', '.join(missing)}" if missing else "")
            )
        if missing:
            raise typer.Exit(1)


def planned(options: StudyOptions, how: StudyHow) -> Any:
    """The runs that are wanted."""
    from attractor.training import Execution, Plan, arm_entries, find_study

    chosen = find_study(options.name)
    arms = (
        chosen.arms if options.arms is None else tuple(filter(None, (arm.strip() for arm in options.arms.split(","))))
    )
    arms = tuple(dict.fromkeys(arms))
    for arm in arms:
        arm_entries(chosen, arm)  # raises for an unknown arm
    try:
        seeds = tuple(dict.fromkeys(int(seed) for seed in options.seeds.split(",")))
    except ValueError:
        raise InputError(f"--seeds {options.seeds} is not a list of whole numbers: write --seeds 0,1,2") from None
    check_folder_to_make(options.out, "--out")
    if not options.data.exists():
        raise InputError(f"the data {options.data} do not exist")
    changes: dict[str, Any] = {"data": str(options.data), **entries(options.change)}
    check_entries(changes)
    check_honoured(changes)
    kept = how.kept or options.out / "kept"
    return Plan(chosen, arms, seeds, changes, Execution.best(how.compile), kept, how.workers, how.max_seconds)


def entries(text: str | None) -> dict[str, Any]:
    """Entries of a configuration in the words of TOML, or bare words: steps=100,betas=[0.9,0.99],augment=none."""
    from attractor.cli.train import changed

    given = [entry for entry in pieces(text or "") if entry.strip()]
    if not all("=" in entry for entry in given):
        raise InputError(f"--set {text} is not a list such as steps=100,rate=1e-3,betas=[0.9,0.99]")
    return changed(given)


def pieces(text: str) -> list[str]:
    """Text between commas that stand in no bracket and no quotes."""
    found, depth, quote = [""], 0, ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not quote and not depth:
            found.append("")
        else:
            found[-1] += sign
    return found


def check_honoured(changes: dict[str, Any]) -> None:
    """Refuse entries that make arms what they are, and those that a study does not support."""
    from attractor.training import ARM_KINDS

    axes = {name for kind in ARM_KINDS.values() for name in kind} | {"positions"}
    own = sorted(changes.keys() & axes)
    if own:
        raise InputError(f"{', '.join(own)} is what arms differ in: choose --arms instead of --set")
    missing = {
        "accumulate",
        "smoothing",
        "precision",
        "compile",
        "test",
        "trackers",
        "checkpoint",
        "dropout",
        "drop_path",
    }
    without = sorted(changes.keys() & missing)
    if without:
        raise InputError(f"a study does not have {', '.join(without)}: use attractor train for such runs")


def check_entries(changes: dict[str, Any]) -> None:
    """Refuse entries that no configuration has, before a folder is made."""
    from dataclasses import fields

    from attractor.training import Config

    unknown = sorted(changes.keys() - {field.name for field in fields(Config)})
    if unknown:
        raise InputError(f"--set {unknown[0]} is not an entry of a configuration; see attractor.training.Config")


RESULTS_SCHEMA = "attractor.study-results/1"
results_option, results_output = panel("Study"), panel("Results")


@dataclass(frozen=True)
class ResultsOptions:
    """Which runs, and which of their questions."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The runs.jsonl of a study, or its folder.")]
    question: Annotated[str | None, results_option("NAME", "One question, such as regimes.", default="all")] = None


@dataclass(frozen=True)
class ResultsOutput:
    """What becomes of it."""

    plot: Annotated[Path | None, results_output("FILE", "Draw the differences: .png, .pdf or .svg.")] = None
    plot_depth: Annotated[Path | None, results_output("FILE", "Draw tokens along depth: .png, .pdf or .svg.")] = None
    json: Annotated[bool, results_output("", "Print one JSON object.", "--json")] = False
    debug: Annotated[bool, results_output("", "Show the traceback of an error.", "--debug")] = False


@grouped(ResultsOptions, ResultsOutput, PictureOptions)
def study_results(
    context: typer.Context, options: ResultsOptions, output: ResultsOutput, pictures: PictureOptions
) -> None:
    """Compare the arms of a study: means with 95% intervals, and for every pair that a question asks about the difference, its interval,
    paired tests, Holm's correction within the question and the size of the effect.

    Exit code 0; 1 if the file cannot be read, 2 for a bad argument.
    """
    with ending("attractor study-results", output.debug), pictures.sized():
        from attractor.cli.console import print_json
        from attractor.cli.environment import versions

        for path in (output.plot, output.plot_depth):
            if path is not None:
                check_picture(path, still=True)
        results, document = found(options)
        document = {"schema": RESULTS_SCHEMA, "command": replay(context, without=("json", "debug")), **document}
        drawn = []
        if output.plot is not None:
            drawn.append(str(draw_differences(document, output.plot)))
        if output.plot_depth is not None:
            drawn.append(str(draw_depth(results, document["command"], output.plot_depth)))
        written = Written(drawn)
        document["written"] = written.row()
        if output.json:
            print_json({**document, "versions": versions()})
        else:
            print_results(document)
            written.tell(document["command"])


def found(options: ResultsOptions) -> tuple[StudyResults, dict[str, Any]]:
    """The study, its runs, and what they say."""
    from attractor.training import compare_arms, lost_runs, read_results, summarise_arms, summarise_dynamics

    results = read_results(options.file)
    study, runs = results.study, results.runs
    if options.question is not None and options.question not in study.questions:
        raise InputError(
            f"--question {options.question} is not one of the study {study.name}: {', '.join(study.questions)}"
        )
    if options.question is not None:
        study = replace(study, questions={options.question: study.questions[options.question]})
    compared = compare_arms(study, runs)
    origins = [run.provenance for run in runs]
    facts = {
        name: sorted({str(getattr(origin, name)) for origin in origins})
        for name in ("hardware", "commit", "torch", "time")
    }
    document = {
        "study": study.name,
        "measure": study.measure,
        "lower_is_better": study.lower,
        "runs": len(runs),
        "seeds": sorted({run.seed for run in runs}),
        "lost": sum(map(len, lost_runs(runs, study.measure).values())),
        "arms": [arm.row() for arm in summarise_arms(study, runs)],
        "comparisons": [pair.row() for pair in compared.pairs],
        "missing": compared.missing,
        "untested": compared.untested,
        "dynamics": [arm.row() for arm in summarise_dynamics(study, runs)],
        "made_by": sorted({origin.command or "" for origin in origins}),
        **facts,
    }
    return results, document
