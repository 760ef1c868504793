"""Every command that draws takes the width of the paper, and says in one way what it wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from attractor.cli.main import app

Command = Callable[[str], Any]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
DRAWING = [name for name, found in COMMANDS.items() if any("--plot" in option.opts for option in found.params)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def wide(path: Path) -> float:
    """Inches across a page of a pdf."""
    found = re.search(rb"/MediaBox \[\s*0 0 ([\d.]+)", path.read_bytes())
    assert found is not None
    return float(found[1]) / 72


@pytest.mark.parametrize("name", DRAWING)
def test_a_command_that_draws_takes_a_width(name: str) -> None:
    assert any("--width" in option.opts for option in COMMANDS[name].params)


def test_the_commands_that_draw_are_found() -> None:
    assert {"simulate", "gaussian", "meanfield", "claims", "reproduce", "trace"} <= set(DRAWING)


@pytest.mark.parametrize(
    "words",
    [
        "simulate --tokens 6 --dim 2 --until 1 --density run.pdf",
        "simulate --tokens 6 --dim 3 --until 1 --plot run.pdf",
        "gaussian --until 0.1 --plot run.pdf",
        "gaussian --blow-up-map --grid 2 --plot run.pdf",
        "meanfield --sizes 10,20 --repeats 2 --plot run.pdf",
        "claims --only consensus.metric --plot run.pdf",
    ],
)
def test_a_picture_has_its_width_and_is_named(command: Command, words: str) -> None:
    done = command(f"{words} --width one --json")
    assert wide(Path("run.pdf")) == pytest.approx(3.4)
    assert done.json["outputs"]["figures"] == ["run.pdf"]
    assert done.json["schema"].startswith(f"attractor.{words.split()[0]}/")
    assert f"{words.split()[0]} " in done.json["command"]


def test_a_width_that_is_none_is_one_line(command: Command) -> None:
    done = command("gaussian --until 0.1 --plot run.pdf --width three")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "'one'" in done.err
    assert not Path("run.pdf").exists()


def test_one_file_holds_one_claim(command: Command) -> None:
    done = command("claims --only consensus.metric --only consensus.diameter --plot run.pdf")
    assert done.code == 2
    assert "one file for 2 claims" in done.err
