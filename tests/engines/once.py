"""The Triton engine where it computes each pair once, against the reference; with TRITON_INTERPRET=1 on a CPU.

    python tests/engines/once.py LARGEST EVERY

makes one of so many calls, prints a line for each that differs by more than rounding, and their number; the exit status says
whether all agree.
"""

from __future__ import annotations

import itertools
import os
import sys

import torch

from attractor.engines import Problem, dispatch
from attractor.engines.triton import forward, once

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
SIZES = (1, 5, 31, 32, 33, 64, 100, 1000, 4133, 9000)
COLUMNS = ((3, 3), (1, 1), (2, 4), (4, 2))
ALLOWED = {torch.float32: 4e-6, torch.float64: 4e-15}


def call(n: int, columns: tuple[int, int], factor: float, number: int) -> float:
    """The error of one call, in units of what rounding allows."""
    generator = torch.Generator().manual_seed(number)
    dtype = (torch.float32, torch.float64)[number % 2]
    mode = ("softmax", "softmax", "exponential")[number % 3]
    batch = ((), (2,))[number // 2 % 2]
    # scores of some units, and of some hundreds, where the kernels must step aside
    size = 1.0 if number % 5 or mode == "exponential" else 20.0
    k = size * torch.randn(*batch, n, columns[0], generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
    q = k if factor == 1.0 else (factor * k.double()).to(dtype)
    if factor == 0.5 and number % 4 == 0:
        q = q.clone()
        q[..., n // 2, 0] += 0.01  # no longer a multiple
    v = k
    if columns[0] != columns[1] or number % 7 == 0:
        v = torch.randn(*batch, n, columns[1], generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
    bias = None
    if number % 4 > 1:
        bias = torch.randn(*batch, n, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)
        bias[..., n // 3 if number % 8 < 6 else slice(None)] = -torch.inf  # one key, or all, that nobody sees
    options = (mode, False, None, None, number % 3 == 1)
    found = dispatch._engines["triton"].run(Problem(q, k, v, bias, *options))
    wide = [part.double() for part in (q, k, v)]
    exact = None if bias is None else bias.double()
    expected = dispatch._engines["reference"].run(Problem(wide[0], wide[1], wide[2], exact, *options))
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        seen = torch.isfinite(other)
        if not torch.equal(one.double()[~seen], other[~seen]) or not seen.any():
            worst = max(worst, 0.0 if torch.equal(one.double(), other) else float("inf"))
            continue
        apart = (one.double() - other)[seen].abs().max()
        worst = max(worst, float(apart / other[seen].abs().max().clamp_min(1e-30)))
    return worst / (ALLOWED[dtype] * (1.0 + size * size))


def main(largest: int, every: int) -> int:
    forward.ONCE, once.FEWEST = 0, 1
    met: list[bool] = []
    plain = once.multiple

    def counted(*arguments):
        factor, flag = plain(*arguments)
        met.append(bool(flag))
        return factor, flag

    forward.multiple = counted
    wrong = 0
    sizes = [size for size in SIZES if size <= largest]
    calls = list(itertools.product(sizes, COLUMNS, (1.0, 0.5, -0.3)))
    chosen = list(enumerate(calls))[::every]
    for number, (n, columns, factor) in chosen:
        error = call(n, columns, factor, number)
        if not error <= 1.0:
            wrong += 1
            print(f"call {number}: n = {n}, columns {columns}, factor {factor}: error {error:.2g} of what is allowed")  # noqa: T201
    print(f"{len(chosen)} calls, {wrong} wrong, {sum(met)} computed once")  # noqa: T201
    return int(wrong > 0 or not 0.5 * len(chosen) < sum(met) < len(chosen))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
