"""``attractor predict``, ``attractor check`` and ``attractor regimes``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


def test_predict_says_what_applies(command) -> None:
    report = command("predict --beta 1 --tokens 4 --start hemisphere --json").json
    assert report["schema"] == "attractor.predict/2"
    assert {"regimes.T3", "regimes.T6"} <= set(report["fates"]["divergence"]["theorems"])
    assert report["contradictions"] == []
    t3 = next(row for row in report["applicable"] if row["theorem"] == "regimes.T3")
    assert all(condition["verdict"] == "holds" for condition in t3["conditions"])
    assert report["command"] == "attractor predict --tokens 4 --start hemisphere --beta 1"


def test_predict_says_what_is_missing(command) -> None:
    report = command("predict --beta 1 --tokens 4 --mask causal --json").json
    assert report["nearest"]["missing"]
    done = command("predict --beta 1 --tokens 4 --mask causal")
    assert done.code == 0
    assert "Nearest theorem" in done.out


def test_predict_takes_noise(command) -> None:
    report = command("predict --tokens 2 --dim 4 --space sphere --beta 2 --start orthonormal --redrawn 1 --json").json
    assert [row["theorem"] for row in report["applicable"]] == ["consensus.N2"]
    assert "0.2474" in report["times"]["consensus.N2"]["text"]  # A17
    done = command("predict --tokens 6 --dim 2 --space sphere --beta 4 --noise 0.1")
    assert "motion without noise" in done.out
    assert "eps_c = 0.215881" in " ".join(done.out.split())


def test_check_counts_instances(command) -> None:
    report = command(
        "check --theorem regimes.T5 --theorem regimes.T7 --instances 6 --violated 2 --processes 1 --json"
    ).json
    assert report["schema"] == "attractor.check/2"
    assert [row["key"] for row in report["theorems"]] == ["regimes.T5", "regimes.T7"]
    assert {row["instances"] for row in report["theorems"]} == {6}
    assert report["violations"] == 0
    assert report["theorems"][0]["sharpness"][0]["instances"] == 2


def test_check_fails_where_a_proved_statement_is_violated(command, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from attractor.theory import checking, find_theorem

    statement = find_theorem("regimes.T5")
    wrong = replace(statement, gather=lambda cases: statement.gather([statement.break_case(case) for case in cases]))
    monkeypatch.setattr(checking, "find_theorem", lambda key: wrong)
    done = command("check --theorem regimes.T5 --instances 3 --violated 0 --processes 1")
    assert done.code == 1
    assert "violations of proved statements" in done.err


def test_check_lists_the_theorems(command) -> None:
    rows = command("check --list --json").json["theorems"]
    assert {"regimes.T0", "regimes.T8.converse"} <= {row["key"] for row in rows}
    assert command("check --list").code == 0


def test_processes_share_the_theorems(command) -> None:
    one = command(
        "check --theorem regimes.T5 --theorem regimes.T7 --instances 3 --violated 1 --processes 1 --json"
    ).json
    two = command(
        "check --theorem regimes.T5 --theorem regimes.T7 --instances 3 --violated 1 --processes 2 --json"
    ).json
    for single, shared in zip(one["theorems"], two["theorems"], strict=True):
        assert {**single, "seconds": 0} == {**shared, "seconds": 0}


def test_regimes_of_files(command, folder: Path) -> None:
    files = "--query query.npy --key key.npy --value narrow.npy --output-projection projection.npy"
    report = command(f"regimes {files} --json").json
    assert report["schema"] == "attractor.regimes/2"
    (layer,) = report["layers"]
    assert [head["head"] for head in layer["heads"]] == [0, 1]
    assert layer["heads"][0]["rank"] == 2
    done = command(f"regimes {files}")
    assert done.code == 0
    assert "heuristic" in done.out


def test_regimes_answer_for_a_singular_value(command, folder: Path) -> None:
    np.save("eye.npy", np.eye(4))
    np.save("singular.npy", np.diag([-1.0, -1.0, -1.0, 0.0]))
    layer = command("regimes --query eye.npy --key eye.npy --value singular.npy --json").json["layers"][0]
    assert (layer["heads"][0]["label"], layer["heads"][0]["rank"]) == ("convergent", 3)


def test_pages_hold_mathematics_and_ask_for_nothing(command, tmp_path: Path) -> None:
    prediction, report = tmp_path / "prediction.html", tmp_path / "check.html"
    assert command(f"predict --beta 1 --tokens 4 --report {prediction}").code == 0
    assert command(f"check --theorem regimes.T5 --instances 2 --violated 1 --processes 1 --report {report}").code == 0
    for path in (prediction, report):
        page = path.read_text(encoding="utf-8")
        assert "<math" in page
        assert "default-src 'none'" in page
        assert "\\operatorname" not in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("check --theorem regimes.T99", "is not known"),
        ("check --instances 0", "--instances"),
        ("predict --paper nobody", "the papers are"),
        ("predict --ensemble 3", "one start"),
        ("predict --report page.pdf", "ends in .html"),
        ("predict --step -1", "step must be positive"),
        ("regimes --tolerance 2", "tolerance must be between"),
        ("regimes --query absent.npy --key absent.npy --value absent.npy", "absent.npy"),
        ("regimes --stacked", "stacked metric needs"),
    ],
)
def test_bad_arguments_get_one_line(command, line: str, message: str) -> None:
    done = command(line)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_predict_says_when(command) -> None:
    line = "predict --beta 40 --tokens 2 --dim 2 --space sphere --start orthonormal --until 1e6"
    report = command(f"{line} --json").json
    expected = report["fates"]["consensus"]["expected"]
    assert expected["kind"] == "exact"
    assert expected["beyond"]
    assert report["until"] == 1e6
    assert "far beyond the run, which ends at t = 1e+06" in " ".join(command(line).out.split())


def test_predict_names_an_exceptional_start(command, tmp_path: Path) -> None:
    np.save(tmp_path / "tetrahedron.npy", np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / 3**0.5)
    line = f"predict --beta 1 --space sphere --tokens-file {tmp_path / 'tetrahedron.npy'}"
    report = command(f"{line} --json").json
    assert "consensus" not in report["fates"]
    assert report["exceptional"][0]["theorem"] == "consensus.clustering"
    assert "exceptional start" in command(line).out


@pytest.mark.parametrize(
    "line",
    [
        "check --list",
        "check --list --theorem regimes.T8 --theorem consensus.polygons",
        "predict --tokens 6 --beta 4 --space sphere --start hemisphere --until 5",
        "regimes --random-law 3 --heads 2 -d 8",
        "reproduce",
    ],
)
def test_tables_fit_eighty_columns(command, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = command(line).out.partition("Results")[0]
    assert max(map(len, shown.splitlines())) <= 80


def test_terms_are_explained(command) -> None:
    regimes = command("regimes --random-law 3 --heads 2 -d 8").out
    assert all(word in regimes for word in ("Columns", "spectral radius of I + V", "both signs"))
    shown = command("predict --beta 1 --tokens 4 --mask causal").out
    assert "fate none" in shown
    assert "closest to failing" in shown


def test_reproduce_names_its_sources(command) -> None:
    shown = command("reproduce").out
    assert "arXiv 2512.03058" in shown
    assert "pham2025dynamical" not in shown


def test_every_source_can_be_read() -> None:
    from attractor.solvers import describe_source
    from attractor.solvers.trajectory import read_bibliography

    for key in read_bibliography():
        text = describe_source(key)
        assert key == "attractor" or key not in text
        assert not set(text) & set("{}\\")
    assert describe_source("abella2024asymptotic").startswith("Rodríguez Abella et al. 2024, ")
    assert describe_source("nobody1900") == "nobody1900"
