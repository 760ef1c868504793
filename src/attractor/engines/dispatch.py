"""Selection of an engine for a problem by device, dtype, size and need of gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.engines import blockwise, distributed, fused, reference, spectral, triton
from attractor.engines.problem import MODES, Mode, Problem, Results
from attractor.errors import InputError, UnsupportedError
from attractor.registry import check_name, find


@dataclass(frozen=True)
class Engine:
    """An implementation of ``attend``.

    Attributes
    ----------
    run : computes output and logsumexp of a problem.
    accepts : whether the engine may be selected for a problem automatically.
    priority : of several engines that accept a problem, the one with the highest priority runs it.
    reason : why the engine does not work on this machine; empty if it does.
    obstacle : why the engine cannot run a problem even if requested by name; without it, it runs what it accepts.
    supports_offset : whether it honours ``Problem.offset``, and so can run some rows of a problem with a positional mask.
    run_distributed : an algorithm of its own for several processes (see ``distributed``).
    linear : whether its cost is linear in the number of tokens.
    """

    name: str
    run: Callable[[Problem], Results]
    accepts: Callable[[Problem], bool]
    priority: Callable[[Problem], float]
    reason: str = ""
    obstacle: Callable[[Problem], str] | None = None
    supports_offset: bool = False
    run_distributed: distributed.RunDistributed | None = None
    linear: bool = False

    @property
    def works(self) -> bool:
        return not self.reason

    def check(self, problem: Problem | None = None) -> None:
        """Raise UnsupportedError if the engine does not work here, or cannot run the problem."""
        if not self.works:
            raise UnsupportedError(f"engine {self.name!r} does not work here: {self.reason}")
        if problem is None:
            return
        if self.obstacle is not None:
            if why := self.obstacle(problem):
                raise UnsupportedError(f"engine {self.name!r} cannot run this problem: {why}")
        elif not self.accepts(problem):
            raise UnsupportedError(
                f"engine {self.name!r} cannot run this problem (mode {problem.mode}, {problem.q.dtype})"
            )


_engines: dict[str, Engine] = {}
_requested: ContextVar[str | None] = ContextVar("attractor_engine", default=None)
_used: ContextVar[set[str] | None] = ContextVar("attractor_engines_used", default=None)


def register(engine: Engine) -> None:
    """Add an engine to those that ``choose`` selects from."""
    _engines[engine.name] = engine


def available() -> list[Engine]:
    """All engines, those that work first."""
    return sorted(_engines.values(), key=lambda engine: (not engine.works, engine.name))


def _find(name: str) -> Engine:
    if name == "native":
        raise InputError(
            "'native' is the compiled loop for small systems, not an engine; it is used where no engine is named"
        )
    return find(name, dict(sorted(_engines.items())), "engine")


@contextmanager
def using(name: str | None) -> Iterator[set[str]]:
    """Run problems inside the block by the engine of this name (None: any); yields the names of the engines that ran."""
    if name is not None:
        _find(name).check()
    used: set[str] = set()
    tokens = _requested.set(name), _used.set(used)
    try:
        yield used
    finally:
        _requested.reset(tokens[0])
        _used.reset(tokens[1])


def choose(problem: Problem, name: str | None = None) -> Engine:
    """The engine that runs this problem."""
    name = name or _requested.get()
    if name is not None:
        engine = _find(name)
        engine.check(problem)
        return engine
    moved = problem.is_positional and problem.offset != 0
    able = [
        engine
        for engine in _engines.values()
        if engine.works and engine.accepts(problem) and (engine.supports_offset or not moved)
    ]
    return max(able, key=lambda engine: engine.priority(problem))


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
) -> Results:
    """Attention of queries over keys.

    With scores s_ij = <q_i, k_j> + b_j the output is sum_j w_ij v_j, where w_ij is softmax_j(s_ij), exp(s_ij), sigmoid(s_ij)
    or s_ij by ``mode``.

    Parameters
    ----------
    q, k : queries (..., n, e) and keys (..., m, e).
    v : values (..., m, c); None computes the logsumexp alone.
    key_bias : (..., m), added to the scores.
    causal, window, visible, skip_self : the mask, see :class:`Problem`.
    tolerance : relative error of rows that an approximating engine may make (``spectral`` then uses a shorter series);
        by default no engine makes more than rounding errors.
    engine : name of the engine to use; by default the fastest that accepts the problem.

    Returns
    -------
    output (..., n, c), None without values; logsumexp (..., n), None in the modes sigmoid and linear.
    """
    check_name(mode, MODES, "mode")
    if visible is not None:
        visible = visible.expand(*visible.shape[:-2], q.shape[-2], k.shape[-2])
    problem = Problem(q, k, v, key_bias, mode, causal, window, visible, skip_self, tolerance=tolerance)
    problem.check()
    chosen = choose(problem, engine)
    used = _used.get()
    if used is not None:
        used.add(chosen.name)
    if distributed.should_distribute(problem, chosen.supports_offset, chosen.linear):
        return distributed.run(problem, chosen.run, chosen.run_distributed)
    return chosen.run(problem)


register(Engine("reference", reference.run, lambda problem: True, reference.priority, supports_offset=True))
register(Engine("blockwise", blockwise.run, lambda problem: True, blockwise.priority, supports_offset=True))
register(
    Engine("fused", fused.run, fused.accepts, fused.priority, fused.reason, fused.obstacle, True, fused.run_distributed)
)
register(Engine("triton", triton.run, triton.accepts, triton.priority, triton.reason, triton.obstacle, True))
register(
    Engine(
        "spectral", spectral.run, spectral.accepts, spectral.priority, spectral.reason, spectral.obstacle, linear=True
    )
)


def _use_one_thread() -> None:
    """In a forked child: PyTorch's threads do not exist there, and the first operation that uses them would wait forever."""
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_use_one_thread)
