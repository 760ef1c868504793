"""Sixteen tokens: one such solve, and a thousand of them at once, against warm and vmapped diffrax."""

from __future__ import annotations

from functools import cache

from attractor.bench import solvers
from attractor.bench.contest import Contest
from attractor.bench.settings import Settings
from attractor.bench.solves import solve_contest
from attractor.bench.sphere import uniform
from attractor.bench.tuning import Truth

TOKENS, BETA = 16, 9.0


def contests(settings: Settings) -> list[Contest]:
    until, members = settings.size(50.0, 5.0), settings.size(1000, 8)
    one = cache(lambda: Truth(uniform(TOKENS, 3, settings.seed), BETA, until))
    many = cache(lambda: Truth(uniform(TOKENS, 3, settings.seed, ensemble=members), BETA, until))
    where = f"n={TOKENS}, beta={BETA:g}, T={until:g}"
    return [
        solve_contest("small", f"small solve, {where}", one, {"diffrax Tsit5, warm": (solvers.diffrax_tsit5, 1.0)}),
        solve_contest(
            "small", f"{members} small solves, {where}", many, {"diffrax Tsit5, vmapped": (solvers.diffrax_tsit5, 2.0)}
        ),
    ]
