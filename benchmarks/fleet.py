"""Tokens per second of arms of a study, several seeds at once: eager, as a CUDA graph (recorded) and compiled.

    python benchmarks/fleet.py --data FILE [--study bytes] [--arms plain/rotary convergent/rotary] [--steps 60] [--seeds 5]

Prints one JSON object; ``seconds`` includes start, compilation and the last evaluation.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from attractor.training import Config, Execution, arm_entries, find_study, train_seeds

WAYS = {
    "eager": Execution("cuda", torch.bfloat16),
    "recorded": Execution("cuda", torch.bfloat16, cuda_graph=True),
    "compiled": Execution("cuda", torch.bfloat16, compiled=True, cuda_graph=True),
    "cpu": Execution(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--study", default="bytes")
    parser.add_argument("--arms", nargs="+", default=["plain/rotary", "convergent/rotary"])
    parser.add_argument("--ways", nargs="+", default=["recorded", "compiled"], choices=list(WAYS))
    parser.add_argument("--kept", default="kept")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    study = find_study(given.study)
    rows = []
    for arm in given.arms:
        for way in given.ways:
            changes = {**arm_entries(study, arm), "data": given.data, "steps": given.steps, "evaluate": given.steps}
            changes |= {} if given.batch is None else {"batch": given.batch}
            row = {"arm": arm, "way": way, "batch": changes["batch"]}
            started = time.perf_counter()
            try:
                found = train_seeds(Config(**changes), list(range(given.seeds)), WAYS[way], Path(given.kept))[0]
                row |= {name: getattr(found, name) for name in ("parameters", "tokens_per_second", "train_loss")}
                row["loss"] = found.scores["loss"]
            except Exception as error:
                row |= {"failed": f"{type(error).__name__}: {error}"[:500]}
            row["seconds"] = time.perf_counter() - started
            if torch.cuda.is_available():
                row["memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
                torch.cuda.reset_peak_memory_stats()
            print(json.dumps(row), file=sys.stderr, flush=True)
            rows.append(row)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(
        json.dumps(
            {
                "schema": "attractor.fleet/1",
                "hardware": hardware,
                "torch": torch.__version__,
                **vars(given),
                "rows": rows,
            }
        )
    )


if __name__ == "__main__":
    main()
