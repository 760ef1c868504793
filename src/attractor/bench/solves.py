"""Whole solves: 1024 tokens on the sphere to T = 50 with error 1e-6, everyone at a tolerance tuned to that."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from attractor.bench import solvers
from attractor.bench.contest import Contender, Contest, Ready
from attractor.bench.settings import Settings
from attractor.bench.sphere import uniform
from attractor.bench.tuning import GOAL, Truth, best_of, tuned

BETAS = (1.0, 9.0, 25.0, 81.0)
METHODS = ("dopri5", "dop853")
# name of the peer: its solver, and the least ratio to ours
PEERS: dict[str, tuple[Callable[..., solvers.Solve], float]] = {
    "torchdiffeq dopri5, torch naive": (solvers.torchdiffeq_dopri5, 10.0),
    "scipy DOP853, numpy": (solvers.scipy_dop853, 15.0),
    "diffrax Tsit5, warm": (solvers.diffrax_tsit5, 2.5),
}


def contests(settings: Settings) -> list[Contest]:
    """One contest for each inverse temperature."""
    n, until = settings.size(1024, 32), settings.size(50.0, 5.0)
    return [
        solve_contest(
            group="solves",
            name=f"solve to error 1e-6, beta={beta:g}, n={n}, T={until:g}",
            truth=cache(lambda beta=beta: Truth(uniform(n, 3, settings.seed), beta, until)),
            peers=PEERS,
            variants={"attractor, merge=False": {"merge": False}},
        )
        for beta in settings.size(BETAS, (9.0,))
    ]


def solve_contest(
    group: str,
    name: str,
    truth: Callable[[], Truth],
    peers: dict[str, tuple[Callable[..., solvers.Solve], float]],
    variants: dict[str, dict[str, Any]] | None = None,
) -> Contest:
    """``flow`` by the better of its two adaptive methods against peers; variants of ours run beside it, without target."""

    def own(**options: Any) -> Ready:
        problem = truth()
        solves = {
            method: solvers.ours(problem.x, problem.beta, problem.until, method=method, **options) for method in METHODS
        }
        return best_of(solves, problem.error)

    def theirs(solver: Callable[..., solvers.Solve]) -> Ready:
        problem = truth()
        return tuned(solver(problem.x, problem.beta, problem.until), problem.error)

    beside = [Contender(label, lambda options=options: own(**options)) for label, options in (variants or {}).items()]
    return Contest(
        group=group,
        name=name,
        ours=Contender("attractor flow", own),
        peers=(
            *(
                Contender(label, lambda solver=solver: theirs(solver), least)
                for label, (solver, least) in peers.items()
            ),
            *beside,
        ),
        error=lambda result: truth().error(result),
        tolerance=GOAL,
        check=lambda: truth().checked(),
    )
