"""Runs on several processes: start-up, communication and loss of a process."""

from __future__ import annotations

import atexit
import contextlib
import io
import math
import os
import signal
import socket
import struct
import threading
import time as clock
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as processes
from torch import Tensor

from attractor.engines import distributed
from attractor.errors import InputError, RankError
from attractor.serialization import tensors
from attractor.solvers.shared_memory import SharedMemory, create_shared_memory
from attractor.solvers.store import Definition, describe

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration

POLL = 1.0  # seconds between checks for failures of other ranks


class ProcessGroup:
    """The processes that share a run.

    Attributes
    ----------
    rank, size : index of this process, and number of processes.
    control : process group for small messages between CPUs.
    data : process group for rows of tokens, between devices or, if ``staged``, through the memory of the CPUs.
    store, key : key-value store of torch.distributed, and the key under which a rank that fails writes the reason.
    timeout : seconds without an answer after which a rank counts as lost.
    """

    def __init__(self, store: Any, control: Any, data: Any, staged: bool, key: str, timeout: float) -> None:
        self.rank, self.size = processes.get_rank(), processes.get_world_size()
        self.store, self.control, self.data, self.staged = store, control, data, staged
        self.key, self.timeout = key, timeout
        self._shared: SharedMemory | None = None
        self._too_large = math.inf if data is control and not staged else 0.0  # bytes that could not be allocated

    # ------------------------------------------------------------------ messages

    def gather(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks, stacked by rank."""
        return self._gather(part.cpu() if self.staged else part.contiguous(), self.data).to(part.device)

    def gather_integers(self, *numbers: int) -> Tensor:
        """Return some integers of every rank, (size, numbers)."""
        return self._gather(torch.tensor(numbers), self.control)

    def _gather(self, part: Tensor, group: Any) -> Tensor:
        whole = part.new_empty((self.size, *part.shape))
        try:
            work = processes.all_gather(list(whole), part, group=group, async_op=part.is_cuda)
            if work is not None:
                self._wait(work)
        except RuntimeError as error:
            raise self.lost(error) from None
        return whole

    def _wait(self, work: Any) -> None:
        """Wait for a device without blocking, so that signals are handled and failures of other ranks are noticed."""
        began = checked = clock.monotonic()
        while not work.is_completed():
            now = clock.monotonic()
            if now - began > self.timeout:
                raise RuntimeError("Timed out")
            if now - checked > POLL:
                checked = now
                if self._ask_store(lambda: self.store.check([self.key])):
                    raise RuntimeError("another rank failed")
        work.wait()

    def shared_memory(self, bytes: int) -> SharedMemory | None:
        """Return memory of at least so many bytes that all ranks share, or None if they are on several machines.

        All ranks must call this with the same number.
        """
        held = 0 if self._shared is None else self._shared.memory.numel()
        if held < bytes <= self._too_large / 2:
            if self._shared is not None:
                self._free_shared_memory()
                self.gather_integers(1)  # all ranks must have freed this one before the next is allocated
            self._shared = create_shared_memory(self, bytes)
            if self._shared is None:
                self._too_large = bytes
        return self._shared if bytes <= self._too_large / 2 else None

    def _free_shared_memory(self) -> None:
        if self._shared is not None:
            self._shared.monitor.close()
        self._shared = None

    def broadcast(self, arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
        """Send the arrays of rank 0 to all ranks."""
        file = io.BytesIO()
        if self.rank == 0 and arrays is not None:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        size = int(self.gather_integers(file.tell())[0])
        if size == 0:
            return None
        message = torch.frombuffer(bytearray(file.getvalue() or bytes(size)), dtype=torch.uint8)
        try:
            processes.broadcast(message, group=self.control, group_src=0)
        except RuntimeError as error:
            raise self.lost(error) from None
        with np.load(io.BytesIO(message.numpy().tobytes()), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}

    # ------------------------------------------------------------------ agreement

    def check_agreement(self, definition: Definition, more: dict[str, Any]) -> None:
        """Raise if the ranks were given different definitions."""
        words = describe(definition)[0]
        prints = {**words["fingerprints"], "versions": words["versions"], "attractor": words["attractor"], **more}
        seen = self.gather_integers(*(zlib.crc32(repr(item).encode()) for item in prints.values()))
        for rank in range(1, self.size):
            names = [name for name, same in zip(prints, (seen[rank] == seen[0]).tolist(), strict=True) if not same]
            if names:
                raise InputError(
                    f"the processes of a run must be given the same, but the {', '.join(names)} of rank {rank} and of rank 0 differ; "
                    "for a run of its own on every rank give distributed=False"
                )

    def synchronise(self, run: Integration) -> float:
        """Return the time by the clock of rank 0, and raise if the ranks do not have the same state."""
        points = run.y.detach()
        bits = points.view(torch.int64 if points.element_size() == 8 else torch.int32).sum(dtype=torch.int64)
        steps = zlib.crc32(run.t.tobytes() + run.h.tobytes() + run.members.tobytes())
        (now,) = struct.unpack("q", struct.pack("d", clock.perf_counter()))
        seen = self.gather_integers(int(bits), steps, now)
        if bool((seen[:, :2] != seen[0, :2]).any()):
            raise RankError(
                "the processes of this run no longer hold the same state; run them on machines of one kind, with the same software and "
                "number of threads, and use laws and events that depend only on the tokens and the time"
            )
        return struct.unpack("d", struct.pack("q", int(seen[0, 2])))[0]

    def wait_for_all(self) -> None:
        """Return once all ranks have reached the end."""
        self.gather_integers(1)

    # ------------------------------------------------------------------ failure

    def lost(self, error: Exception) -> RankError:
        """Return the error of a lost rank: the reason that it wrote, or that it does not answer."""
        if isinstance(error, RankError):  # raised by the signal handler
            return error
        note = self._ask_store(lambda: self.store.get(self.key).decode() if self.store.check([self.key]) else "")
        if note:
            return RankError(note, reported=True)
        silent = "imed out" in str(error)
        words = f"no answer in {self.timeout:g} seconds ({VARIABLE})" if silent else "the connection was closed"
        return RankError(f"a process of this run was lost: {words}")

    def _ask_store(self, request: Callable[[], Any]) -> Any:
        """Return the store's answer to a request, or None: the process that has the store may be lost, or stopped and silent."""
        answers: list[Any] = []

        def ask() -> None:
            with contextlib.suppress(RuntimeError):
                answers.append(request())

        # the thread of a request without an answer does not keep the program from ending
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(min(self.timeout, GRACE))
        return answers[0] if answers else None

    def termination_error(self) -> RankError:
        """Return the error for SIGTERM: another rank failed or was killed, or torchrun was ended."""
        found = self.lost(RuntimeError())
        if found.reported:
            return found
        return RankError("the processes of this run were told to end, as they are when one of them is lost")

    def write_failure(self, error: BaseException) -> None:
        """Write why this rank fails, for the other ranks."""
        if not isinstance(error, RankError):
            words = f"rank {self.rank} failed: {str(error) or type(error).__name__}"
            self._ask_store(lambda: self.store.compare_set(self.key, "", words))

    def close(self) -> None:
        """Close the connections, which ends the waiting of other ranks."""
        self._free_shared_memory()
        groups = {id(group): group for group in (self.control, self.data)}
        self.control = self.data = None
        for key in list(groups):
            processes.destroy_process_group(groups.pop(key))


VARIABLE = "ATTRACTOR_TIMEOUT"
TIMEOUT = 300.0  # seconds without an answer after which a rank counts as lost
START = 30.0  # least number of seconds that ranks may take to start
GRACE = 5.0  # seconds to report an error after SIGTERM
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_groups: dict[str, ProcessGroup] = {}  # by type of device
_serial = 0  # number of groups made so far, the same on all ranks


@contextmanager
def join_processes(shared: bool, definition: Definition, store: str | Path | None) -> Iterator[ProcessGroup | None]:
    """Yield the processes that share a run, or None if there is one; an error in the block on one rank raises on all ranks."""
    if count_processes() == 1:
        yield None
        return
    if not shared:
        with distributed.use_group(None):
            yield None
        return
    group = join_group(next((tensor.device for tensor in tensors(definition.state)), torch.device("cpu")))
    with _handle_sigterm(group) as restore_handler, distributed.use_group(group):
        try:
            yield group
        except BaseException as error:
            restore_handler()  # torchrun may send SIGTERM from here on
            group.write_failure(error)
            _leave(group)
            if not isinstance(error, RankError) or error.reported:
                raise
            kept = "there is no store to resume it from" if store is None else f"resume it from the store {store}"
            raise RankError(f"{error}; {kept}") from None


def count_processes() -> int:
    """Number of processes, of the default process group or as set by torchrun."""
    if not processes.is_available():
        return 1
    if processes.is_initialized():
        return processes.get_world_size()
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in TORCHRUN_VARIABLES) else 1


def is_first_process() -> bool:
    """Whether this process writes and prints: rank 0, or the only one."""
    if count_processes() == 1:
        return True
    return (processes.get_rank() if processes.is_initialized() else int(os.environ["RANK"])) == 0


def join_group(device: torch.device) -> ProcessGroup:
    """Return the process group for a type of device, which lasts until a rank fails or the program ends."""
    if device.type not in _groups:
        _groups[device.type] = _make_group(device)
    return _groups[device.type]


def _make_group(device: torch.device) -> ProcessGroup:
    global _serial
    _serial += 1
    timeout = _timeout()
    allowed = timedelta(seconds=timeout)
    try:
        if not processes.is_initialized():  # processes that are slow to start are not lost
            processes.init_process_group("gloo", timeout=timedelta(seconds=max(timeout, START)))
            atexit.register(_leave_all)
        group = processes.new_group(backend="gloo", timeout=allowed)
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise RankError(
            f"the processes of this run did not meet within {max(timeout, START):g} seconds: {words}"
        ) from None
    store = processes.distributed_c10d._get_default_store()
    made = ProcessGroup(store, group, group, device.type != "cpu", f"attractor/failed/{_serial}", timeout)
    if device.type == "cuda" and processes.is_nccl_available() and _has_own_devices(made, device):
        # the watchdog of NCCL ends the program, so its timeout must be longer than ours
        made.data, made.staged = processes.new_group(backend="nccl", timeout=2 * allowed), False
    return made


def _timeout() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise InputError(f"{VARIABLE} must be a positive number of seconds, got {text!r}")
    return seconds


def _has_own_devices(group: ProcessGroup, device: torch.device) -> bool:
    """Whether every rank has a device of its own."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    return len(set(group.gather_integers(zlib.crc32(name.encode())).flatten().tolist())) == group.size


def _leave(group: ProcessGroup) -> None:
    for kind in [kind for kind, joined in _groups.items() if joined is group]:
        del _groups[kind]
    if group.control is not None:
        group.close()


def _leave_all() -> None:
    if processes.is_initialized():
        processes.destroy_process_group()


@contextmanager
def _handle_sigterm(group: ProcessGroup) -> Iterator[Callable[[], object]]:
    """Raise an error on SIGTERM, which torchrun sends to all processes when one is lost.

    Yields a function to call after another error, which leaves time to report it.
    """
    unset = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
        signal.SIG_DFL,
        _exit_after_grace,  # set by a run that failed
    )
    if not unset:
        yield lambda: None
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, _exit_after_grace)
        raise group.termination_error()

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: signal.signal(signal.SIGTERM, _exit_after_grace)
    except BaseException:
        signal.signal(signal.SIGTERM, _exit_after_grace)
        raise
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_after_grace(number: int, frame: Any) -> None:
    timer = threading.Timer(GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()
