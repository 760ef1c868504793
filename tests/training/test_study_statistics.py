"""Statistics of studies against scipy and brute force, and the page of experiments against the data."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from attractor.cli.main import run as command
from attractor.errors import InputError, StoreError
from attractor.training import STUDIES, SeedRun, StudyRun, lost_runs, read_results, values_by_arm
from attractor.training.studies.statistics import (
    compare_arms,
    holm,
    paired_t,
    pooled_deviation,
    sign_flips,
    summarise_arms,
    summarise_dynamics,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "training"


@pytest.mark.parametrize("count", [2, 5, 8])
def test_tests_of_pairs_are_those_of_scipy(count: int) -> None:
    draw = np.random.default_rng(count)
    first, second = draw.standard_normal((2, count)) + np.array([[0.4], [0.0]])
    difference = first - second
    assert paired_t(list(difference)) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-10)
    exact = stats.permutation_test(
        (difference,), np.mean, permutation_type="samples", n_resamples=10**6, vectorized=True
    )
    assert sign_flips(list(difference)) == pytest.approx(exact.pvalue, rel=1e-10)


def test_flips_of_five_pairs_reach_one_sixteenth_and_count_ties() -> None:
    assert sign_flips([0.1, 0.2, 0.3, 0.1, 0.5]) == 1 / 16
    assert sign_flips([0.1] * 5) == 1 / 16
    assert sign_flips([0.3, -0.3]) == 1.0
    assert paired_t([0.0, 0.0]) == 1.0
    assert sign_flips([0.1] * 30) is None
    with pytest.raises(InputError, match="at least one pair"):
        sign_flips([])


def test_holm_is_the_closure_of_bonferroni() -> None:
    draw = np.random.default_rng(1)
    for ps in (list(draw.random(4) ** 3), [0.02, 0.02, 0.9], [0.04], []):
        indices = range(len(ps))
        subsets = [set(part) for size in indices for part in itertools.combinations(indices, size + 1)]
        closed = [
            max(min(1.0, len(part) * min(ps[k] for k in part)) for part in subsets if index in part)
            for index in indices
        ]
        assert holm(ps) == pytest.approx(closed)


@pytest.mark.parametrize("name", STUDIES)
def test_every_planned_pair_of_the_kept_results_is_there(name: str) -> None:
    results = read_results(RESULTS / f"{name}.jsonl")
    study, runs = results.study, results.runs
    compared = compare_arms(study, runs)
    pairs = compared.pairs
    assert not compared.missing + compared.untested
    assert not any(pair.lost + pair.reference_lost for pair in pairs)
    assert len(pairs) == sum(map(len, study.questions.values()))
    assert len(runs) == 5 * len(study.arms)
    assert None not in vars(runs[0].provenance).values()
    values = values_by_arm(runs, study.measure)
    one = pairs[0]
    first, second = ([values[arm][seed] for seed in range(5)] for arm in (one.arm, one.reference))
    found = stats.ttest_rel(first, second)
    interval = found.confidence_interval(0.95)
    assert (one.low, one.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert one.p == pytest.approx(found.pvalue, rel=1e-9)
    assert one.deviations == pytest.approx((np.mean(first) - np.mean(second)) / pooled_deviation(first, second))
    assert (one.better > 0) == ((one.difference < 0) == study.lower)
    question = [pair for pair in pairs if pair.question == one.question]
    assert [pair.p_holm for pair in question] == holm([pair.p for pair in question])
    arm = summarise_arms(study, runs)[0]
    low, high = stats.t.interval(
        0.95, 4, np.mean(list(values[arm.arm].values())), stats.sem(list(values[arm.arm].values()))
    )
    assert arm.summary.interval == pytest.approx((low, high))


def test_trained_convergent_models_keep_their_regime() -> None:
    for name in STUDIES:
        results = read_results(RESULTS / f"{name}.jsonl")
        for found in summarise_dynamics(results.study, results.runs):
            kind = found.arm.partition("/")[0].removeprefix("bare-")
            assert found.negative == (found.layers if kind == "convergent" else 0), found.arm


@pytest.mark.parametrize("name", ["dynamics-bytes", "dynamics-enwik8", "dynamics-vision"])
def test_compared_runs_have_the_rate_that_other_seeds_chose(name: str) -> None:
    """Chosen again from the lines of the file, with the curve and the origin of every run."""
    lines = [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]
    results = read_results(RESULTS / f"{name}.jsonl")
    compared = results.at()
    assert {run.seed for run in compared} == {0, 1, 2}
    better = min if results.study.lower else max
    for arm in {run.arm for run in compared}:
        tuned = {line["rate"]: line[results.study.measure] for line in lines if line["arm"] == arm and line["tuning"]}
        assert len(tuned) == 3
        own = [run for run in compared if run.arm == arm]
        assert {run.rate for run in own} == {better(tuned, key=lambda rate: tuned[rate])}
        assert sorted(run.seed for run in own) == [0, 1, 2]
    for line in lines:
        assert line["scores_curve"][-1][0] == line["steps"]
        assert line["scores_curve"][-1][1] == pytest.approx(line[results.study.measure])
        assert line["hardware"] == "NVIDIA H200"
        assert line["command"].startswith("python benchmarks/dynamics.py")
        assert line["seconds"] > 0


def test_the_page_is_what_the_data_give() -> None:
    place = ROOT / "docs" / "experiments_page.py"
    spec = importlib.util.spec_from_file_location("experiments_page", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert written == module.page(), "run python docs/experiments_page.py"


def row(arm: str, seed: int, **more: object) -> str:
    trace = {"norm": [1.0, 2.0], "distance": [1.0, 4.0], "cosine": [0.1, 0.2], "growth": [0.1]}
    known = {
        "study": "bytes",
        "arm": arm,
        "seed": seed,
        "parameters": 1,
        "dynamics": trace,
        "bits_per_byte": 1.0 + seed,
    }
    return json.dumps({**known, **more})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no finished run"),
        ("{\n" + row("plain/rotary", 0), "line 1 of"),
        ("[1]\n", "line 1 of"),
        (row("plain/rotary", 0) + "\n" + row("plain/rotary", 0, study="bpe"), "several studies"),
        (row("plain/rotary", 0, study="vision"), "without accuracy"),
        (row("plain/rotary", 0) + "\n" + row("plain/rotary", 0), "a run twice"),
    ],
)
def test_files_that_are_no_results_are_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text(text)
    with pytest.raises(StoreError, match=said):
        read_results(tmp_path)


def test_a_cut_line_at_the_end_is_left_out_and_lost_runs_are_no_numbers(tmp_path: Path) -> None:
    lines = [row(arm, seed) for arm in ("plain/rotary", "convergent/rotary") for seed in (0, 1)]
    lost = row("divergent/rotary", 0, bits_per_byte=float("nan"))
    (tmp_path / "runs.jsonl").write_text("\n".join([*lines, lost, lines[0][:20]]))
    results = read_results(tmp_path)
    assert len(results.runs) == 5
    found = compare_arms(results.study, results.runs)
    assert [(pair.arm, pair.difference, pair.deviations) for pair in found.pairs] == [("convergent/rotary", 0.0, 0.0)]
    assert "divergent/rotary (lost 1) against plain/rotary (lost 0)" in found.untested
    assert "intermediate/rotary against plain/rotary" in found.missing
    assert [
        (one.arm, one.summary.count, one.lost, one.summary.mean) for one in summarise_arms(results.study, results.runs)
    ] == [
        ("plain/rotary", 2, 0, 1.5),
        ("convergent/rotary", 2, 0, 1.5),
        ("divergent/rotary", 0, 1, None),
    ]


def lines_of(values: dict[str, list[float | None]]) -> list[str]:
    return [row(arm, seed, bits_per_byte=value) for arm, found in values.items() for seed, value in enumerate(found)]


def test_an_arm_that_lost_runs_is_never_said_to_be_better(tmp_path: Path) -> None:
    """Its seeds that went well are those that went well: five of plain, and the best three of an arm whose others ended in no number."""
    values: dict[str, list[float | None]] = {
        "plain/rotary": [2.0, 2.1, 2.0, 2.1, 2.0],
        "convergent/rotary": [1.5, 1.6, 1.5, math.nan, None],
        "intermediate/rotary": [2.5, 2.7, 2.5, 2.6, math.inf],
        "divergent/rotary": [2.2, 2.4, 2.2, 2.3, 2.2],
    }
    (tmp_path / "runs.jsonl").write_text("\n".join(lines_of(values)))
    results = read_results(tmp_path)
    found = compare_arms(results.study, results.runs)
    regimes = {(pair.arm, pair.reference): pair for pair in found.pairs if pair.question == "regimes"}
    # the lost runs of convergent would make it look better; intermediate is worse even without its lost one
    assert [key[0] for key in regimes] == ["intermediate/rotary", "divergent/rotary", "intermediate/rotary"]
    assert found.untested == [
        "convergent/rotary (lost 2) against plain/rotary (lost 0)",
        "convergent/rotary (lost 2) against divergent/rotary (lost 0)",
    ]
    worse = regimes["intermediate/rotary", "plain/rotary"]
    assert (worse.lost, worse.reference_lost, worse.seeds) == (1, 0, 4)
    assert worse.better < 0
    # what is not tested still counts among the five that are corrected together
    ps = [pair.p for pair in regimes.values()]
    assert [pair.p_holm for pair in regimes.values()] == holm([*ps, 1.0, 1.0])[:3]
    # where the reference lost runs, an arm must not look worse than what is left of it
    other = replace(results.study, questions={"other": (("plain/rotary", "convergent/rotary"),)})
    flipped = compare_arms(other, results.runs)
    assert flipped.pairs == []
    assert flipped.untested == ["plain/rotary (lost 0) against convergent/rotary (lost 2)"]


def test_lost_runs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values: dict[str, list[float | None]] = {"plain/rotary": [2.0, 2.1, 2.0], "convergent/rotary": [1.5, 1.6, None]}
    values["divergent/rotary"] = [2.5, 2.7, None]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines_of(values)))
    picture = tmp_path / "differences.svg"
    assert command(["study", "results", str(tmp_path), "--question", "regimes", "--plot", str(picture)]) == 0
    told = capsys.readouterr().out
    assert "lost        2 runs" in told
    assert "not tested  convergent/rotary (lost 1) against plain/rotary (lost 0)" in told
    assert "divergent/rotary (1 lost)" in told
    assert "2 runs" in picture.read_text()
    assert command(["study", "results", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["lost"] == 2
    assert [row["lost"] for row in document["parts"][0]["arms"]] == [0, 1, 1]


def test_a_vision_model_without_numbers_is_lost_although_it_guesses() -> None:
    scores = ({"accuracy": 0.1, "loss": None}, {"accuracy": 0.5, "loss": 1.0})
    runs = [StudyRun("vision", "a", SeedRun(seed, found, 1, None)) for seed, found in enumerate(scores)]
    assert lost_runs(runs, "accuracy") == {"a": {0}}
    assert values_by_arm(runs, "accuracy") == {"a": {1: 0.5}}  # its guess is in no mean and no pair
