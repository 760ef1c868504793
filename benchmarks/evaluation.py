"""One softmax evaluation on the unit sphere (Q = K = V = I): the fused engine against PyTorch, contenders interleaved.

    python benchmarks/evaluation.py [--tokens 16384] [--rounds 5] [--json]

Prints the median time of each contender, the ratio to the fused engine (the median over rounds of the ratio within a round,
since the machine may be shared), and the largest error of a coordinate against the reference in float64. Takes about four
minutes on two quiet cores; JAX joins in if it is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import normalize, scaled_dot_product_attention

from attractor.engines import attend
from attractor.engines.fused.kernels import instruction_set

Contender = Callable[[], Tensor]


def flash(x: Tensor) -> Contender:
    def run() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], scale=1.0)[0, 0]

    return run


def by_engine(x: Tensor, name: str) -> Contender:
    def run() -> Tensor:
        output, _ = attend(x, x, x, engine=name)
        assert output is not None
        return output

    return run


def blockwise_in_jax(x: Tensor, rows: int = 256) -> Contender | None:
    """A scan over blocks of queries, compiled; None without JAX."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None
    jax.config.update("jax_enable_x64", True)
    points = jnp.asarray(x.numpy())

    @jax.jit
    def evaluate(points):
        blocks = points.reshape(-1, rows, points.shape[-1])
        return jax.lax.map(lambda block: jax.nn.softmax(block @ points.T, axis=-1) @ points, blocks).reshape(
            points.shape
        )

    return lambda: torch.from_numpy(__import__("numpy").array(evaluate(points).block_until_ready()))


def contenders(x: Tensor, naive: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {"fused": by_engine(x, "fused"), "SDPA flash": flash(x)}
    if naive:
        found["naive"] = lambda: torch.softmax(x @ x.T, dim=-1) @ x
    jax = blockwise_in_jax(x) if naive else None
    return found | ({} if jax is None else {"JAX blockwise": jax})


def race(found: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in found}
    for round_number in range(rounds + 1):  # the first round only warms up
        for name, run in found.items():
            start = time.perf_counter()
            run()
            if round_number:
                times[name].append(time.perf_counter() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dims", type=int, nargs="*", default=[3, 64])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    rows = []
    for dtype in (torch.float32, torch.float64):
        for dim in given.dims:
            generator = torch.Generator().manual_seed(0)
            x = normalize(torch.randn(given.tokens, dim, generator=generator, dtype=torch.float64), dim=-1).to(dtype)
            times = race(contenders(x, naive=dim <= 3), given.rounds)
            some = slice(0, min(512, given.tokens))
            exact, _ = attend(x[some].double(), x.double(), x.double(), engine="reference")
            got, _ = attend(x, x, x, engine="fused")
            assert exact is not None
            assert got is not None
            for name, seconds in times.items():
                ratios = [other / own for other, own in zip(seconds, times["fused"], strict=True)]
                rows.append(
                    {
                        "dtype": str(dtype).removeprefix("torch."),
                        "dim": dim,
                        "contender": name,
                        "milliseconds": 1e3 * statistics.median(seconds),
                        "ratio": statistics.median(ratios),
                        "ratio_of_fastest": min(seconds) / min(times["fused"]),
                        "error_of_fused": float((got[some] - exact).abs().max()),
                    }
                )
    if given.json:
        print(json.dumps({"schema": "attractor.benchmark/1", "tokens": given.tokens, "rows": rows}))
        return
    print(f"n = {given.tokens}, {torch.get_num_threads()} threads, instruction set {instruction_set()}")
    for row in rows:
        print(
            f"{row['dtype']} d={row['dim']:<3} {row['contender']:14} {row['milliseconds']:9.1f} ms   "
            f"x{row['ratio']:6.2f} of fused (fastest to fastest x{row['ratio_of_fastest']:.2f}; error {row['error_of_fused']:.1e})"
        )


if __name__ == "__main__":
    main()
