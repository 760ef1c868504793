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
        "simulate --tokens 6 --dim 3 --until 1 --attention run.pdf",
        "simulate --tokens 6 --until 1 --query 1,0;0,1 --key 1,0;0,1 --value 1,0;0,-1 --rescaled --snapshots 0,0.5 --plot run.pdf",
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--snapshots 2", "belong to --plot"),
        ("--plot run.png --snapshots 2,1", "increasing times"),
        ("--plot run.png --snapshots 0,9", "between 0 and 1"),
        ("--plot run.png --view 30", "azimuth and an elevation"),
        ("--attention run.html", ".png, .pdf, .svg"),
        ("--plot run.png --rescaled --space sphere", "flat space"),
        ("--plot run.png --rescaled --random-law 1 --heads 3", "one head"),
    ],
)
def test_options_of_figures_that_do_not_fit_are_named(words: str, said: str, command: Command) -> None:
    done = command(f"simulate --tokens 5 --dim 3 --until 1 {words}")
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_figure_can_have_no_title_and_no_caption(command: Command) -> None:
    assert command("simulate --tokens 5 --until 1 --plot run.svg --title none --no-caption --view 10,20").code == 0
    assert command("simulate --tokens 5 --until 1 --plot full.svg --title Mine").code == 0
    bare, full = (Path(name).read_text() for name in ("run.svg", "full.svg"))
    assert "Mine" not in bare
    assert len(bare) < len(full)


def test_matrices_and_slopes_are_given_inline(command: Command) -> None:
    done = command("simulate --tokens 5 --until 1 --query 1,0;0,1 --key 1,0;0,1 --value -1,0;0,0.5 --json")
    assert "V=[[-1, 0], [0, 0.5]]" in done.json["law"]
    done = command(
        "simulate --dim 4 --tokens 5 --until 1 --random-law 0 --heads 2 --positions alibi --slopes 0.5,1 --json"
    )
    assert "alibi" in done.json["law"]
    assert "2 slopes for 1 heads" in command("simulate --positions alibi --slopes 0.5,1").err
    assert "--slopes belong" in command("simulate --slopes 0.5").err
    assert "rows of one length" in command("simulate --query 1,0;2 --key 1 --value 1").err
