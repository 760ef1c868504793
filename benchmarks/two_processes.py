"""One run of ``flow`` shared by the processes of torchrun, against the same run by one of them; interleaved.

    OMP_NUM_THREADS=1 python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/two_processes.py [--tokens 16384]
        [--rounds 5] [--json]

Every round times the run of rank 0 alone, while the others sleep, and then the shared run. Prints the ratio of the two (median
over rounds, and fastest to fastest) for the wall clock, the same for the processor time of the busiest rank, which other users
of the machine do not disturb, and how far the two results are apart. Takes about a minute and a half on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as processes

import attractor as at


def measured(tokens: at.Tokens, spread: bool, until: float) -> tuple[at.Trajectory, float, float]:
    """The run, its seconds on the wall and on the processor."""
    wall, busy = time.perf_counter(), time.process_time()
    law = at.Attention.isotropic(3, 9.0)
    run = at.flow(
        law, tokens, space=at.Sphere(), until=until, save=[until], engine="fused", merge=False, stop=(), spread=spread
    )
    return run, time.perf_counter() - wall, time.process_time() - busy


def race(tokens: at.Tokens, rounds: int, until: float) -> dict[str, Any]:
    rank, times = processes.get_rank(), []
    error = 0.0
    for count in range(rounds + 1):  # the first round only warms up
        processes.barrier()
        alone = measured(tokens, False, until) if rank == 0 else None
        processes.barrier()
        shared, wall, busy = measured(tokens, True, until)
        everyone: list[Any] = [None] * processes.get_world_size()
        processes.all_gather_object(everyone, busy)
        if alone is not None and count:
            error = max(error, float((alone[0].points - shared.points).abs().max()))
            times.append({"alone": alone[1:], "shared": (wall, max(everyone)), "evaluations": shared.stats.evaluations})
    return {"rounds": times, "difference": error}


def ratios(rounds: list[dict[str, Any]], which: int) -> dict[str, float]:
    pairs = [(entry["alone"][which], entry["shared"][which]) for entry in rounds]
    return {
        "median": statistics.median(alone / shared for alone, shared in pairs),
        "fastest_to_fastest": min(alone for alone, _ in pairs) / min(shared for _, shared in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--until", type=float, default=0.2)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    torch.set_num_threads(1)
    processes.init_process_group("gloo")
    found = race(at.Tokens.uniform(given.tokens, 3, seed=0), given.rounds, given.until)
    if processes.get_rank() == 0:
        wall, busy = ratios(found["rounds"], 0), ratios(found["rounds"], 1)
        size, evaluations = processes.get_world_size(), found["rounds"][0]["evaluations"]
        if given.json:
            head = {"schema": "attractor.benchmark/1", "tokens": given.tokens, "processes": size}
            print(json.dumps({**head, "wall": wall, "processor": busy, **found}))
        else:
            seconds = min(entry["alone"][0] for entry in found["rounds"])
            print(
                f"n = {given.tokens}, {size} processes of 1 thread, {evaluations} evaluations of {seconds / evaluations:.3g} s"
            )
            print(f"wall clock      x{wall['median']:.2f} (fastest to fastest x{wall['fastest_to_fastest']:.2f})")
            print(f"processor time  x{busy['median']:.2f} (fastest to fastest x{busy['fastest_to_fastest']:.2f})")
            print(f"largest difference of a coordinate {found['difference']:.1e}")
    processes.destroy_process_group()


if __name__ == "__main__":
    main()
