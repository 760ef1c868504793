"""The spectral engine against the fused one on the circle and the sphere (Q'K = beta I, V = I), interleaved.

    python benchmarks/spectral.py [--tokens 65536] [--rounds 5] [--betas 1 9 25 81] [--json]

Prints the median time of both, the median over rounds of their ratio, and the largest difference of a coordinate. A round has one
evaluation by all pairs; about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import torch
from torch import Tensor
from torch.nn.functional import normalize

from attractor.engines import Problem, attend
from attractor.engines.spectral.engine import members


def timed(x: Tensor, beta: float, engine: str) -> tuple[float, Tensor]:
    q = beta**0.5 * x
    start = time.perf_counter()
    output, _ = attend(q, q, x, skip_self=True, engine=engine)
    assert output is not None
    return time.perf_counter() - start, output


def row(tokens: int, dim: int, beta: float, rounds: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    x = normalize(torch.randn(tokens, dim, generator=generator, dtype=torch.float64), dim=-1)
    plans = members(Problem(beta**0.5 * x, beta**0.5 * x, x, None, "softmax", False, None, None, True))
    assert not isinstance(plans, str)
    timed(x, beta, "spectral")
    fast, slow, gap = [], [], 0.0
    for _ in range(rounds):
        repeats = [timed(x, beta, "spectral") for _ in range(5)]
        seconds, exact = timed(x, beta, "fused")
        fast.append(statistics.median(one for one, _ in repeats))
        slow.append(seconds)
        gap = float((repeats[0][1] - exact).abs().max())
    return {
        "dim": dim,
        "beta": beta,
        "order": plans[0].order,
        "spectral_milliseconds": 1e3 * statistics.median(fast),
        "fused_milliseconds": 1e3 * statistics.median(slow),
        "ratio": statistics.median(two / one for one, two in zip(fast, slow, strict=True)),
        "ratio_of_fastest": min(slow) / min(fast),
        "difference": gap,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dims", type=int, nargs="*", default=[2, 3])
    parser.add_argument("--betas", type=float, nargs="*", default=[1.0, 9.0, 25.0, 81.0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    rows = [row(given.tokens, dim, beta, given.rounds) for dim in given.dims for beta in given.betas]
    if given.json:
        print(json.dumps({"schema": "attractor.benchmark/1", "tokens": given.tokens, "rows": rows}))
        return
    print(f"n = {given.tokens}, {torch.get_num_threads()} threads, float64")
    for one in rows:
        print(
            f"d={one['dim']} beta={one['beta']:<5g} order {one['order']:3} spectral {one['spectral_milliseconds']:8.1f} ms   "
            f"fused {one['fused_milliseconds']:8.1f} ms   x{one['ratio']:6.1f} (fastest to fastest x{one['ratio_of_fastest']:.1f}); "
            f"difference {one['difference']:.1e}"
        )


if __name__ == "__main__":
    main()
