"""Engines register themselves; ``attend`` picks one by device, dtype, size and need of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import Tensor

from attractor.engines import blockwise, fused, reference, spectral, triton
from attractor.engines import distributed as spread
from attractor.engines.problem import MODES, Mode, Problem
from attractor.errors import UnsupportedError
from attractor.registry import check_name, find

Run = Callable[[Problem], tuple[Tensor | None, Tensor | None]]


@dataclass(frozen=True)
class Engine:
    """An implementation of ``attend``: ``reason`` says why it does not work here, or is empty.

    ``accepts`` says whether it would take a problem unasked; ``obstacle`` says why it cannot even when asked by name, or is
    empty (without it, an engine can do what it accepts).
    One that honours ``Problem.offset`` says so by ``places``, and may be given some rows of a problem whose mask goes by place.
    ``share`` computes a problem with other ranks, for engines whose rows depend on each other (see ``spread``). The cost of one that
    is ``linear`` grows as the number of tokens does.
    """

    name: str
    run: Run
    accepts: Callable[[Problem], bool]
    rank: Callable[[Problem], float]
    reason: str = ""
    obstacle: Callable[[Problem], str] | None = None
    places: bool = False
    share: spread.Share | None = None
    linear: bool = False

    @property
    def works(self) -> bool:
        return not self.reason

    def cannot(self, problem: Problem) -> str:
        """A sentence if it cannot run a problem; empty if it can."""
        why = self.obstacle(problem) if self.obstacle is not None else ""
        if why:
            return f"engine {self.name!r} cannot run this problem: {why}"
        if self.obstacle is None and not self.accepts(problem):
            return f"engine {self.name!r} cannot run this problem (mode {problem.mode}, {problem.q.dtype})"
        return ""


_engines: dict[str, Engine] = {}
_asked: ContextVar[str | None] = ContextVar("attractor_engine", default=None)
_seen: ContextVar[set[str] | None] = ContextVar("attractor_engines_seen", default=None)


def register(engine: Engine) -> None:
    """Make an engine known; the one with the highest rank that accepts a problem runs it."""
    _engines[engine.name] = engine


def available() -> list[Engine]:
    """All engines, those that work first."""
    return sorted(_engines.values(), key=lambda engine: (not engine.works, engine.name))


def _working(name: str) -> Engine:
    """The engine of that name, which must work here."""
    engine = find(name, dict(sorted(_engines.items())), "engine")
    if not engine.works:
        raise UnsupportedError(f"engine {name!r} does not work here: {engine.reason}")
    return engine


@contextmanager
def using(name: str | None) -> Iterator[set[str]]:
    """Ask for one engine by name inside the block (None: choose freely); yields the names of those that ran."""
    if name is not None:
        _working(name)
    seen: set[str] = set()
    asked, collected = _asked.set(name), _seen.set(seen)
    try:
        yield seen
    finally:
        _asked.reset(asked)
        _seen.reset(collected)


def choose(problem: Problem, name: str | None = None) -> Engine:
    """The engine that would run this problem."""
    name = name or _asked.get()
    if name is not None:
        engine = _working(name)
        if why := engine.cannot(problem):
            raise UnsupportedError(why)
        return engine
    moved = problem.placed and problem.offset != 0
    able = [
        engine
        for engine in _engines.values()
        if engine.works and engine.accepts(problem) and (engine.places or not moved)
    ]
    return max(able, key=lambda engine: engine.rank(problem))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    key_bias: Tensor | None = None,
    mode: Mode = "softmax",
    causal: bool = False,
    *,
    window: int | None = None,
    visible: Tensor | None = None,
    skip_self: bool = False,
    tolerance: float | None = None,
    engine: str | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Attention of queries over keys: ``(output (..., n, c), logsumexp (..., n))``; see ``engines.contract``.

    ``v=None`` asks for the logsumexp alone. ``tolerance`` is a relative error of rows that engines may make which approximate
    (``spectral``: its series is then shorter); by default none makes more than rounding.
    """
    check_name(mode, MODES, "mode")
    if visible is not None:
        visible = visible.expand(*visible.shape[:-2], q.shape[-2], k.shape[-2])
    problem = Problem(q, k, v, key_bias, mode, causal, window, visible, skip_self, tolerance=tolerance)
    problem.check()
    chosen = choose(problem, engine)
    seen = _seen.get()
    if seen is not None:
        seen.add(chosen.name)
    if spread.worthwhile(problem, chosen.places, chosen.linear):
        return spread.run(problem, chosen.run, chosen.share)
    return chosen.run(problem)


register(Engine("reference", reference.run, lambda problem: True, reference.rank, places=True))
register(Engine("blockwise", blockwise.run, lambda problem: True, blockwise.rank, places=True))
register(
    Engine("fused", fused.run, fused.accepts, fused.rank, fused.reason, fused.obstacle, places=True, share=fused.share)
)
register(
    Engine(
        "spectral",
        spectral.run,
        spectral.accepts,
        spectral.rank,
        spectral.reason,
        obstacle=spectral.obstacle,
        linear=True,
    )
)
register(
    Engine("triton", triton.run, triton.accepts, triton.rank, triton.reason, obstacle=triton.obstacle, places=True)
)
