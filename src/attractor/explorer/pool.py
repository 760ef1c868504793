"""Worker processes of the explorer's server: started when they are needed, stopped when a task ends late or its client leaves."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

WAITING_LINES = 16  # lines of a worker that are kept until the client reads them
GRACE = 1.5  # seconds in which a cancelled task may end by itself
POLL = 0.2  # seconds between looks at the client
LOST = "the computation was ended by the system; it may have needed too much memory"


class BusyError(Exception):
    """All workers have other tasks."""


class Worker:
    """One process that computes (``attractor.explorer.worker``)."""

    def __init__(self, threads: int, debug: bool = False) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "attractor.explorer.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if debug else subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal ends the server, which ends its workers
        )
        self.number = 0  # of the last task
        self.ended = False
        self.lines: queue.Queue[str | None] = queue.Queue(WAITING_LINES)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError, OSError):  # the pipe is closed when the worker is stopped
            for line in self.process.stdout:
                self.lines.put(line)
        self.ended = True  # before the process is gone: its pipes are closed first
        self.lines.put(None)

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def answer(self, task: str, body: str, stopped: Callable[[], bool], seconds: float) -> Iterator[str]:
        """Yield the answers to a task, JSON on one line each, until it is done.

        It is cancelled when ``stopped()`` is true or the generator is closed; after that, or when ``seconds`` have passed or the process
        has died, the worker may be dead.
        """
        deadline = time.monotonic() + seconds
        try:
            self.number += 1
            self._write(f'{{"task": {json.dumps(task)}, "number": {self.number}, "body": {body}}}\n')
        except (OSError, ValueError):  # the process is gone, or the server is closing
            yield _error(LOST)
            return
        done = False
        try:
            while not done:
                try:
                    line = self.lines.get(timeout=POLL)
                except queue.Empty:
                    line = ""
                if line is None:
                    done = True
                    yield _error(LOST)
                elif line.startswith("."):
                    done = True
                elif line:
                    yield line[1:]
                if stopped() and not done:
                    return
                if time.monotonic() > deadline and not done:
                    yield _error(f"the computation took longer than {seconds:g} seconds, the limit of the explorer")
                    return
        finally:
            if not done:
                self._cancel()

    def _cancel(self) -> None:
        """Stop the task, and the process if the task does not end soon."""
        deadline = time.monotonic() + GRACE
        with suppress(OSError, ValueError):
            self._write(f"cancel {self.number}\n")
            while (left := deadline - time.monotonic()) > 0:
                try:
                    line = self.lines.get(timeout=left)
                except queue.Empty:
                    break
                if line is None or line.startswith("."):
                    return
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the process can take a task."""
        return not self.ended and self.process.poll() is None

    def stop(self) -> None:
        """End the process and free its pipes."""
        self.process.kill()
        self.process.wait()
        while self.reader.is_alive():  # it may wait for room in the queue
            with suppress(queue.Empty):
                self.lines.get(timeout=0.05)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unwritten input of a process that is gone
                    pipe.close()


def _error(message: str) -> str:
    return json.dumps({"kind": "error", "message": message}) + "\n"


class Pool:
    """Up to ``size`` workers, each of which has one task at a time."""

    def __init__(self, size: int, threads: int = 1, debug: bool = False) -> None:
        self.size, self.threads, self.debug = size, threads, debug
        self._free = threading.Semaphore(size)
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._all: set[Worker] = set()
        self._closed = False

    def warm(self) -> None:
        """Start a worker before its first task, since it takes seconds to import torch."""
        with self._lock:
            if not self._all and not self._closed:
                self._idle.append(self._start())

    def _start(self) -> Worker:
        worker = Worker(self.threads, self.debug)
        self._all.add(worker)
        return worker

    @contextmanager
    def worker(self, stopped: Callable[[], bool], seconds: float) -> Iterator[Worker]:
        """Wait for a free worker; raise BusyError if there is none after some seconds, or if ``stopped()`` becomes true."""
        deadline = time.monotonic() + seconds
        while not self._free.acquire(timeout=POLL):
            if stopped() or time.monotonic() > deadline:
                raise BusyError
        try:
            with self._lock:
                if self._closed:
                    raise BusyError
                worker = self._idle.pop() if self._idle else self._start()
            if not worker.alive:
                self._discard(worker)
                with self._lock:
                    worker = self._start()
            try:
                yield worker
            finally:
                with self._lock:
                    kept = worker.alive and not self._closed
                    if kept:
                        self._idle.append(worker)
                if not kept:
                    self._discard(worker)
        finally:
            self._free.release()

    def _discard(self, worker: Worker) -> None:
        with self._lock:
            self._all.discard(worker)
        worker.stop()

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._closed = True
            workers = list(self._all)
            self._all.clear()
            self._idle.clear()
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.stop()
