"""How fast fleets train: tokens a second of arms of a study, several seeds side by side, eager, recorded and compiled.

    python benchmarks/fleet.py --data FILE [--study bytes] [--arms plain/rotary convergent/rotary] [--steps 60] [--seeds 5]

Prints one JSON object; ``seconds`` is everything, start and compilation and the last evaluation included.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from attractor.training.config import Config
from attractor.training.studies.fleet_training import Way, train_fleet
from attractor.training.studies.study import changes_of, study_named

WAYS = {
    "eager": Way("cuda", torch.bfloat16),
    "recorded": Way("cuda", torch.bfloat16, recorded=True),
    "compiled": Way("cuda", torch.bfloat16, compiled=True, recorded=True),
    "cpu": Way(),
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
    study = study_named(given.study)
    rows = []
    for arm in given.arms:
        for way in given.ways:
            changes = {**changes_of(study, arm), "data": given.data, "steps": given.steps, "evaluate": given.steps}
            changes |= {} if given.batch is None else {"batch": given.batch}
            row = {"arm": arm, "way": way, "batch": changes["batch"]}
            started = time.perf_counter()
            try:
                found = train_fleet(Config(**changes), list(range(given.seeds)), WAYS[way], Path(given.kept))[0]
                row |= {name: found[name] for name in ("parameters", "tokens_per_second", "loss", "train_loss")}
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
