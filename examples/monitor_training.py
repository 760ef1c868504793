"""Train a small GPT-2 on text and monitor it, once at a usual rate and once at a rate that collapses attention.

    python examples/monitor_training.py [STEPS]

The text is the source of Python's standard library, byte by byte. With 300 steps each run takes some minutes on two cores. Prints the
warnings and the share of time of the measurements, and draws the loss and the smallest relative entropy of a head.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import attractor as at
from attractor.training import Monitor, MonitorWarning

LENGTH, BATCH, EVERY = 96, 8, 2


def read_text() -> torch.Tensor:
    """Bytes of some modules of the standard library."""
    folder = Path(warnings.__file__).parent
    names = (
        "argparse",
        "ast",
        "calendar",
        "dataclasses",
        "datetime",
        "decimal",
        "inspect",
        "shutil",
        "tarfile",
        "typing",
    )
    text = b"".join(path.read_bytes() for name in names if (path := folder / f"{name}.py").exists())
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def train(rate: float, steps: int, text: torch.Tensor) -> Monitor:
    """Train by Adam without warm-up, and return the monitor."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=128, n_layer=4, n_head=4, vocab_size=256, n_positions=LENGTH, bos_token_id=0, eos_token_id=0)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    monitor = at.monitor(model, every=EVERY)
    draw = torch.Generator().manual_seed(1)
    start = time.perf_counter()
    for _ in range(steps):
        begins = torch.randint(len(text) - LENGTH, (BATCH,), generator=draw)
        ids = torch.stack([text[begin : begin + LENGTH] for begin in begins.tolist()])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        monitor.step(loss)
        optimiser.step()
        optimiser.zero_grad()
    seconds = time.perf_counter() - start
    share = monitor.seconds / seconds * EVERY / 100
    print(
        f"rate {rate:g}: {seconds:.1f} s, of which measurements {monitor.seconds:.1f} s; with every=100 they would take {share:.1%}"
    )
    return monitor


def main() -> None:
    """Run both rates, and draw the loss and the smallest relative entropy of a head."""
    steps, text = next((int(word) for word in sys.argv[1:] if word.isdigit()), 40), read_text()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    lowest = {}
    for rate in (1e-3, 0.1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MonitorWarning)
            monitor = train(rate, steps, text)
        for one in caught:
            print(f"  {one.message}")
        entropy = [
            min(value for key, value in row.items() if key.endswith("relative_entropy_min")) for row in monitor.history
        ]
        times, lowest[rate] = [row["step"] for row in monitor.history], min(entropy)
        left.plot(times, [row["loss"] for row in monitor.history], label=f"rate {rate:g}")
        right.plot(times, entropy, label=f"rate {rate:g}")
    assert lowest[0.1] < 0.05 < lowest[1e-3], lowest
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel="smallest relative entropy of a head")
    left.legend()
    figure.savefig("monitor_training.png", dpi=150)


if __name__ == "__main__":
    main()
