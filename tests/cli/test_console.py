"""Terminal output fits the width of the terminal."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from rich.cells import cell_len

from attractor.cli.console import arrange_columns, print_rows, print_table

Command = Callable[[str], Any]


def widest(text: str) -> int:
    return max(cell_len(line) for line in text.splitlines())


@pytest.mark.parametrize("width", [50, 80, 100])
def test_the_list_of_theorems_fits(command: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    whole = command("check --list").out
    monkeypatch.setenv("COLUMNS", str(width))
    done = command("check --list")
    assert widest(done.out) <= width < widest(whole)
    # nothing is cut; a table in parts repeats its first column
    assert Counter(whole.split()) <= Counter(done.out.split())


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "line",
    [
        "check --theorem regimes.C1 --instances 1 --violated 1",
        "predict --tokens 4 --dim 3",
        "regimes --dim 2",
        "fetch",
        "reproduce",
    ],
)
def test_tables_of_commands_fit(command: Command, monkeypatch: pytest.MonkeyPatch, line: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    tables = command(line).out.partition("\nResults\n")[0]
    words = max(map(len, tables.split()))
    assert widest(tables) <= max(width, words + 12)


def test_tables_of_any_shape_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(0)
    for _ in range(60):
        width, count = draw.randint(40, 160), draw.randint(1, 12)
        columns = [f"c{place}" + " name" * draw.randint(0, 2) for place in range(count)]
        rows = [
            [" ".join("x" * draw.randint(1, 9) for _ in range(draw.randint(0, 9))) for _ in columns] for _ in range(4)
        ]
        fixed = draw.sample(columns, draw.randint(0, count))
        monkeypatch.setenv("COLUMNS", str(width))
        print_table("A title", columns, rows, fixed=fixed, right=None)
        out = capsys.readouterr().out
        assert widest(out) <= width
        # every letter of every cell is printed
        parts = arrange_columns(columns, rows, fixed, width)
        printed = sum(sum(text.count("x") for row in rows for text in [row[place]]) for part in parts for place in part)
        assert out.count("x") == printed
        assert {place for part in parts for place in part} == set(range(count))


def test_a_table_that_fits_is_one_part() -> None:
    rows = [["alpha", "1", "2"], ["beta", "30", "4"]]
    assert arrange_columns(["name", "x", "y"], rows, (), 80) == [{0: 5, 1: 2, 2: 1}]


def test_texts_wrap_beside_their_label_and_commands_do_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = "word " * 30
    print_rows("Title", {"a": text, "long label": "short"})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(" " * 14) for line in lines[2:-1])
    print_rows("Results", {"command": text}, wrap=False)
    assert text in capsys.readouterr().out


def test_output_that_is_not_shown_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_rows("Title", {"a": "word " * 60})
    assert len(capsys.readouterr().out.splitlines()) == 2
