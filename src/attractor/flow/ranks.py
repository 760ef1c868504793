"""The processes of one run, while they march: what they say to each other.

Every rank follows the whole run with the same numbers, and only attention is shared out (:mod:`attractor.engines.spread`). So
the ranks must take the same decisions: they compare what they were given before the first step and their states after every
step, and the clock is that of rank 0.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import time as clock
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as processes
from torch import Tensor

from attractor.errors import InputError, RankError
from attractor.flow.board import Board, make

if TYPE_CHECKING:
    from attractor.flow.integration import Integration

POLL = 1.0  # seconds between looks at the notes of other ranks


class Ranks:
    """All processes: ``control`` carries small messages between the CPUs, ``data`` rows of tokens, between the devices or,
    ``staged``, through the memory of the CPUs. A rank that fails leaves a note in ``store`` under ``key``."""

    def __init__(self, store: Any, control: Any, data: Any, staged: bool, key: str, timeout: float) -> None:
        self.rank, self.size = processes.get_rank(), processes.get_world_size()
        self.store, self.control, self.data, self.staged = store, control, data, staged
        self.key, self.timeout = key, timeout
        self._board: Board | None = None
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

    def board(self, bytes: int) -> Board | None:
        """Memory of at least so many bytes that all ranks share; None where they are not on one machine. All ask alike."""
        held = 0 if self._board is None else self._board.memory.numel()
        if held < bytes <= self._refused / 2:
            if self._board is not None:
                self._leave_board()
                self.numbers(1)  # whether there is room for the next must not depend on who has left this one
            self._board = make(self, bytes)
            if self._board is None:
                self._refused = bytes
        return self._board if bytes <= self._refused / 2 else None

    def _leave_board(self) -> None:
        if self._board is not None:
            self._board.watch.leave()
        self._board = None

    def share(self, arrays: dict[str, np.ndarray] | None) -> dict[str, np.ndarray] | None:
        """The arrays of rank 0, for everyone."""
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

    def begin(self, run: Integration, definition: dict[str, Any], more: dict[str, Any]) -> None:
        """Refuse to start when the ranks were given different things; from here on they go in step."""
        from attractor.flow.store import describe

        words = describe(definition)[0]
        prints = {**words["fingerprints"], "versions": words["versions"], "attractor": words["attractor"], **more}
        seen = self.numbers(*(zlib.crc32(repr(item).encode()) for item in prints.values()))
        for rank in range(1, self.size):
            names = [name for name, same in zip(prints, (seen[rank] == seen[0]).tolist(), strict=True) if not same]
            if names:
                raise InputError(
                    f"the processes of a run must be given the same, but the {', '.join(names)} of rank {rank} and of rank 0 differ; "
                    "for a run of its own on every rank give spread=False"
                )
        run.beat, run.processes = self.beat, self.size

    def beat(self, run: Integration) -> float:
        """The time by the clock of rank 0; and the ranks make sure that they are still in the same state."""
        points = run.y.detach()
        bits = points.view(torch.int64 if points.element_size() == 8 else torch.int32).sum(dtype=torch.int64)
        steps = zlib.crc32(run.t.tobytes() + run.h.tobytes() + run.who.tobytes())
        (now,) = struct.unpack("q", struct.pack("d", clock.perf_counter()))
        seen = self.numbers(int(bits), steps, now)
        if bool((seen[:, :2] != seen[0, :2]).any()):
            raise RankError(
                "the processes of this run no longer hold the same state; run them on machines of one kind, with the same software and "
                "number of threads, and let laws and events depend on nothing but the tokens and the time"
            )
        return struct.unpack("d", struct.pack("q", int(seen[0, 2])))[0]

    def end(self) -> None:
        """Return only if all came to the end."""
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
        self._leave_board()
        groups = {id(group): group for group in (self.control, self.data)}
        self.control = self.data = None
        for key in list(groups):
            processes.destroy_process_group(groups.pop(key))
