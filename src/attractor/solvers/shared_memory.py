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

MEMORY = Path("/dev/shm")  # files in memory on Linux; other folders may be shared by several machines
TOKEN_BYTES = (
    64  # random token at the start of the file: distinguishes it from a file of the same name on another machine
)


class SharedMemory:
    """Shared memory of some bytes, which hold zeros at first. ``handle`` is the engine's own object for it."""

    def __init__(self, file: int, bytes: int, rank: int, size: int, timeout: float) -> None:
        self.monitor = ProcessMonitor(file, rank, size, timeout)
        self.rank, self.size = rank, size
        self.memory = torch.frombuffer(mmap.mmap(file, TOKEN_BYTES + bytes), dtype=torch.uint8)[TOKEN_BYTES:]
        self.handle: Any = None


class ProcessMonitor:
    """Detects by file locks whether the other processes are alive."""

    def __init__(self, file: int, rank: int, size: int, timeout: float) -> None:
        self.file, self.rank, self.size, self.timeout = file, rank, size, timeout

    def __call__(self, waited: float) -> bool:
        if waited > self.timeout:
            raise TimeoutError("Timed out")
        return self.file >= 0 and not any(self._is_gone(rank) for rank in range(self.size) if rank != self.rank)

    def lock(self) -> None:
        """Lock this process's byte of the file, which shows the others that it is alive."""
        import fcntl

        fcntl.lockf(self.file, fcntl.LOCK_EX, 1, self.rank)

    def _is_gone(self, rank: int) -> bool:
        import fcntl

        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self.file, fcntl.LOCK_UN, 1, rank)
        return True

    def close(self) -> None:
        """Close the file, which releases the lock; the memory is freed with its last map."""
        if self.file >= 0:
            os.close(self.file)
        self.file = -1


def create_shared_memory(group: ProcessGroup, bytes: int) -> SharedMemory | None:
    """Memory shared by all ranks, which must call this together; None if they are on several machines or there is too little."""
    made, memory, file, everyone = None, None, -1, False
    try:
        if group.rank == 0 and hasattr(os, "posix_fallocate") and MEMORY.is_dir():
            with contextlib.suppress(OSError):
                made = _create_file(bytes)
        words = group.broadcast(None if made is None else {"path": np.array(made[0]), "token": np.array(made[1])})
        with contextlib.suppress(OSError, ValueError):
            file = -1 if words is None else _open_file(str(words["path"]), str(words["token"]))
            if file >= 0:
                found = SharedMemory(file, bytes, group.rank, group.size, group.timeout)
                found.monitor.lock()
                memory = found
        everyone = bool(group.gather_integers(int(memory is not None)).all())
    finally:
        if made is not None:
            Path(made[0]).unlink(missing_ok=True)
        if file >= 0 and not everyone:
            os.close(file)
    return memory if everyone else None


def _create_file(bytes: int) -> tuple[str, str]:
    """Create a file with room for so many bytes; return its path and the token at its start."""
    token = secrets.token_hex(TOKEN_BYTES // 2)
    number, path = tempfile.mkstemp(prefix="attractor-", dir=MEMORY)
    try:
        os.write(number, token.encode())
        os.posix_fallocate(number, 0, TOKEN_BYTES + bytes)  # fails here rather than at the first write
    except BaseException:
        Path(path).unlink()
        raise
    finally:
        os.close(number)
    return path, token


def _open_file(path: str, token: str) -> int:
    """Open the file; return -1 if it has another token."""
    file = os.open(path, os.O_RDWR)
    same = False
    try:
        same = os.read(file, TOKEN_BYTES) == token.encode()
    finally:
        if not same:
            os.close(file)
    return file if same else -1
