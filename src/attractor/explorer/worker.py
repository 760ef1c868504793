"""A process that computes for the explorer's server: runs, predictions, models.

The server starts ``python -m attractor.explorer.worker`` and writes one JSON object on a line for each task,
``{"task": ..., "number": ..., "body": ...}``. The worker answers with lines: ``+`` and a JSON object for the client, and ``.`` when the
task is done. A line ``cancel NUMBER`` stops a task. The worker ends when its input is closed.
"""

from __future__ import annotations

import _thread
import base64
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from torch import Tensor

from attractor.errors import AttractorError, InputError, MissingExtraError
from attractor.explorer.real_models import check_text, find_model, head_system, list_models, view_model
from attractor.explorer.system import System
from attractor.files import dump_json
from attractor.memory import format_size
from attractor.solvers import describe_source


class Answer(Protocol):
    """Sends rows to the client; ``check`` raises CancelledError if the task has been cancelled."""

    def __call__(self, row: dict[str, Any]) -> None: ...

    def check(self) -> None: ...


MAX_TOKENS, MAX_DIM = 200_000, 2048
MAX_NUMBERS = 2_000_000  # coordinates of all tokens, and entries of all matrices
MAX_SAVED = 64_000_000  # coordinates of all saved states
MAX_STATES = 2001
MAX_TEXT = 600_000  # coordinates of a frame that is sent as text
MAX_EVENTS = 2000
PROGRESS_SECONDS = 0.2
ROOM = 6 << 30  # bytes that a task may allocate


class CancelledError(BaseException):
    """The client left, or began another run; not an Exception, which models and laws may catch."""


def check_size(system: System) -> None:
    """Raise if a system is larger than the server computes."""
    sizes = [("tokens", system.n, MAX_TOKENS), ("dimensions", system.dim, MAX_DIM)]
    sizes.append(("coordinates", system.n * system.dim, MAX_NUMBERS))
    sizes.append(("entries of matrices", 3 * len(system.heads) * system.dim**2, 3 * MAX_DIM**2))
    for what, size, most in sizes:
        if size > most:
            raise InputError(
                f"the explorer computes systems of up to {most:,} {what}, and this one has {size:,}: use attractor simulate"
            )


def run_system(body: dict[str, Any], send: Answer) -> None:
    """Integrate a system and send its states while it runs."""
    system = System.from_json(body.get("system"))
    check_size(system)
    encode = _encoder(body.get("encoding", "json"), system.n * system.dim)
    save, seconds = _read_save(body.get("save"), system), _read_seconds(body.get("max_seconds"))
    sent, shown = 0, 0.0
    send({"kind": "start", "tokens": system.n, "dim": system.dim, "until": system.until, "masses": system.masses})

    def after_step(run: Any) -> None:
        nonlocal sent, shown
        send.check()
        recorder = run.recorder
        while sent < recorder.complete:
            _send_frame(send, encode, sent, float(recorder.times[sent]), recorder.points[sent, 0])
            sent += 1
        now = time.monotonic()
        if now > shown + PROGRESS_SECONDS:
            shown = now
            reached = float(run.t[0]) if len(run.t) else system.until
            send({"kind": "progress", "t": reached, "until": system.until, "steps": run.accepted})

    run = system.flow(save=save, progress=after_step, max_seconds=seconds)
    for index in range(sent, len(run.times)):
        _send_frame(send, encode, index, float(run.times[index]), run.points[index])
    for event in run.events[:MAX_EVENTS]:
        members = list(event.members) if event.size <= 64 else None
        send(
            {
                "kind": "event",
                "event": event.kind,
                "time": event.time,
                "members": members,
                "mass": event.mass,
                "size": event.size,
            }
        )
    outcome = {"name": run.outcome.name, "time": run.outcome.time, "message": run.outcome.message}
    final = encode(run.final.points)  # type: ignore[union-attr]
    send({"kind": "end", "outcome": outcome, "stats": asdict(run.stats), **final})


def _send_frame(
    send: Answer, encode: Callable[[Tensor], dict[str, Any]], index: int, time: float, points: Tensor
) -> None:
    send({"kind": "frame", "index": index, "t": time, **encode(points)})


def _encoder(encoding: Any, numbers: int) -> Callable[[Tensor], dict[str, Any]]:
    if encoding == "base64":
        return lambda points: {
            "points32": base64.b64encode(points.numpy().astype("<f4").tobytes()).decode("ascii"),
        }
    if encoding != "json":
        raise InputError(f'encoding must be "json" or "base64", got {str(encoding)[:40]!r}')
    if numbers > MAX_TEXT:
        raise InputError(
            f'frames of more than {MAX_TEXT:,} coordinates are sent as binary numbers: give "encoding": "base64"'
        )
    return lambda points: {"points": points.tolist()}


def _read_save(save: Any, system: System) -> int | list[float] | None:
    if save is None:
        return None
    times = save if isinstance(save, list) else []
    if isinstance(save, bool) or not isinstance(save, (int, list)) or not all(type(t) in (int, float) for t in times):
        raise InputError("save must be null, a number of intervals, or a list of times")
    count = len(save) if isinstance(save, list) else save
    if not 1 <= count <= MAX_STATES - 1:
        raise InputError(f"a run in the explorer saves up to {MAX_STATES - 1:,} states, asked for {count:,}")
    if (count + 1) * system.n * system.dim > MAX_SAVED:
        fit = max(1, MAX_SAVED // (system.n * system.dim))
        raise InputError(f"{count:,} states of {system.n:,} tokens are too many: save up to {fit:,}")
    return save


def _read_seconds(seconds: Any) -> float | None:
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise InputError("max_seconds must be a positive number")
    return float(seconds)


def describe_system(body: dict[str, Any], send: Answer) -> None:
    """Send the command line and the program that repeat a run."""
    system = System.from_json(body.get("system"))
    check_size(system)
    send({"command": system.command(), "python": system.python(), "system": system.to_json()})


def predict_fate(body: dict[str, Any], send: Answer) -> None:
    """Send every theorem with its hypotheses and margins, and the fates that are predicted."""
    from attractor.theory import predict

    system = System.from_json(body.get("system"))
    check_size(system)
    noise = system.build_noise()
    found = predict(
        system.law(), system.tokens(), system.build_space(), step=system.layers, until=system.until, noise=noise
    )
    theorems = [_theorem_row(item, found.until) for item in found.findings]
    send({"theorems": theorems, **{name: part for name, part in found.row().items() if name in FOUND}})


FOUND = ("fates", "note", "contradictions", "exceptional")


def _theorem_row(item: Any, until: Any) -> dict[str, Any]:
    theorem, row = item.theorem, item.row()
    hypotheses = [
        {"text": part["name"], "margin": part["margin"], "verdict": part["verdict"], "detail": part["detail"]}
        for part in row["conditions"]
    ]
    hypotheses += [
        {"text": name, "margin": None, "verdict": "not examined", "detail": ""} for name in row["not_examined"]
    ]
    return {
        "key": theorem.key,
        "title": theorem.title,
        "status": row["status"],
        "verdict": row["verdict"],
        "applies": row["verdict"] == "holds",
        "fate": row["fate"],
        "meaning": row["meaning"],
        "margin": item.margin if row["verdict"] == "holds" else None,
        "rate": "" if item.scale is None else item.scale.describe(until),
        "time": None if item.scale is None else item.scale.time,
        "exception": row["exception"],
        "hypotheses": hypotheses,
        "statement": theorem.statement,
        "html": _render_statement(theorem.statement),
        "source": describe_source(theorem.citation.key),
        "place": theorem.citation.place,
    }


@lru_cache(maxsize=256)
def _render_statement(statement: str) -> str | None:
    """A statement as HTML with MathML; None without the packages of reports."""
    from attractor.report import render_words

    try:
        return str(render_words(statement))
    except MissingExtraError:
        return None


def list_available_models(body: dict[str, Any], send: Answer) -> None:
    """Send the models that may be opened."""
    send({"models": list_models(body["models"])})


def show_model(body: dict[str, Any], send: Answer) -> None:
    """Send the tokens of a text along depth, and the heads of a model."""
    send(view_model(find_model(body.get("name"), body["models"]), check_text(body.get("text"))))


def show_head(body: dict[str, Any], send: Answer) -> None:
    """Send a head of a model, with the tokens that it reads, as a system."""
    name, text = find_model(body.get("name"), body["models"]), check_text(body.get("text"))
    send(head_system(name, text, body.get("layer"), body.get("head")))


TASKS: dict[str, Callable[[dict[str, Any], Answer], None]] = {
    "run": run_system,
    "describe": describe_system,
    "predict": predict_fate,
    "models": list_available_models,
    "model": show_model,
    "head": show_head,
}


class Tasks:
    """Carries out tasks, one after the other; ``cancel`` interrupts the current one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self.write = write
        self.active = self.careful = self.cancelled = False
        self.number = self.doomed = 0  # of the current task, and of the one that is to be cancelled
        self.waiting: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def cancel(self, signal_number: int, frame: FrameType | None) -> None:
        """Handle a signal: end the task, now or, where that could leave something half done, as soon as it checks."""
        self.cancelled = self.active and self.doomed == self.number
        if self.cancelled and not self.careful and not _is_importing(frame):
            raise CancelledError

    def check(self) -> None:
        """Raise if the current task has been cancelled."""
        if self.cancelled and self.active:
            raise CancelledError

    def __call__(self, row: dict[str, Any]) -> None:
        """Write one answer, as a whole."""
        line, before = "+" + _dump(row), self.careful
        self.careful = True
        self.write(line)
        self.careful = before
        self.check()

    def run(self) -> None:
        """Wait for tasks and carry them out, for ever."""
        while True:
            self.carry_out(self.waiting.get())

    def carry_out(self, request: dict[str, Any]) -> None:
        """Carry out one task and report how it failed, if it did."""
        self.number, self.cancelled = request["number"], False
        try:
            self.active, self.careful = True, request["task"] == "run"  # runs check after every step
            TASKS[request["task"]](request["body"], self)
        except CancelledError:
            pass  # the server does not read what was left
        except AttractorError as error:
            self.fail(" ".join(str(error).split()))
        except MemoryError:
            self.fail(NO_MEMORY)
        except Exception as error:  # a defect, or torch without memory: report it, and be ready for the next task
            shortage = isinstance(error, RuntimeError) and "allocate memory" in str(error)
            if not shortage:
                traceback.print_exc()
            text = f"internal error, {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self.fail(NO_MEMORY if shortage else text)
        self.active = False  # a signal is ignored from here on
        self.write(".")

    def fail(self, message: str) -> None:
        """Answer that the task failed; it cannot be cancelled any more."""
        self.active = False
        self({"kind": "error", "message": message})


def _is_importing(frame: FrameType | None) -> bool:
    """Whether code is being imported: a module whose import is interrupted stays broken."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


NO_MEMORY = (
    f"this needs more memory than the explorer allows ({format_size(ROOM)}): take fewer tokens, or save fewer states"
)


def _dump(row: dict[str, Any]) -> str:
    try:
        return json.dumps(row, allow_nan=False)
    except (TypeError, ValueError):  # arrays, and numbers that are not finite, which become null
        return dump_json(row)


def _limit_memory() -> None:
    """Limit what this process may allocate beyond what it has by now (Linux)."""
    try:
        import resource

        status = Path("/proc/self/status").read_text()
    except (ImportError, OSError):
        return
    used = next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:")), None)
    if used is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, used + ROOM))


def main() -> None:
    """Read tasks from standard input and answer on standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not be read as an answer
    _limit_memory()

    def write(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    tasks = Tasks(write)
    signal.signal(signal.SIGINT, tasks.cancel)

    def read() -> None:
        for line in sys.stdin:
            if line.startswith("cancel "):
                tasks.doomed = int(line.split()[1])
                _thread.interrupt_main()
            else:
                tasks.waiting.put(json.loads(line))
        os._exit(0)  # the server has ended: no result is awaited

    threading.Thread(target=read, daemon=True).start()
    tasks.run()


if __name__ == "__main__":
    main()
