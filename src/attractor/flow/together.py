"""How the processes of a run find each other, and how they part when one of them is lost.

Under torchrun the first ``flow`` meets the other ranks; a process group that is there already is used. Messages between CPUs go
by gloo; rows on GPUs go by nccl where every rank has a GPU of its own, and through the memory of the CPUs where they share one.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as processes

from attractor.engines import spread
from attractor.errors import InputError, RankError
from attractor.flow.ranks import Ranks
from attractor.records import tensors

VARIABLE = "ATTRACTOR_TIMEOUT"
TIMEOUT = 300.0  # seconds without a sign of life after which a rank counts as lost
GRACE = 5.0  # seconds to say what happened, when told to end
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process

_joined: dict[str, Ranks] = {}  # by kind of device
_serial = 0  # of the next meeting: the ranks count alike


@contextmanager
def together(shared: bool, definition: dict[str, Any], store: str | Path | None) -> Iterator[Ranks | None]:
    """The processes that share a run, or None if this one is alone. Either all leave the block well, or all by an error."""
    if launched() == 1:
        yield None
        return
    if not shared:
        with spread.over(None):
            yield None
        return
    ranks = join(next((tensor.device for tensor in tensors(definition["state"])), torch.device("cpu")))
    with _told_to_end(ranks) as heard, spread.over(ranks):
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


def join(device: torch.device) -> Ranks:
    """Meet the other processes; they stay together until one fails or the program ends."""
    if device.type not in _joined:
        _joined[device.type] = _meet(device)
    return _joined[device.type]


def _meet(device: torch.device) -> Ranks:
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
    ranks = Ranks(store, group, group, device.type != "cpu", f"attractor/failed/{_serial}", timeout)
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


def _own_devices(ranks: Ranks, device: torch.device) -> bool:
    """Whether no two ranks share a device."""
    name = f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}"
    return len(set(ranks.numbers(zlib.crc32(name.encode())).flatten().tolist())) == ranks.size


def _leave(ranks: Ranks) -> None:
    for kind in [kind for kind, joined in _joined.items() if joined is ranks]:
        del _joined[kind]
    if ranks.control is not None:
        ranks.part()


def _leave_all() -> None:
    if processes.is_initialized():
        processes.destroy_process_group()


@contextmanager
def _told_to_end(ranks: Ranks) -> Iterator[Callable[[], object]]:
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
