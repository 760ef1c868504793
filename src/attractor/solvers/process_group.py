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
from attractor.solvers.store import describe

if TYPE_CHECKING:
    from attractor.solvers.integration import Integration

POLL = 1.0  # seconds between looks at the notes of other ranks


class ProcessGroup:
    """All processes: ``control`` carries small messages between the CPUs, ``data`` rows of tokens, between the devices or,
    ``staged``, through the memory of the CPUs. A rank that fails leaves a note in ``store`` under ``key``."""

    def __init__(self, store: Any, control: Any, data: Any, staged: bool, key: str, timeout: float) -> None:
        self.rank, self.size = processes.get_rank(), processes.get_world_size()
        self.store, self.control, self.data, self.staged = store, control, data, staged
        self.key, self.timeout = key, timeout
        self._shared: SharedMemory | None = None
        self._refused = math.inf if data is control and not staged else 0.0  # bytes that could not be had

    # ------------------------------------------------------------------ messages

    def gather(self, part: Tensor) -> Tensor:
        """The parts of all ranks, stacked by rank."""
        return self._gather(part.cpu() if self.staged else part.contiguous(), self.data).to(part.device)

    def numbers(self, *numbers: int) -> Tensor:
        """Some whole numbers of every rank, (size, numbers)."""
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
        """For a device, without blocking: a signal must come through, and a lost rank gives no other sign."""
        began = look = clock.monotonic()
        while not work.is_completed():
            now = clock.monotonic()
            if now - began > self.timeout:
                raise RuntimeError("Timed out")
            if now - look > POLL:
                look = now
                if self.store.check([self.key]):
                    raise RuntimeError("one of them left a note")
        work.wait()

    def shared_memory(self, bytes: int) -> SharedMemory | None:
        """Memory of at least so many bytes that all ranks share; None where they are not on one machine. All ask alike."""
        held = 0 if self._shared is None else self._shared.memory.numel()
        if held < bytes <= self._refused / 2:
            if self._shared is not None:
                self._leave_shared_memory()
                self.numbers(1)  # whether there is room for the next must not depend on who has left this one
            self._shared = create_shared_memory(self, bytes)
            if self._shared is None:
                self._refused = bytes
        return self._shared if bytes <= self._refused / 2 else None

    def _leave_shared_memory(self) -> None:
        if self._shared is not None:
            self._shared.monitor.leave()
        self._shared = None

    def broadcast(self, arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
        """Send the arrays of rank 0 to all ranks."""
        file = io.BytesIO()
        if self.rank == 0 and arrays is not None:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        size = int(self.numbers(file.tell())[0])
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

    def check_agreement(self, definition: dict[str, Any], more: dict[str, Any]) -> None:
        """Raise if the ranks were given different definitions."""
        words = describe(definition)[0]
        prints = {**words["fingerprints"], "versions": words["versions"], "attractor": words["attractor"], **more}
        seen = self.numbers(*(zlib.crc32(repr(item).encode()) for item in prints.values()))
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
        seen = self.numbers(int(bits), steps, now)
        if bool((seen[:, :2] != seen[0, :2]).any()):
            raise RankError(
                "the processes of this run no longer hold the same state; run them on machines of one kind, with the same software and "
                "number of threads, and let laws and events depend on nothing but the tokens and the time"
            )
        return struct.unpack("d", struct.pack("q", int(seen[0, 2])))[0]

    def wait_for_all(self) -> None:
        """Return once all ranks have reached the end."""
        self.numbers(1)

    # ------------------------------------------------------------------ failure

    def lost(self, error: Exception) -> RankError:
        """Why the others do not answer: what the one that failed wrote down, or that it is gone."""
        if isinstance(error, RankError):  # a signal came while we waited
            return error
        note = ""
        with contextlib.suppress(RuntimeError):  # the store may have gone with the process that held it
            note = self.store.get(self.key).decode() if self.store.check([self.key]) else ""
        if note:
            return RankError(note, told=True)
        silent = "imed out" in str(error)
        words = f"no answer in {self.timeout:g} seconds" if silent else "the connection was closed"
        return RankError(f"a process of this run was lost: {words}")

    def told_to_end(self) -> RankError:
        """What SIGTERM means: a rank has failed and said why, or was killed, or someone ended torchrun itself."""
        found = self.lost(RuntimeError())
        if found.told:
            return found
        return RankError("the processes of this run were told to end, as they are when one of them is lost")

    def note(self, error: BaseException) -> None:
        """Tell the others why this rank leaves."""
        if not isinstance(error, RankError):
            with contextlib.suppress(RuntimeError):
                words = str(error) or type(error).__name__
                self.store.compare_set(self.key, "", f"rank {self.rank} failed: {words}")

    def part(self) -> None:
        """Close the connections, which wakes those that wait."""
        self._leave_shared_memory()
        groups = {id(group): group for group in (self.control, self.data)}
        self.control = self.data = None
        for key in list(groups):
            processes.destroy_process_group(groups.pop(key))


VARIABLE = "ATTRACTOR_TIMEOUT"
TIMEOUT = 300.0  # seconds without a sign of life after which a rank counts as lost
GRACE = 5.0  # seconds to say what happened, when told to end
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process

_joined: dict[str, ProcessGroup] = {}  # by kind of device
_serial = 0  # of the next meeting: the ranks count alike


@contextmanager
def join_processes(shared: bool, definition: dict[str, Any], store: str | Path | None) -> Iterator[ProcessGroup | None]:
    """The processes that share a run, or None if this one is alone. Either all leave the block well, or all by an error."""
    if launched() == 1:
        yield None
        return
    if not shared:
        with distributed.use_group(None):
            yield None
        return
    ranks = join(next((tensor.device for tensor in tensors(definition["state"])), torch.device("cpu")))
    with _told_to_end(ranks) as heard, distributed.use_group(ranks):
        try:
            yield ranks
        except BaseException as error:
            heard()  # what torchrun says now must not come in between
            ranks.note(error)
            _leave(ranks)
            if not isinstance(error, RankError) or error.told:
                raise
            kept = "there is no store to resume it from" if store is None else f"resume it from the store {store}"
            raise RankError(f"{error}; {kept}") from None


def launched() -> int:
    """How many processes there are: in the process group if there is one, or as torchrun says."""
    if not processes.is_available():
        return 1
    if processes.is_initialized():
        return processes.get_world_size()
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in PLACE) else 1


def leads() -> bool:
    """Whether this process is the one that writes and prints: rank 0, or the only one."""
    if launched() == 1:
        return True
    return (processes.get_rank() if processes.is_initialized() else int(os.environ["RANK"])) == 0


def join(device: torch.device) -> ProcessGroup:
    """Meet the other processes; they stay together until one fails or the program ends."""
    if device.type not in _joined:
        _joined[device.type] = _meet(device)
    return _joined[device.type]


def _meet(device: torch.device) -> ProcessGroup:
    global _serial
    _serial += 1
    timeout = _timeout()
    patience = timedelta(seconds=timeout)
    try:
        if not processes.is_initialized():
            processes.init_process_group("gloo", timeout=patience)
            atexit.register(_leave_all)
        group = processes.new_group(backend="gloo", timeout=patience)
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise RankError(f"the processes of this run did not meet within {timeout:g} seconds: {words}") from None
    store = processes.distributed_c10d._get_default_store()
    ranks = ProcessGroup(store, group, group, device.type != "cpu", f"attractor/failed/{_serial}", timeout)
    if device.type == "cuda" and processes.is_nccl_available() and _own_devices(ranks, device):
        # its own watchdog ends the whole program: it must not come before our timeout
        ranks.data, ranks.staged = processes.new_group(backend="nccl", timeout=2 * patience), False
    return ranks


def _timeout() -> float:
    text = os.environ.get(VARIABLE, "")
    try:
        seconds = float(text or TIMEOUT)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise InputError(f"{VARIABLE} must be a positive number of seconds, got {text!r}")
    return seconds


def _own_devices(ranks: ProcessGroup, device: torch.device) -> bool:
    """Whether no two ranks share a device."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    return len(set(ranks.numbers(zlib.crc32(name.encode())).flatten().tolist())) == ranks.size


def _leave(ranks: ProcessGroup) -> None:
    for kind in [kind for kind, joined in _joined.items() if joined is ranks]:
        del _joined[kind]
    if ranks.control is not None:
        ranks.part()


def _leave_all() -> None:
    if processes.is_initialized():
        processes.destroy_process_group()


@contextmanager
def _told_to_end(ranks: ProcessGroup) -> Iterator[Callable[[], object]]:
    """When one process is lost torchrun sends the others SIGTERM: make that an error like any other, with time to say so. Yields what
    to call when there is an error already."""
    mine = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
        signal.SIG_DFL,
        _end_soon,  # left behind by a run that failed
    )
    if not mine:
        yield lambda: None
        return

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, _end_soon)
        raise ranks.told_to_end()

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: signal.signal(signal.SIGTERM, _end_soon)
    except BaseException:
        signal.signal(signal.SIGTERM, _end_soon)
        raise
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_soon(number: int, frame: Any) -> None:
    timer = threading.Timer(GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()
