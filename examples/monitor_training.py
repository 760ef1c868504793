"""Train a small GPT-2 on text with a monitor, at a usual learning rate and at one that collapses attention.

    python examples/monitor_training.py [STEPS] [SEEDS]

The text is the source of Python's standard library, byte by byte. 300 steps of both rates take about two minutes on one core for each
seed. For each seed the program prints at which step the monitor warns of an entropy collapse, and from which step the loss of the large
rate, mean over 20 steps, is more than 5% above that of the usual rate on the same batches. The figure shows the first seed.
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

LENGTH, BATCH, EVERY, WARMUP, WINDOW = 96, 8, 5, 20, 20
USUAL, LARGE = 1e-3, 3e-2
WORSE = 1.05


def read_text() -> torch.Tensor:
    """Bytes of some modules of the standard library."""
    folder = Path(warnings.__file__).parent
    names = ("argparse", "ast", "calendar", "dataclasses", "datetime", "decimal", "inspect", "shutil", "tarfile", "typing")  # fmt: skip
    text = b"".join(path.read_bytes() for name in names if (path := folder / f"{name}.py").exists())
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def train(rate: float, steps: int, text: torch.Tensor, seed: int) -> tuple[Monitor, list[float]]:
    """Train by Adam with a warm-up of 20 steps, and return the monitor and all losses."""
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=128, n_layer=4, n_head=4, vocab_size=256, n_positions=LENGTH, bos_token_id=0, eos_token_id=0)
    )
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    monitor = at.monitor(model, every=EVERY)
    draw = torch.Generator().manual_seed(seed + 1)
    losses = []
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP)
        begins = torch.randint(len(text) - LENGTH, (BATCH,), generator=draw)
        ids = torch.stack([text[begin : begin + LENGTH] for begin in begins.tolist()])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        monitor.step(loss)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(float(loss.detach()))
    return monitor, losses


def smooth(losses: list[float]) -> list[float]:
    """Means over the last 20 steps."""
    return [sum(part) / len(part) for end in range(1, len(losses) + 1) if (part := losses[max(0, end - WINDOW) : end])]


def compare(steps: int, text: torch.Tensor, seed: int) -> tuple[dict[float, tuple[Monitor, list[float]]], int | None]:
    """Train at both rates; print warnings, and return the runs and the step of the warning of an entropy collapse."""
    runs, warned = {}, None
    for rate in (USUAL, LARGE):
        start = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MonitorWarning)
            runs[rate] = train(rate, steps, text, seed)
        taken = time.perf_counter() - start
        print(f"seed {seed}, rate {rate:g}: {taken:.0f} s, of which measurements {runs[rate][0].seconds:.0f} s")
        told = [str(one.message) for one in caught if issubclass(one.category, MonitorWarning)]
        for message in told:
            print(f"  {message}")
        if rate == LARGE:
            warned = next((int(text.split(":")[0].split()[1]) for text in told if "entropy collapse" in text), None)
    usual, large = (smooth(losses) for _, losses in runs.values())
    worse = next((step for step in range(WINDOW, steps) if large[step] > WORSE * usual[step]), None)
    print(
        f"seed {seed}: the monitor warns of an entropy collapse at step {warned}; the loss is 5% worse from step {worse}"
    )
    return runs, warned


def main() -> None:
    """Run both rates for every seed, and draw the loss and the smallest relative entropy of a head of the first."""
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    steps, seeds = (*numbers, *(60, 1)[len(numbers) :])
    text = read_text()
    (runs, warned), *_ = [compare(steps, text, seed) for seed in range(seeds)]
    draw({rate: (monitor.history, losses) for rate, (monitor, losses) in runs.items()}, warned)
    assert warned is not None, "no warning of an entropy collapse"


def draw(runs: dict[float, tuple[list[dict[str, float]], list[float]]], warned: int | None) -> None:
    """Draw the losses, and the smallest relative entropy of a head at every measurement."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for rate, (history, losses) in runs.items():
        entropy = [min(value for key, value in row.items() if key.endswith("relative_entropy_min")) for row in history]
        left.plot(smooth(losses), label=f"learning rate {rate:g}")
        right.semilogy([row["step"] for row in history], entropy, ".-", label=f"learning rate {rate:g}")
    right.axhline(0.05, color="grey", linestyle=":", label="threshold of the finding")
    if warned is not None:
        for axes in (left, right):
            axes.axvline(warned, color="black", linestyle="--", label=f"warning, step {warned}")
    left.set(xlabel="step", ylabel=f"loss, mean over {WINDOW} steps")
    right.set(xlabel="step", ylabel="smallest relative entropy of a head")
    left.legend()
    right.legend()
    figure.savefig("monitor_training.png", dpi=150)


if __name__ == "__main__":
    main()
