"""Random wrong command lines of every command: one clear sentence, exit code 1 or 2, no traceback, nothing half-written, soon.

A command line is a sound start of the command and one to three mistakes: unknown options, values out of range or of another
type, files that are missing, empty, damaged, folders or named pipes, and options that contradict each other.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from attractor.cli.main import app, run

LONGEST = 20.0  # seconds of a command
STRANGE = (
    "", " ", "nan", "inf", "-inf", "1e400", "-1", "0", "-0", "1e308", "5e-324", "1e-300", "99999999999999999999999", "1.5", "abc", "é☃",
    "1,2", ",", ",,,", "1,nan", "none", "True", "0x10", "1e", "--", "/", ".", "..", "/nonexistent/file.npy", "~", "\n", "a=b", "[]", "{}",
    "mixture:1e30", "student:0", "shell:2", "window:", "window:-1", "window:99999999999999999999", "ellipse:1", "sinkhorn",
)  # fmt: skip
SUFFIXES = (
    ".npy",
    ".csv",
    ".txt",
    ".safetensors",
    ".json",
    ".html",
    ".png",
    ".zarr",
    ".toml",
    ".gguf",
    ".bin",
    ".jsonl",
    "",
)
# a sound and quick start of each command; what is random comes after it
STARTS: dict[str, tuple[str, ...]] = {
    "simulate": ("--tokens", "4", "--until", "0.01"),
    "gaussian": ("--until", "0.01"),
    "meanfield": ("--until", "0.01"),
    "predict": ("--tokens", "4"),
    "check": ("--list",),
    "claims": (),
    "regimes": (),
    "reproduce": (),
    "fetch": ("--list",),
    "audit": ("FOLDER",),
    "trace": ("FOLDER", "some text"),
    "iterate": ("FOLDER", "some text"),
    "train": (),
    "study run": (),
    "study results": (),
    "doctor": (),
    "tour": (),
}
LONG = (
    "tour",
    "doctor",
    "check",
    "reproduce",
    "claims",
)  # commands that compute for long without a mistake in their line


class Timeout(Exception):
    """A command did not end in time."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise ``Timeout`` in the block after some seconds."""

    def interrupt(number: int, frame: Any) -> None:
        raise Timeout

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def options_of(name: str) -> dict[str, Any]:
    """Options of a command by their spellings."""
    command: Any = typer.main.get_command(app)
    for word in name.split():
        command = command.commands[word]
    return {spelling: option for option in command.params for spelling in option.opts if spelling.startswith("-")}


def make_files(folder: Path, rng: random.Random) -> list[str]:
    """Files of all kinds, most of them not what an option expects."""
    arrays = {
        "matrix.npy": np.eye(3),
        "vector.npy": np.ones(4),
        "empty.npy": np.zeros((0, 3)),
        "nan.npy": np.full((3, 3), np.nan),
        "huge.npy": np.full((3, 3), 1e308),
        "words.npy": np.array(["a", "b"]),
        "complex.npy": np.eye(3) * 1j,
        "cube.npy": np.ones((2, 2, 2, 2, 2)),
        "boolean.npy": np.zeros((4, 4), dtype=bool),
        "number.npy": np.array(3.0),
    }
    for name, array in arrays.items():
        np.save(folder / name, array)
    np.save(folder / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for suffix in SUFFIXES:
        (folder / f"empty{suffix or '.none'}").write_bytes(b"")
        (folder / f"noise{suffix}").write_bytes(rng.randbytes(200))
        (folder / f"words{suffix or '.none'}x").write_text("word\n")
    whole = (folder / "matrix.npy").read_bytes()
    (folder / "cut.npy").write_bytes(whole[:-7])
    (folder / "text.csv").write_text("1,2\n3\n")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1000000000}')
    (folder / "pipes").mkdir()
    (folder / "pipes" / "config.json").write_text('{"model_type": "gpt2"}')
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.npy")
        os.mkfifo(folder / "pipe.json")
        os.mkfifo(folder / "pipes" / "model.safetensors")
    (folder / "locked").mkdir()
    return sorted(str(path) for path in folder.iterdir())


def draw(rng: random.Random, files: list[str], folder: Path) -> list[str]:
    """A command line with mistakes."""
    name = rng.choice(list(STARTS))
    options = options_of(name)
    words = name.split() + [str(folder / "model") if word == "FOLDER" else word for word in STARTS[name]]
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.random()
        values = [
            rng.choice(STRANGE),
            rng.choice(files),
            str(folder / "new" / "file.npy"),
            str(folder / f"out{rng.choice(SUFFIXES)}"),
        ]
        if kind < 0.75 and options:
            spelling = rng.choice(sorted(set(options) - {"--debug"}))  # it prints tracebacks
            words.append(spelling)
            if not options[spelling].is_flag and rng.random() < 0.97:
                words.append(rng.choice(values))
        elif kind < 0.85:
            words.append(rng.choice(("--unknown", "-Z", "--tokenss=3", "---", "--until=", "-n")))
        elif kind < 0.95:
            words.append(rng.choice(values))
        else:
            words.insert(rng.randrange(len(words) + 1), rng.choice(values))
    if any(word in LONG for word in words[:1]):
        words.insert(1, "--unknown")  # at the end it could be the value of an option
    return words


def complaint(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Run a command line; return what is wrong with how it ended, or None."""
    before = {path for path in folder.rglob("*") if not path.name.startswith("out")}
    capsys.readouterr()
    began = time.monotonic()
    try:
        with limited(LONGEST):
            code = run(words)
    except typer.Exit as error:
        code = error.exit_code
    except Timeout:
        return f"it had not ended after {LONGEST:g} seconds"
    except BaseException as error:
        return f"it raised {type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    shown = capsys.readouterr()
    if code not in (0, 1, 2):
        return f"its exit code is {code}"
    if "Traceback" in shown.err + shown.out:
        return "it printed a traceback"
    if "(give --debug for the traceback)" in shown.err:
        return f"it printed a foreign error: {shown.err.strip()}"
    sentences = [line for line in shown.err.splitlines() if ": error: " in line]
    if code and len(sentences) != 1:
        return f"it printed {len(sentences)} errors: {shown.err!r}"
    if code and len(sentences[0].split(": error: ", 1)[1].strip()) < 10:
        return f"its error is no sentence: {sentences[0]!r}"
    left = {path for path in folder.rglob("*") if not path.name.startswith("out")} - before
    if code == 2 and any(path.parent not in left and not str(path).startswith(str(folder / "out")) for path in left):
        return f"it left files behind: {sorted(map(str, left))[:3]}"
    if code == 2 and any(folder.glob("out*")):
        return f"it left {next(folder.glob('out*')).name} behind"
    if seconds > LONGEST:
        return f"it took {seconds:.0f} seconds"
    return None


def test_wrong_command_lines_are_one_sentence(
    fuzz: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    failures = []
    for seed in fuzz.seeds(40, 5000):
        rng = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)
        words = draw(rng, make_files(folder, rng), folder)
        if (wrong := complaint(words, folder, capsys)) is not None:
            failures.append(f"seed {seed}: {wrong}; the command line was {words}".replace(str(folder), "."))
    if failures:
        pytest.fail(f"{len(failures)} command lines fail:\n" + "\n".join(failures[:20]), pytrace=False)
