"""Memory shared by the processes of a run on one machine."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from attractor.solvers.process_group import ProcessGroup

MEMORY = Path("/dev/shm")  # where Linux keeps files in memory: no other folder will do, for machines may share those
SIGN = 64  # bytes by which a rank knows that it has opened the file of rank 0 and not one of the same name elsewhere


class SharedMemory:
    """Shared memory of some bytes, which hold zeros at first. ``handle`` is the engine's own object for it."""

    def __init__(self, file: int, bytes: int, rank: int, size: int, timeout: float) -> None:
        self.monitor = ProcessMonitor(file, rank, size, timeout)
        self.rank, self.size = rank, size
        self.memory = torch.frombuffer(mmap.mmap(file, SIGN + bytes), dtype=torch.uint8)[SIGN:]
        self.handle: Any = None


class ProcessMonitor:
    """Whether the others are there."""

    def __init__(self, file: int, rank: int, size: int, timeout: float) -> None:
        self.file, self.rank, self.size, self.timeout = file, rank, size, timeout

    def __call__(self, waited: float) -> bool:
        if waited > self.timeout:
            raise TimeoutError("Timed out")
        return self.file >= 0 and not any(self._gone(rank) for rank in range(self.size) if rank != self.rank)

    def hold(self) -> None:
        """From here on the others see that this one is there."""
        import fcntl

        fcntl.lockf(self.file, fcntl.LOCK_EX, 1, self.rank)

    def _gone(self, rank: int) -> bool:
        import fcntl

        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, rank)
        return True

    def leave(self) -> None:
        """Closing the file opens the lock; the memory stays until nobody looks at it."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


def create_shared_memory(ranks: ProcessGroup, bytes: int) -> SharedMemory | None:
    """Memory shared by all ranks, which must call this together; None if they are on several machines or there is too little."""
    made, memory, file, everyone = None, None, -1, False
    try:
        if ranks.rank == 0 and hasattr(os, "posix_fallocate") and MEMORY.is_dir():
            with contextlib.suppress(OSError):
                made = _file(bytes)
        words = ranks.broadcast(None if made is None else {"path": np.array(made[0]), "sign": np.array(made[1])})
        with contextlib.suppress(OSError, ValueError):
            file = -1 if words is None else _opened(str(words["path"]), str(words["sign"]))
            if file >= 0:
                found = SharedMemory(file, bytes, ranks.rank, ranks.size, ranks.timeout)
                found.monitor.hold()
                memory = found
        everyone = bool(ranks.numbers(int(memory is not None)).all())
    finally:
        if made is not None:
            Path(made[0]).unlink(missing_ok=True)
        if file >= 0 and not everyone:
            os.close(file)
    return memory if everyone else None


def _file(bytes: int) -> tuple[str, str]:
    """The path of a file that has room for so many bytes, and the sign at its beginning."""
    sign = secrets.token_hex(SIGN // 2)
    number, path = tempfile.mkstemp(prefix="attractor-", dir=MEMORY)
    try:
        os.write(number, sign.encode())
        os.posix_fallocate(number, 0, SIGN + bytes)  # what is promised here is there when it is written to
    except BaseException:
        Path(path).unlink()
        raise
    finally:
        os.close(number)
    return path, sign


def _opened(path: str, sign: str) -> int:
    """The file, or -1 if it is another."""
    file = os.open(path, os.O_RDWR)
    same = False
    try:
        same = os.read(file, SIGN) == sign.encode()
    finally:
        if not same:
            os.close(file)
    return file if same else -1
