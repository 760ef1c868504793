"""``attractor study``: train and compare the arms of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attractor.cli.console import FAILED, Outputs, print_rows, print_table
from attractor.cli.environment import accelerator_name, source_commit, version
from attractor.cli.inputs import check_figure, check_new_folder
from attractor.cli.options import (
    CommonOptions,
    FigureOptions,
    command_line,
    panel,
    parse_seeds,
    print_result,
    result_option,
    with_options,
)
from attractor.errors import InputError
from attractor.progress import progress_lines

if TYPE_CHECKING:
    from attractor.training import Plan, Study, StudyResults

UNITS = {"bits_per_byte": "bits per byte", "accuracy": "accuracy"}
MANY = 6  # missing pairs that are listed
ARMS_DRAWN = ("plain", "convergent", "intermediate", "divergent", "scattered-convergent")


def print_comparisons(document: dict[str, Any]) -> None:
    """Print for every data set and rate the arms and the comparisons by question, then rates and the origin of the runs."""
    for part in document["parts"]:
        _print_part(part, document)
    rates = [_rate_cells(row) for row in document["rates"] if len(row["means"]) > 1]
    if rates:
        columns = ("arm", "data set", f"{document['measure']} at each rate", "best", "chosen by")
        print_table("learning rates", columns, rates, fixed=columns)
    print_rows("", _facts(document))


def _print_part(part: dict[str, Any], document: dict[str, Any]) -> None:
    unit = UNITS.get(str(document["measure"]), str(document["measure"]))
    where = (f" on {part['data_set']}" if part["data_set"] else "") + (f", {part['rate']} rate" if part["rate"] else "")
    compared = {row[side] for row in part["comparisons"] for side in ("arm", "reference")}
    rows = []
    for row in part["arms"]:
        if row["arm"] in compared or row["lost"] or row["arm"] not in document["planned"] or not compared:
            interval = "" if row["interval"] is None else "{:.4f} to {:.4f}".format(*row["interval"])
            mean = "none" if row["mean"] is None else f"{row['mean']:.4f}"
            lost = str(row["lost"]) if row["lost"] else ""
            rows.append((row["arm"], f"{row['parameters']:,}", str(row["count"]), lost, mean, interval))
    columns = ("arm", "parameters", "seeds", "lost", unit, "95%")
    print_table(f"{document['study']}{where}: arms", columns, rows, fixed=columns, right=columns[1:])
    better = "negative is better" if document["lower_is_better"] else "positive is better"
    columns = "arm", "reference", "difference", "95%", "deviations", "p", "Holm", "p flips"
    for question in dict.fromkeys(row["question"] for row in part["comparisons"]):
        pairs = [_cells(row) for row in part["comparisons"] if row["question"] == question]
        title = f"{question}{where}: differences of {unit} ({better}), seed by seed"
        print_table(title, columns, pairs, fixed=columns, right=columns[2:])


def _rate_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an arm's rates."""
    means = "  ".join(f"{rate:g}: " + ("diverged" if mean is None else f"{mean:.4f}") for rate, mean in row["means"])
    best = "none" if row["best"] is None else f"{row['best']:g}" + (" (edge of the grid)" if row["at_edge"] else "")
    return row["arm"], row["data_set"], means, best, "runs of its own" if row["tuned"] else "the compared runs"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a comparison; an arm is followed by the number of its runs that diverged."""
    names = [
        row[side] + (f" ({row[lost]} lost)" if row[lost] else "")
        for side, lost in (("arm", "lost"), ("reference", "reference_lost"))
    ]
    interval = f"{row['low']:+.4f} to {row['high']:+.4f}"
    size = "" if row["deviations"] is None else f"{row['deviations']:+.1f}"
    flips = "" if row["p_flips"] is None else f"{row['p_flips']:.3g}"
    return *names, f"{row['difference']:+.4f}", interval, size, f"{row['p']:.2g}", f"{row['p_holm']:.2g}", flips


def _facts(document: dict[str, Any]) -> dict[str, str]:
    parts = document["parts"]
    missing = list(dict.fromkeys(name for part in parts for name in part["missing"]))
    untested = list(dict.fromkeys(name for part in parts for name in part["untested"]))
    count = len(document["seeds"])
    listed = ", ".join(missing) if len(missing) <= MANY else f"{len(missing)} pairs of arms; --json names them"
    places = {"runs": str(document["runs"]), "not run": listed or "nothing"}
    if document["lost"]:
        places["lost"] = f"{document['lost']} runs diverged; means and differences are of the others"
    if untested:
        why = "too few seeds are left, or the remaining ones favour a side that lost runs"
        places["not tested"] = f"{'; '.join(untested)}: {why}"
    return places | {
        "p flips": f"exact two-sided p, over all flips of the signs of the differences; at least {2 / 2**count:.3g} with {count} seeds",
        "hardware": ", ".join(document["hardware"]),
        "made by": "; ".join(document["made_by"]),
    }


def draw_differences(document: dict[str, Any], path: Path) -> Path:
    """Draw the improvement of every pair with its interval; right of zero the arm is better than its reference."""
    from attractor.plotting import Interval, Rows, draw_intervals

    sign, unit = (
        -1.0 if document["lower_is_better"] else 1.0,
        UNITS.get(str(document["measure"]), str(document["measure"])),
    )
    intervals, names, groups = [], [], []
    part = document["parts"][0]
    for row in part["comparisons"]:
        ends = sorted((sign * row["low"], sign * row["high"]))
        intervals.append(Interval(sign * row["difference"], *ends))
        lost = row["lost"] + row["reference_lost"]
        names.append(f"{row['arm']} − {row['reference']}" + (f" ({lost} lost)" if lost else ""))
        groups.append(row["question"])
    caption = (
        f"Means of differences of equal seeds, {len(document['seeds'])} seeds; bars: 95% intervals of Student's t, each for itself. "
        "Right of zero the arm is better than its reference. "
        f"{_lost_runs(document)}Colours: questions; the second panel leaves out larger differences. "
        f"Drawn by: {document['command']}"
    )
    where = (f" on {part['data_set']}" if part["data_set"] else "") + (
        f" ({part['rate']} rate)" if part["rate"] else ""
    )
    title = f"{document['study']}{where}: what each change is worth"
    ends = sorted(max(abs(each.low), abs(each.high)) for each in intervals) or [1.0]
    whole, near = 1.08 * ends[-1] or 1.0, 1.4 * ends[len(ends) // 2] or 1.0  # more than half of the pairs are near zero
    panels = [Rows("all", intervals, whole), Rows("near zero", intervals, near)]
    x = f"{unit} {'saved' if sign < 0 else 'gained'}"
    return draw_intervals(names, groups, panels, title, caption, x, path, grouped=False)


def _lost_runs(document: dict[str, Any]) -> str:
    """Return the part of a caption about runs without a result."""
    if not document["lost"]:
        return ""
    return f"{document['lost']} runs diverged; pairs that would favour their side are not drawn. "


def draw_depth(results: StudyResults, command: str, path: Path) -> Path:
    """Draw norms, distances, cosines and growth along depth, means over seeds: of arms with the first arm's positions, or of all."""
    from attractor.plotting import Curve, Panel, draw_panels
    from attractor.training import mean_dynamics

    study, runs = results.study, results.runs
    positions = study.arms[0].partition("/")[2]
    there = {run.arm for run in runs if run.result.dynamics is not None}
    curves = {kind: mean_dynamics(runs, f"{kind}/{positions}") for kind in ARMS_DRAWN if f"{kind}/{positions}" in there}
    if len(curves) < 2:
        curves = {arm: mean_dynamics(runs, arm) for arm in results.arms if arm in there}

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

    kept = (
        f"Trained models with {positions} positions, means"
        if positions in ("none", "absolute", "rotary")
        else "Trained models, means"
    )
    panels = (
        panel("norm", "mean norm of tokens", named=True),
        panel("distance", "mean squared distance of pairs"),
        panel("cosine", "mean cosine of pairs"),
        panel("growth", "max Re λ of the value map"),
    )
    caption = (
        f"{kept} over seeds; colours: the same in all panels; scattered: scattered-convergent. Drawn by: {command}"
    )
    return draw_panels(panels, f"{study.name}: tokens along the depth of trained models", caption, path)


def draw_curves(results: StudyResults, document: dict[str, Any], path: Path) -> Path:
    """Draw the learning curves of the compared arms with 95% bands, and the differences of the pairs along training."""
    from attractor.plotting import Curve, Panel, draw_panels
    from attractor.training import compare_along, mean_curve

    part = document["parts"][0]
    runs = results.at(part["rate"] or "best", part["data_set"])
    unit = UNITS.get(str(document["measure"]), str(document["measure"]))
    pairs = [(row["arm"], row["reference"]) for row in part["comparisons"]][:MANY]
    arms = list(dict.fromkeys(arm for pair in pairs for arm in pair)) or [row["arm"] for row in part["arms"]][:MANY]
    lines = []
    for arm in arms:
        points = mean_curve(runs, arm)
        lows, highs = ([getattr(each, end) for each in points] for end in ("low", "high"))
        band: dict[str, Any] = {} if None in lows else {"low": lows, "high": highs}
        lines.append(Curve([each.step for each in points], [each.mean for each in points], arm, **band))
    apart = []
    for arm, reference in pairs:
        found = compare_along(results.study, runs, arm, reference)
        values = {end: [getattr(test, end) for test in found.tests] for end in ("difference", "low", "high")}
        apart.append(
            Curve(found.steps, values["difference"], f"{arm} − {reference}", low=values["low"], high=values["high"])
        )
    panels = [Panel(tuple(lines), "step", unit, "arms")]
    panels += [Panel(tuple(apart), "step", f"difference of {unit}", "pairs")] if apart else []
    caption = (
        f"Means over {len(document['seeds'])} seeds; bands: 95% intervals of Student's t at each step. Second panel: equal seeds. "
        f"The first {MANY} pairs of the study. Drawn by: {document['command']}"
    )
    return draw_panels(panels, f"{document['study']}: learning curves", caption, path)


RUN_SCHEMA, RESULTS_SCHEMA = "attractor.study-run/3", "attractor.study-results/3"
study_option, run_option = panel("Study"), panel("Execution")


@dataclass(frozen=True)
class StudyOptions:
    """What is compared."""

    name: Annotated[str, typer.Argument(metavar="STUDY", help="A TOML file, or a built-in study such as bytes.")]
    out: Annotated[Path, result_option("FOLDER", "Folder of runs.jsonl; a study in it is continued.", "--out", "-o")]
    data: Annotated[
        str | None,
        study_option("PATH", "Text or images as for train, or the name of an asset.", default="that of the study"),
    ] = None
    arms: Annotated[
        str | None, study_option("ARM,...", "Some of the arms, such as plain/rotary,shift/rotary.", default="all")
    ] = None
    seeds: Annotated[
        str | None, study_option("S,S,...", "Seeds; the same for every arm.", default="those of the study")
    ] = None
    change: Annotated[
        str | None,
        study_option("ENTRY=VALUE,...", "Other entries of the configuration of every run.", "--set", default="none"),
    ] = None


@dataclass(frozen=True)
class ExecutionOptions:
    """How the runs are executed."""

    workers: Annotated[int, run_option("N", "Processes that share the arms.", min=1)] = 1
    together: Annotated[int, run_option("N", "Largest number of models trained at once.", min=1)] = 64
    max_seconds: Annotated[float | None, run_option("S", "Start no arm after this many seconds.", min=0)] = None
    compile: Annotated[
        bool, run_option("", "Compile blocks, on a GPU.", "--compile/--no-compile", default="compiled")
    ] = True
    kept: Annotated[Path | None, run_option("FOLDER", "Cache of tokenized text.", default="a folder of --out")] = None


@dataclass(frozen=True)
class RunResults(CommonOptions):
    """What is printed."""

    progress: Annotated[
        bool | None, result_option("", "A line on stderr for each arm.", "--progress/--no-progress", default="shown")
    ] = None


@with_options(StudyOptions, ExecutionOptions, RunResults)
def run(context: typer.Context, options: StudyOptions, execution: ExecutionOptions, output: RunResults) -> None:
    """Train every arm of a study with every seed, and append each finished run to runs.jsonl.

    Seeds and learning rates of an arm are trained together as one batched program. A study that was stopped continues where it was;
    arms that failed, that diverged at every rate of the grid or that were not started in time are reported on stderr. Exit code 0; 1 if
    arms are missing, 2 for a bad argument.
    """
    from attractor.training import Provenance, run_study

    plan = plan_study(options, execution)
    command = command_line(context)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    provenance = Provenance(command, accelerator_name(), source_commit(), now, version("torch"))
    lines = progress_lines(False if output.quiet and output.progress is None else output.progress)
    count, missing = run_study(plan, options.out, provenance, lines, progress_lines(True))
    file = options.out / "runs.jsonl"
    document = {"study": plan.study.name, "runs": count, "missing": missing, "file": str(file)}
    summary = f"{file}: {count} runs" + (f", without {', '.join(missing)}" if missing else "")
    print_result(output, RUN_SCHEMA, command, document, Outputs(files=[file]), lambda: typer.echo(summary))
    if missing:
        raise typer.Exit(FAILED)


def plan_study(options: StudyOptions, execution: ExecutionOptions) -> Plan:
    """Return the runs to train."""
    from attractor.training import Execution, Plan, arm_entries, find_study

    chosen = find_study(options.name)
    arms = (
        chosen.arms if options.arms is None else tuple(filter(None, (arm.strip() for arm in options.arms.split(","))))
    )
    arms = tuple(dict.fromkeys(arms))
    for arm in arms:
        arm_entries(chosen, arm)  # raises for an unknown arm
    seeds = chosen.seeds if options.seeds is None else tuple(parse_seeds(options.seeds))
    check_new_folder(options.out, "--out")
    changes = parse_entries(options.change)
    if options.data is not None and chosen.data_sets.keys() - {""}:
        raise InputError(
            f"the study {chosen.name} has data sets of its own ({', '.join(chosen.data_sets)}): leave out --data"
        )
    changes |= {} if options.data is None else {"data": options.data}
    check_entries(changes)
    check_supported(chosen, changes)
    kept, best = execution.kept or options.out / "kept", Execution.best(execution.compile)
    limits = execution.workers, execution.max_seconds, execution.together
    return Plan(chosen, arms, seeds, changes, best, kept, *limits)


def parse_entries(text: str | None) -> dict[str, Any]:
    """Return entries of a configuration, with values as in TOML or bare words: steps=100,betas=[0.9,0.99],augment=none."""
    from attractor.cli.train import parse_changes

    given = [entry for entry in split_entries(text or "") if entry.strip()]
    if not all("=" in entry for entry in given):
        raise InputError(f"--set {text} is not a list such as steps=100,rate=1e-3,betas=[0.9,0.99]")
    return parse_changes(given)


def split_entries(text: str) -> list[str]:
    """Split text at commas outside brackets and quotes."""
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


def check_supported(study: Study, changes: dict[str, Any]) -> None:
    """Raise for entries that define the arms, and for those that a study does not support."""
    from attractor.training import ARM_KINDS

    kinds = study.entries.values() if study.entries else [*ARM_KINDS.values(), {"positions": None}]
    axes = {name for kind in kinds for name in kind} | ({"rate"} if study.rates else set())
    own = sorted(changes.keys() & axes)
    if own:
        raise InputError(f"{', '.join(own)} is what arms differ in: use --arms instead of --set")
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
        raise InputError(f"a study does not support {', '.join(without)}: use attractor train for such runs")


def check_entries(changes: dict[str, Any]) -> None:
    """Raise for entries that a configuration does not have."""
    from dataclasses import fields

    from attractor.training import Config

    unknown = sorted(changes.keys() - {field.name for field in fields(Config)})
    if unknown:
        raise InputError(f"--set {unknown[0]} is not an entry of a configuration; see attractor.training.Config")


@dataclass(frozen=True)
class ResultsOptions:
    """Which runs, and which comparisons."""

    file: Annotated[Path, typer.Argument(metavar="FILE", help="The runs.jsonl of a study, or its folder.")]
    question: Annotated[str | None, study_option("NAME", "One question, such as regimes.", default="all")] = None
    data_set: Annotated[str | None, study_option("NAME", "One data set of the study.", default="all")] = None
    rate: Annotated[
        str | None,
        study_option(
            "KIND", "Compare arms at the best rate of each, or at the common rate: best, common.", default="both"
        ),
    ] = None


@dataclass(frozen=True)
class ResultsOutput(FigureOptions):
    """Where results go."""

    plot: Annotated[Path | None, result_option("FILE", "Draw the differences: .png, .pdf or .svg.")] = None
    plot_curves: Annotated[
        Path | None, result_option("FILE", "Draw learning curves and differences along training: .png, .pdf or .svg.")
    ] = None
    plot_depth: Annotated[Path | None, result_option("FILE", "Draw tokens along depth: .png, .pdf or .svg.")] = None


@with_options(ResultsOptions, ResultsOutput)
def results(context: typer.Context, options: ResultsOptions, output: ResultsOutput) -> None:
    """Compare the arms of a study: means with 95% intervals, and for every pair of a question the difference, its interval, paired
    tests, Holm's correction within the question and the size of the effect.

    Exit code 0; 1 if the file cannot be read, 2 for a bad argument.
    """
    for path in (output.plot, output.plot_curves, output.plot_depth):
        if path is not None:
            check_figure(path, still=True)
    stored, document = compare_stored_runs(options)
    command = command_line(context)
    document = {"command": command, **document}
    figures = []
    if output.plot is not None:
        figures.append(draw_differences(document, output.plot))
    if output.plot_curves is not None:
        figures.append(draw_curves(stored, document, output.plot_curves))
    if output.plot_depth is not None:
        figures.append(draw_depth(stored, command, output.plot_depth))
    print_result(output, RESULTS_SCHEMA, command, document, Outputs(figures), lambda: print_comparisons(document))


def compare_stored_runs(options: ResultsOptions) -> tuple[StudyResults, dict[str, Any]]:
    """Return the stored results, and their comparison for JSON."""
    from attractor.registry import check_name
    from attractor.training import lost_runs, read_results

    results = read_results(options.file)
    study, runs = results.study, results.runs
    if options.question is not None and options.question not in study.questions:
        raise InputError(
            f"--question {options.question} is not one of the study {study.name}: {', '.join(study.questions)}"
        )
    if options.question is not None:
        study = replace(study, questions={options.question: study.questions[options.question]})
    if options.data_set is not None:
        check_name(options.data_set, results.data_sets, "--data-set", "data sets with runs")
    if options.rate is not None:
        check_name(options.rate, ("best", "common"), "--rate", "kinds")
    sets = results.data_sets if options.data_set is None else [options.data_set]
    parts = [
        _compare_part(results, study, data_set, rate) for data_set in sets for rate in _rates(results, options.rate)
    ]
    parts = [part for part in parts if part["arms"]] or parts[:1]
    origins = [run.provenance for run in runs]
    facts = {
        name: sorted({str(getattr(origin, name)) for origin in origins})
        for name in ("hardware", "commit", "torch", "time")
    }
    document = {
        "study": study.name,
        "measure": study.measure,
        "lower_is_better": study.lower,
        "planned": list(study.arms),
        "runs": len(runs),
        "seeds": sorted({run.seed for run in runs if not run.tuning}),
        "lost": sum(map(len, lost_runs([run for run in runs if not run.tuning], study.measure).values())),
        "parts": parts,
        "rates": [row.row() for data_set in sets for row in results.rates(data_set).values()],
        "made_by": sorted({origin.command or "" for origin in origins}),
        **facts,
    }
    return results, document


def _rates(results: StudyResults, wanted: str | None) -> list[str]:
    """Return the kinds of rates at which arms are compared; an empty name for a study with one rate."""
    if len({run.rate for run in results.runs}) == 1:
        return [""]
    common = results.study.common_rate
    if wanted == "common" and common is None:
        raise InputError(f"the study {results.study.name} has no common_rate")
    return [wanted] if wanted is not None else ["best"] if common is None else ["best", "common"]


def _compare_part(results: StudyResults, study: Study, data_set: str, rate: str) -> dict[str, Any]:
    """Return the comparison of the arms on a data set, at the best or the common rate."""
    from attractor.training import compare_along, compare_arms, summarise_arms, summarise_dynamics

    runs = results.at(rate or "best", data_set)
    compared = compare_arms(study, runs)
    along = [compare_along(study, runs, pair.arm, pair.reference) for pair in compared.pairs]
    return {
        "data_set": data_set,
        "rate": rate,
        "arms": [arm.row() for arm in summarise_arms(study, runs)],
        "comparisons": [pair.row() for pair in compared.pairs],
        "along": [row for pair in along for row in pair.rows()],
        "missing": compared.missing,
        "untested": compared.untested,
        "dynamics": [arm.row() for arm in summarise_dynamics(study, runs)],
    }
