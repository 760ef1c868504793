"""Attention over several processes: all keys on every rank, queries divided among ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from attractor.engines.problem import Problem

GROUP = 64  # rows that the fused engine may treat together: pieces that hold whole groups give the bits of one process
SMALLEST = {"cpu": 1 << 21, "cuda": 1 << 28}  # pairs that take about as long as an exchange
LINEAR = 1 << 36  # the same for an engine whose cost is linear in the tokens: the message is too


Results = tuple[Tensor | None, Tensor | None]


class Board(Protocol):
    """Memory that ranks of one machine share, zero at first; ``kept`` is for what the engine that writes there knows about it."""

    rank: int
    size: int
    memory: Tensor  # bytes
    kept: Any

    @property
    def watch(self) -> Callable[[float], bool]:
        """Whether all are there; it is told how many seconds one has waited, and may raise."""
        ...


class Ranks(Protocol):
    """The processes that share a run."""

    rank: int
    size: int

    def gather(self, part: Tensor) -> Tensor:
        """The parts of all ranks, stacked by rank: (size, ...)."""
        ...

    def board(self, bytes: int) -> Board | None:
        """Memory of at least so many bytes, where there is such."""
        ...

    def lost(self, error: Exception) -> Exception:
        """What to raise when a rank does not answer."""
        ...


Share = Callable[[Problem, Ranks], Results | None]  # None: cut the rows


_ranks: ContextVar[Ranks | None] = ContextVar("attractor_ranks", default=None)


def active() -> bool:
    """Whether problems are spread over several processes."""
    return _ranks.get() is not None


@contextmanager
def over(ranks: Ranks | None) -> Iterator[None]:
    """Spread the problems inside the block, which every rank must meet in the same order; None: keep them here."""
    before = _ranks.set(ranks)
    try:
        yield
    finally:
        _ranks.reset(before)


def worthwhile(problem: Problem, places: bool, linear: bool = False) -> bool:
    """Whether a problem is large enough, and of a kind that can be cut: the answer must be the same on every rank."""
    if _ranks.get() is None:
        return False
    return (
        problem.pairs >= (LINEAR if linear else SMALLEST.get(problem.q.device.type, SMALLEST["cuda"]))
        and (places or not problem.placed)
        and (problem.v is not None or _sums(problem))
        and not problem.needs_gradient
        and not torch.compiler.is_compiling()
        and torch._C._functorch.maybe_current_level() is None  # type: ignore[attr-defined]
    )


def run(problem: Problem, engine: Callable[[Problem], Results], share: Share | None = None) -> Results:
    """This rank's rows by the engine, all others from the other ranks; or as the engine shares its problems."""
    ranks = _ranks.get()
    assert ranks is not None
    shared = share(problem, ranks) if share is not None and ranks.size > 1 else None
    return _by_rows(problem, engine, ranks) if shared is None else shared


def _by_rows(problem: Problem, engine: Callable[[Problem], Results], ranks: Ranks) -> Results:
    shares = pieces(problem, ranks.size)
    height = max(sum(rows.stop - rows.start for rows in share) for share in shares)
    # one message: all rows of the output and then all logsumexps, so that each lie together
    width, sums = 0 if problem.v is None else problem.v.shape[-1], _sums(problem)
    message = problem.q.new_zeros(problem.batch.numel() * height * (width + sums))
    parts = _unpacked(message[None], problem.batch, height, width)
    for rows, place in _places(shares[ranks.rank]):
        for part, result in zip(parts, engine(problem.part(rows)), strict=True):
            if result is not None:
                part[0].narrow(len(problem.batch), place.start, place.stop - place.start).copy_(result)
    everyone = _unpacked(ranks.gather(message), problem.batch, height, width)
    wanted = (problem.v is not None, sums)
    output, logsumexp = (
        _assembled(parts, shares, problem) if want else None for parts, want in zip(everyone, wanted, strict=True)
    )
    return output, logsumexp


def _unpacked(messages: Tensor, batch: torch.Size, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Outputs (ranks, ..., height, width) and logsumexps (ranks, ..., height), in place; either may be empty."""
    count = batch.numel() * height * width
    outputs = messages[:, :count].unflatten(1, (*batch, height, width))
    return outputs, messages[:, count:].unflatten(1, (*batch, -1 if messages.shape[1] > count else 0))


def _assembled(parts: Tensor, shares: list[list[slice]], problem: Problem) -> Tensor:
    """The rows of all ranks in their order."""
    axis = len(problem.batch)
    whole = parts.new_empty((*problem.batch, problem.queries, *parts.shape[axis + 2 :]))
    for share, part in zip(shares, parts, strict=True):
        for rows, place in _places(share):
            count = rows.stop - rows.start
            whole.narrow(axis, rows.start, count).copy_(part.narrow(axis, place.start, count))
    return whole


def pieces(problem: Problem, size: int) -> list[list[slice]]:
    """The rows of each rank."""
    paired = problem.causal and problem.window is None
    count = 2 * size if paired else size
    group = GROUP if problem.queries >= 4 * count * GROUP else 1
    groups = -(-problem.queries // group)
    edges = [min(group * (groups * index // count), problem.queries) for index in range(count + 1)]
    cuts = [slice(start, stop) for start, stop in pairwise(edges)]
    return [[cuts[rank], cuts[-1 - rank]] if paired else [cuts[rank]] for rank in range(size)]


def _places(share: list[slice]) -> Iterator[tuple[slice, slice]]:
    """Rows of the problem, and where they stand among those of their rank."""
    first = 0
    for rows in share:
        stop = first + rows.stop - rows.start
        if stop > first:
            yield rows, slice(first, stop)
        first = stop


def _sums(problem: Problem) -> bool:
    return problem.mode in ("softmax", "exponential")
