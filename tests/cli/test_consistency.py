"""One name, one meaning: options over all commands."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from typer.main import get_command

from attractor.cli.main import app, run
from attractor.training import Config

GROUPS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
INNER = {f"{group} {name}": parsed for group in ("study", "sweep") for name, parsed in GROUPS[group].commands.items()}
COMMANDS = {name: parsed for name, parsed in GROUPS.items() if name not in ("study", "sweep")} | INNER
LAST = ["--out", "--resume", "--report", "--plot", "--width", "--json", "--quiet", "--progress", "--debug"]
PLACES = {"--report": "FILE.html", "--seed": "N", "--dim": "D", "--until": "T", "--max-seconds": "S"}
FLAGS = ("--json", "--debug", "--progress", "--quiet")


def options() -> dict[str, dict[str, Any]]:
    """The options by their long name, then by command."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for command, parsed in COMMANDS.items():
        for parameter in parsed.params:
            if parameter.param_type_name == "option":
                long = next(name for name in parameter.opts if name.startswith("--"))
                found[long][command] = parameter
    return found


@pytest.mark.parametrize("name", ["--json", "--debug", "--quiet"])
def test_every_command_has_it(name: str) -> None:
    assert options()[name].keys() == COMMANDS.keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_common_options_come_last_in_one_order(command: str) -> None:
    names = [parameter.opts[0] for parameter in COMMANDS[command].params if parameter.param_type_name == "option"]
    common = [name for name in LAST if name in names]
    assert [name for name in names if name in LAST] == common
    assert names[-len(common) :] == common


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_a_flag_everywhere(name: str) -> None:
    assert {command for command, option in options()[name].items() if not option.is_flag} == set()


@pytest.mark.parametrize(("name", "metavar"), PLACES.items())
def test_what_an_option_takes_is_the_same_everywhere(name: str, metavar: str) -> None:
    assert {option.metavar for option in options()[name].values()} == {metavar}


def test_a_letter_stands_for_one_word() -> None:
    meant = defaultdict(set)
    for long, commands in options().items():
        for option in commands.values():
            for name in option.opts:
                if not name.startswith("--"):
                    meant[name].add(long)
    assert {letter: words for letter, words in meant.items() if len(words) > 1} == {}


def test_results_go_to_out() -> None:
    assert {command for command, option in options()["--out"].items() if "-o" not in option.opts} == set()


def test_whatever_draws_can_be_as_wide_as_a_column() -> None:
    assert options()["--plot"].keys() == options()["--width"].keys()


@pytest.mark.parametrize("name", ["simulate", "gaussian", "check", "audit", "trace", "train", "predict"])
def test_whatever_has_a_page_calls_it_report(name: str) -> None:
    assert name in options()["--report"]


def test_a_run_goes_on_from_the_place_that_resume_names() -> None:
    assert {command: option.is_flag for command, option in options()["--resume"].items()} == dict.fromkeys(
        ("simulate", "density", "iterate", "train"), False
    )


def test_a_seed_is_zero_unless_it_is_named() -> None:
    """That of a training run may stand in its configuration, whose default is 0."""
    assert {option.default for command, option in options()["--seed"].items() if command != "train"} == {0}
    assert Config("text").seed == 0


def test_time_is_in_seconds() -> None:
    assert options()["--max-seconds"].keys() == {"simulate", "study run", "sweep simulate"}
    assert "--minutes" not in options()


@pytest.mark.parametrize("line", ["predict --tokens 3", "check --list", "regimes", "claims --list"])
def test_quiet_commands_print_nothing_but_errors(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*line.split(), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert run([*line.split(), "-q", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"]
    assert run([line.split()[0], "--quiet", "--nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "path"), [("simulate --tokens", "attractor simulate"), ("study results --plot", "attractor study results")]
)
def test_missing_value_names_the_command(line: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"{path}: error: Option")


def test_group_without_command_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["study"]) == 0
    printed = capsys.readouterr()
    assert "results" in printed.out
    assert not printed.err
