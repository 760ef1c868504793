"""The rows of the GPU, timed by CUDA events: one softmax evaluation on the unit sphere at n = 262144."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.racing import Call, Contender, Contest, Ready, Settings, Skip, engine, sampled_error, uniform

CHUNK = 2048  # rows of scores that the chunked peer holds at once
FEW = 65536  # tokens of peers that hold all pairs, or are too slow for more; their time is scaled to the pairs of ours


def contests(settings: Settings) -> list[Contest]:
    n, few = settings.size(262144, 4096), settings.size(FEW, 2048)
    scaled = {"tokens": few, "seconds": f"scaled from n={few} by the number of pairs"}

    def contest(dtype: str, dim: int, tolerance: float, peers: list[Any], rate: float | None = None) -> Contest:
        points = cache(lambda: uniform(n, dim, settings.seed, dtype).cuda())
        fewer = cache(lambda: uniform(few, dim, settings.seed, dtype).cuda())

        def build(make: Callable[[Tensor], Call], whole: bool) -> Ready:
            require_gpu()
            x = points() if whole else fewer()
            call = make(x)
            return Ready(Sized(call, x, 1.0 if whole else (n / few) ** 2), {} if whole else scaled)

        return Contest(
            group="gpu",
            name=f"GPU evaluation {dtype}, d={dim}, n={n}",
            ours=Contender("attractor triton", lambda: build(triton, True)),
            peers=tuple(
                Contender(name, lambda make=make, whole=whole: build(make, whole), target, 1e-4)
                for name, make, whole, target in peers
            ),
            error=lambda result: sampled_error(result[0], result[1], settings.seed),
            tolerance=tolerance,
            pairs=float(n) ** 2,
            dim=dim,
            dtype=dtype,
            rate=None if settings.quick else rate,
            device="cuda",
            timer=time_by_events,
        )

    return [
        contest(
            "float32", 3, 2e-6, [("SDPA mem-efficient", sdpa, True, 15.0), ("torch naive", naive, False, 27.0)], 2.5e12
        ),
        contest("float64", 3, 1e-12, [("torch chunked", chunked, False, 6.0)]),
        contest("float32", 64, 5e-6, [("SDPA mem-efficient", sdpa, True, 2.0)]),
    ]


class Sized:
    """A call on fewer tokens than ours, with the factor that makes its time comparable."""

    def __init__(self, call: Call, x: Tensor, factor: float) -> None:
        self.call, self.x, self.factor = call, x, factor

    def __call__(self) -> tuple[Tensor, Tensor]:
        return self.call(), self.x


def time_by_events(call: Call) -> tuple[float, Any]:
    """Seconds between two events on the stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    result = call()
    stop.record()
    stop.synchronize()
    return getattr(call, "factor", 1.0) * 1e-3 * start.elapsed_time(stop), result


def require_gpu() -> None:
    if not torch.cuda.is_available():
        raise Skip("there is no CUDA device here")


def triton(x: Tensor) -> Call:
    from attractor.engines import attend

    name = engine("triton")
    return lambda: attend(x, x, x, engine=name)[0]


def sdpa(x: Tensor) -> Call:
    """The memory-efficient kernel, on the narrowest padding with zeros (which change no score) that it takes."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import pad, scaled_dot_product_attention

    def on(width: int) -> Call:
        one, dim = pad(x, (0, -x.shape[-1] % width))[None, None].contiguous(), x.shape[-1]

        def call() -> Tensor:
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return scaled_dot_product_attention(one, one, one, scale=1.0)[0, 0, :, :dim]

        return call

    for width in (1, 4, 8):
        try:
            # a refusal is an error here, and torch says why in warnings
            with warnings.catch_warnings(action="ignore"):
                on(width)()
            return on(width)
        except RuntimeError:
            continue
    raise Skip("SDPA's memory-efficient kernel does not take this problem")


def naive(x: Tensor) -> Call:
    return lambda: torch.softmax(x @ x.T, dim=-1) @ x


def chunked(x: Tensor) -> Call:
    return lambda: torch.cat([torch.softmax(rows @ x.T, dim=-1) @ x for rows in x.split(CHUNK)])
