"""Attention over several processes: every rank holds all keys and computes some of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from attractor.engines.problem import Problem, Results

ROW_BLOCK = 64  # rows that the fused engine processes together: shares of whole blocks give the bits of one process
MIN_PAIRS = {"cpu": 1 << 21, "cuda": 1 << 28}  # pairs that take about as long as an exchange
MIN_PAIRS_LINEAR = 1 << 36  # the same for engines with cost linear in the tokens


class SharedMemory(Protocol):
    """Memory that ranks on one machine share, initially zero; ``handle`` is the engine's own object for it."""

    rank: int
    size: int
    memory: Tensor  # bytes
    handle: Any

    @property
    def monitor(self) -> Callable[[float], bool]:
        """Called with the seconds a rank has waited; returns whether all ranks are alive, and may raise."""
        ...


class ProcessGroup(Protocol):
    """The processes of a distributed run."""

    rank: int
    size: int

    def gather(self, part: Tensor) -> Tensor:
        """The parts of all ranks, stacked by rank: (size, ...)."""
        ...

    def shared_memory(self, bytes: int) -> SharedMemory | None:
        """At least so many bytes of shared memory; None if the ranks cannot share memory."""
        ...

    def lost(self, error: Exception) -> Exception:
        """The exception to raise when a rank does not answer."""
        ...


RunDistributed = Callable[[Problem, ProcessGroup], Results | None]  # None: divide the rows instead


_group: ContextVar[ProcessGroup | None] = ContextVar("attractor_process_group", default=None)


def is_active() -> bool:
    """Whether problems are distributed over several processes."""
    return _group.get() is not None


@contextmanager
def use_group(group: ProcessGroup | None) -> Iterator[None]:
    """Distribute the problems inside the block, in the same order on every rank; None: compute them on this rank alone."""
    token = _group.set(group)
    try:
        yield
    finally:
        _group.reset(token)


def should_distribute(problem: Problem, supports_offset: bool, linear: bool = False) -> bool:
    """Whether a problem is large enough to distribute and its rows can be divided; the same answer on every rank."""
    if _group.get() is None:
        return False
    return (
        problem.pairs >= (MIN_PAIRS_LINEAR if linear else MIN_PAIRS.get(problem.q.device.type, MIN_PAIRS["cuda"]))
        and (supports_offset or not problem.is_positional)
        and (problem.v is not None or problem.has_logsumexp)
        and not problem.needs_gradient
        and not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
    )


def run(
    problem: Problem, engine: Callable[[Problem], Results], run_distributed: RunDistributed | None = None
) -> Results:
    """Results of all ranks together: by the engine's own distributed algorithm, or else each rank computes some rows."""
    group = _group.get()
    assert group is not None
    found = run_distributed(problem, group) if run_distributed is not None and group.size > 1 else None
    return _run_by_rows(problem, engine, group) if found is None else found


def _run_by_rows(problem: Problem, engine: Callable[[Problem], Results], group: ProcessGroup) -> Results:
    shares = partition_rows(problem, group.size)
    height = max(sum(rows.stop - rows.start for rows in share) for share in shares)
    # one message with all rows of the output and then all logsumexps, so that each is contiguous
    width, has_logsumexp = 0 if problem.v is None else problem.v.shape[-1], problem.has_logsumexp
    message = problem.q.new_zeros(problem.batch.numel() * height * (width + has_logsumexp))
    parts = _unpack(message[None], problem.batch, height, width)
    for rows, place in _local_rows(shares[group.rank]):
        for part, result in zip(parts, engine(problem.take_rows(rows)), strict=True):
            if result is not None:
                part[0].narrow(len(problem.batch), place.start, place.stop - place.start).copy_(result)
    gathered = _unpack(group.gather(message), problem.batch, height, width)
    wanted = (problem.v is not None, has_logsumexp)
    output, logsumexp = (
        _assemble(parts, shares, problem) if want else None for parts, want in zip(gathered, wanted, strict=True)
    )
    return output, logsumexp


def _unpack(messages: Tensor, batch: torch.Size, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Views of outputs (ranks, ..., height, width) and logsumexps (ranks, ..., height); either may be empty."""
    count = batch.numel() * height * width
    outputs = messages[:, :count].unflatten(1, (*batch, height, width))
    return outputs, messages[:, count:].unflatten(1, (*batch, -1 if messages.shape[1] > count else 0))


def _assemble(parts: Tensor, shares: list[list[slice]], problem: Problem) -> Tensor:
    """The rows of all ranks in the order of the problem."""
    axis = len(problem.batch)
    whole = parts.new_empty((*problem.batch, problem.queries, *parts.shape[axis + 2 :]))
    for share, part in zip(shares, parts, strict=True):
        for rows, place in _local_rows(share):
            count = rows.stop - rows.start
            whole.narrow(axis, rows.start, count).copy_(part.narrow(axis, place.start, count))
    return whole


def partition_rows(problem: Problem, size: int) -> list[list[slice]]:
    """The rows of each rank; under a causal mask an early and a late piece each, so that all have equal work."""
    paired = problem.causal and problem.window is None
    count = 2 * size if paired else size
    block = ROW_BLOCK if problem.queries >= 4 * count * ROW_BLOCK else 1
    blocks = -(-problem.queries // block)
    edges = [min(block * (blocks * index // count), problem.queries) for index in range(count + 1)]
    cuts = [slice(start, stop) for start, stop in pairwise(edges)]
    return [[cuts[rank], cuts[-1 - rank]] if paired else [cuts[rank]] for rank in range(size)]


def _local_rows(share: list[slice]) -> Iterator[tuple[slice, slice]]:
    """Pairs of (rows of the problem, the same rows counted within their rank)."""
    first = 0
    for rows in share:
        stop = first + rows.stop - rows.start
        if stop > first:
            yield rows, slice(first, stop)
        first = stop
