"""The command itself: help, version, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import attractor as at

Command = Callable[[str], Any]


def test_version(command: Command) -> None:
    done = command("--version")
    assert (done.code, done.out, done.err) == (0, f"attractor {at.__version__}\n", "")


@pytest.mark.parametrize("line", ["", "--help", "-h"])
def test_help(line: str, command: Command) -> None:
    done = command(line)
    assert done.code == 0
    assert done.err == ""
    assert "simulate" in done.out
    assert "doctor" in done.out
    assert "explore" in done.out


def test_help_of_commands(command: Command) -> None:
    for name in ("simulate", "trace", "train", "claims", "reproduce", "study results", "doctor"):
        done = command(f"{name} --help")
        assert done.code == 0
        assert "--json" in done.out
        assert "--debug" in done.out


def test_python_m_attractor() -> None:
    line = [sys.executable, "-m", "attractor", "simulate", "--tokens", "0"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_reader_may_leave_early() -> None:
    line = f"{sys.executable} -m attractor doctor | true"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_help_does_not_wait_for_pictures_and_stores() -> None:
    probe = (
        "import sys, attractor.cli.main as cli\ncli.run(['simulate', '--help'])\n"
        "sys.exit(sorted({'matplotlib', 'plotly', 'zarr'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
