"""A long run on the sphere (softmax, beta = 25, until t = 1000) with merging and without, contenders interleaved.

    OMP_NUM_THREADS=1 python benchmarks/merging.py [--tokens 2048] [--rounds 3] [--seed 0] [--rtol 1e-8] [--json]

Prints the seconds and evaluations of each contender, how many times longer the run without merging took (the median over
rounds of the ratio within a round, fastest to fastest, and by processor time, which other work on the machine disturbs less),
and how far its tokens end from those of that run. ``--save default``
keeps the 201 states that ``flow`` keeps by itself, which costs every contender evaluations; otherwise only the last is
kept. Takes about a minute a round with 2048 tokens on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import attractor as at

CONTENDERS: dict[str, float | bool | None] = {"merge=1e-3": 1e-3, "merge=None": None, "merge=False": False}


def race(given: argparse.Namespace) -> list[dict[str, Any]]:
    law, tokens = at.Attention.isotropic(3, given.beta), at.Tokens.uniform(given.tokens, 3, seed=given.seed)
    options: dict[str, Any] = {"space": at.Sphere(), "save": None if given.save == "default" else []}
    options |= {"rtol": given.rtol, "atol": given.rtol / 100}
    for merge in CONTENDERS.values():  # what is imported on first use
        at.flow(law, at.Tokens.uniform(16, 3), until=1.0, merge=merge, **options)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    worked: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    runs = {}
    for _ in range(given.rounds):
        for name, merge in CONTENDERS.items():
            start, work = time.perf_counter(), time.process_time()
            runs[name] = at.flow(law, tokens, until=given.until, merge=merge, **options)
            times[name].append(time.perf_counter() - start)
            worked[name].append(time.process_time() - work)
    plain = runs["merge=False"].final.points
    slow = times["merge=False"]
    return [
        {
            "contender": name,
            "seconds": min(times[name]),
            "evaluations": run.stats.evaluations,
            "clusters_left": len(run.final.points.unique(dim=0)),
            "ratio": statistics.median(other / own for other, own in zip(slow, times[name], strict=True)),
            "ratio_of_fastest": min(slow) / min(times[name]),
            "ratio_of_processor_time": min(worked["merge=False"]) / min(worked[name]),
            "distance": float((run.final.points - plain).norm(dim=-1).max()),
        }
        for name, run in runs.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beta", type=float, default=25.0)
    parser.add_argument("--until", type=float, default=1000.0)
    parser.add_argument("--rtol", type=float, default=1e-8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", choices=("last", "default"), default="last")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    rows = race(given)
    if given.json:
        print(json.dumps({"schema": "attractor.benchmark/1", **vars(given), "rows": rows}))
        return
    setting = f"n = {given.tokens}, beta = {given.beta:g}, until t = {given.until:g}, rtol = {given.rtol:g}"
    print(f"{setting}, seed {given.seed}, saved: {given.save}")
    for row in rows:
        print(
            f"{row['contender']:12} {row['seconds']:8.2f} s  {row['evaluations']:6} evaluations  x{row['ratio']:6.2f} "
            f"(fastest to fastest x{row['ratio_of_fastest']:.2f}, processor x{row['ratio_of_processor_time']:.2f})  "
            f"{row['clusters_left']} points left, {row['distance']:.1e} away"
        )


if __name__ == "__main__":
    main()
