"""How much a trace slows a model: the plain forward, hooks that only look, the summary, and everything that is measured.

Run with ``python benchmarks/tracing.py [MODEL] [--tokens N] [--repeats R]``. Rounds are interleaved, and the median of the ratios of a
round to its own plain forward is printed. What is cheap and what is costly are measured in rounds of their own: a plain forward after
something costly finds other things in the caches, and would flatter what comes next. Time is the processor's, of all threads together,
so that other work on the machine does not count. The target: hooks and summary at most 1.10.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import attractor as at
from attractor.models.hooks import record_blocks
from attractor.models.tracing import Session


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("model", nargs="?", default="smollm2")
    options.add_argument("--tokens", type=int, default=256)
    options.add_argument("--repeats", type=int, default=25)
    options.add_argument("--threads", type=int, default=1)
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    opened = at.checkpoint(chosen.model)
    model = Session.open(opened, None, (), None)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, opened.config.vocab_size, (chosen.tokens,), generator=draw)
    inputs, _ = model.inputs(ids)

    def looked() -> None:
        with torch.no_grad(), record_blocks(model.model, opened, model.stack or "", lambda states: None):
            model.checkpoint.family.run(model.model, model.stack or "", inputs)

    def plain() -> None:
        with torch.no_grad():
            model.checkpoint.family.run(model.model, model.stack or "", inputs)

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "hooks": looked,
        "summary": lambda: model.run(inputs, False, summary=True),
        "stream": lambda: model.run(inputs, False),
        "everything": lambda: model.run(inputs, True),
    }
    print(f"{chosen.model}, {chosen.tokens} tokens, {chosen.threads} threads, medians")
    report({name: ways[name] for name in ("plain", "hooks", "summary")}, chosen.repeats)
    report({name: ways[name] for name in ("plain", "stream", "everything")}, -(-chosen.repeats // 4))


def report(ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Time the ways one after the other, again and again."""
    for way in ways.values():  # the first round loads and compiles
        way()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.process_time()
            way()
            seconds[name].append(time.process_time() - start)
    for name, taken in seconds.items():
        ratios = [one / other for one, other in zip(taken, seconds["plain"], strict=True)]
        text = f"{1e3 * statistics.median(taken):9.1f} ms   {statistics.median(ratios):6.3f} of plain, {rounds} rounds"
        print(f"  {name:<11} {text}")


if __name__ == "__main__":
    main()
