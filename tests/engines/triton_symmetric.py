"""The Triton engine where it computes each pair once, against the reference; with TRITON_INTERPRET=1 on a CPU.

    python tests/engines/launch.py COUNT SEED LARGEST

makes random calls, prints a line for each that differs by more than rounding or that was not computed in the way it should be,
and their number; the exit status says whether all agree.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace

import torch
from torch import Tensor

from attractor.engines import Problem, dispatch
from attractor.engines.triton import launch

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SIZES = (1, 31, 33, 64, 100, 161, 1000, 4133, 9000)
ALLOWED = {torch.float32: 4e-6, torch.float64: 4e-15}


def draw(rng: random.Random, largest: int) -> tuple[Problem, bool, float]:
    """A question, whether its pairs are to be computed once, and the size of its scores."""
    generator = torch.Generator().manual_seed(rng.randrange(10**9))
    dtype = rng.choice([torch.float32, torch.float64])
    mode = rng.choice(["softmax", "softmax", "exponential"])
    batch = rng.choice([(), (), (2,)])
    n = rng.choice([size for size in SIZES if size <= largest])
    e, c = rng.choice([(3, 3), (3, 3), (1, 1), (2, 4), (4, 2)])

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)

    k = torch.nn.functional.normalize(normal(n, e), dim=-1)
    size, factor = 1.0, rng.choice([1.0, 0.5, -0.3])
    if mode == "softmax" and rng.random() < 0.2:
        size = 1e4  # exponents that need a shift
        k = size**0.5 * k
    q = k if factor == 1.0 else (factor * k.double()).to(dtype)
    same = True
    if rng.random() < 0.2 and n * e > 1:
        q, same = q.clone(), False
        q[..., n // 2, 0] += 0.01  # no longer a multiple
    v = k if e == c and rng.random() < 0.5 else normal(n, c)
    bias = None
    if rng.random() < 0.5:
        bias = normal(n)
        bias[..., slice(None) if rng.random() < 0.2 else n // 3] = -torch.inf  # all keys, or one, that nobody sees
    problem = Problem(q, k, v, bias, mode, False, None, None, rng.random() < 0.4)
    return problem, same and size == 1.0, size


def error(problem: Problem) -> float:
    """The largest difference from the reference in units of what is summed: an output in those of the same sum over |v|, which
    is what the rounding of terms that cancel is in proportion to (with the own one, next to which others may underflow, where
    it is part of the normaliser). Infinite where one of them is finite alone."""
    parts = [None if part is None else part.double() for part in (problem.q, problem.k, problem.v, problem.key_bias)]
    exact = Problem(*parts, problem.mode, False, None, None, problem.skip_self)  # type: ignore[arg-type]
    assert exact.v is not None
    engines = dispatch._engines
    found, expected = engines["triton"].run(problem), engines["reference"].run(exact)
    skipped = exact.skip_self and exact.mode != "softmax"
    terms, sums = engines["reference"].run(replace(exact, v=exact.v.abs(), skip_self=skipped))
    assert terms is not None
    assert sums is not None
    worst = 0.0
    for one, other, size in zip(found, expected, (terms, sums.abs().clamp_min(1.0)), strict=True):
        assert one is not None
        assert other is not None
        plain = torch.isfinite(other) & (size > 0)
        if not torch.equal(one.double()[~plain], other[~plain]):
            return float("inf")
        if plain.any():
            worst = max(worst, float(((one.double() - other).abs() / size)[plain].max()))
    return worst


def main(count: int, seed: int, largest: int) -> int:
    launch.SYMMETRIC_PAIRS, launch.MIN_TOKENS = 0, 1
    rng, wrong, met = random.Random(seed), 0, []
    plain = launch.run_symmetric
    launch.run_symmetric = lambda *arguments: (met.append(True), plain(*arguments))
    for number in range(count):
        problem, expected, size = draw(rng, largest)
        before = len(met)
        share = error(problem) / (ALLOWED[problem.q.dtype] * size)
        way = len(met) > before
        if not share <= 1.0 or way != expected:
            wrong += 1
            how = "once" if way else "row by row"
            shapes = [None if part is None else tuple(part.shape) for part in (problem.q, problem.v, problem.key_bias)]
            print(  # noqa: T201
                f"call {number}: {problem.q.dtype} {shapes} {problem.mode} {problem.skip_self}, {how}: "
                f"{share:.2g} times what rounding allows"
            )
    print(f"{count} calls, {wrong} wrong, {len(met)} computed once")  # noqa: T201
    return int(wrong > 0 or not met)


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:4])))
