"""Rows of one evaluation: single systems, ensembles, spectral."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benchmarks.racing import (
    Call,
    Contender,
    Contest,
    Settings,
    Skip,
    as_tensor,
    engine,
    evaluate_rows,
    import_peer,
    sample_rows,
    sampled_error,
    uniform,
)

GROUP = "evaluation"
BLOCK = 256  # queries of a block, for peers that take the queries in blocks
# (dtype, d): least ratios to SDPA, naive and JAX; None: no target is set
TARGETS = {
    ("float32", 3): (8.0, 25.0, 4.0),
    ("float64", 3): (4.5, 15.0, 3.5),
    ("float32", 64): (1.2, None, None),
    ("float64", 64): (1.4, None, None),
}
# A coordinate of ours, and of a peer that adds up n terms in one go.
TOLERANCES = {"float32": (2e-6, 1e-4), "float64": (1e-13, 1e-12)}


def evaluation_contests(settings: Settings) -> list[Contest]:
    """Both number types, in few and in many dimensions."""
    return [_contest(settings, dtype, dim) for dtype, dim in TARGETS]


def _contest(settings: Settings, dtype: str, dim: int) -> Contest:
    n = settings.size(16384, 512)
    points = cache(lambda: uniform(n, dim, settings.seed, dtype))
    flash, naive, jax = TARGETS[dtype, dim]
    ours, theirs = TOLERANCES[dtype]

    def contender(name: str, make: Callable[[Tensor], Call], target: float | None = None) -> Contender:
        return Contender(name, lambda: make(points()), target, theirs)

    return Contest(
        group=GROUP,
        name=f"evaluation {dtype}, d={dim}, n={n}",
        ours=Contender("attractor fused", lambda: fused(points()), tolerance=ours),
        peers=(
            contender("SDPA flash", sdpa_flash, flash),
            contender("torch naive", torch_naive, naive),
            contender("JAX blockwise", jax_blockwise, jax),
            contender("torch.compile blockwise", _unless_quick(settings, compiled_blockwise)),
            contender("KeOps", _unless_quick(settings, keops)),
        ),
        error=lambda result: sampled_error(as_tensor(result), points(), settings.seed),
        tolerance=ours,
        pairs=float(n) ** 2,
        dim=dim,
        dtype=dtype,
    )


def _unless_quick(settings: Settings, make: Callable[[Tensor], Call]) -> Callable[[Tensor], Call]:
    """What compiles for longer than a smoke run should take."""

    def built(x: Tensor) -> Call:
        if settings.quick:
            raise Skip("it compiles for too long for --quick")
        return make(x)

    return built


def fused(x: Tensor) -> Call:
    from attractor.engines import attend

    name = engine("fused")
    return lambda: attend(x, x, x, engine=name)[0]


def sdpa_flash(x: Tensor) -> Call:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    one = x[None, None]

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(one, one, one, scale=1.0)[0, 0]

    return call


def torch_naive(x: Tensor) -> Call:
    return lambda: torch.softmax(x @ x.T, dim=-1) @ x


def compiled_blockwise(x: Tensor) -> Call:
    """Blocks of queries, each compiled by torch into one kernel where it can."""

    @torch.compile(dynamic=False)
    def block(q: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(q @ x.T, dim=-1) @ x

    return lambda: torch.cat([block(q, x) for q in x.split(BLOCK)])


def jax_blockwise(x: Tensor) -> Call:
    """A scan over blocks of queries, compiled as a whole."""
    jax = import_peer("jax")
    jax.config.update("jax_enable_x64", True)
    points = jax.numpy.asarray(x.numpy())

    @jax.jit
    def evaluate(x):
        blocks = x.reshape(-1, min(BLOCK, len(x)), x.shape[-1])
        return jax.lax.map(lambda q: jax.nn.softmax(q @ x.T, axis=-1) @ x, blocks).reshape(x.shape)

    return lambda: evaluate(points).block_until_ready()


def keops(x: Tensor) -> Call:
    """Symbolic matrices, reduced by C++ that KeOps writes and compiles on first use."""
    import_peer("pykeops").set_verbose(False)
    lazy = import_peer("pykeops.torch").LazyTensor
    queries, keys = lazy(x[:, None, :]), lazy(x[None, :, :])
    return lambda: (queries * keys).sum(-1).sumsoftmaxweight(keys, axis=1)


DIM = 3


def ensemble_contests(settings: Settings) -> list[Contest]:
    return [_ensembles_contest(settings, "float64", 5.0), _ensembles_contest(settings, "float32", 5.0)]


def _ensembles_contest(settings: Settings, dtype: str, target: float) -> Contest:
    n, members = settings.size(64, 16), settings.size(1000, 8)
    points = cache(lambda: uniform(n, DIM, settings.seed, dtype, members))
    ours, theirs = TOLERANCES[dtype]
    return Contest(
        group="ensembles",
        name=f"ensemble evaluation {dtype}, {members} systems, n={n}, d={DIM}",
        ours=Contender("attractor fused", lambda: fused(points()), tolerance=ours),
        peers=(Contender("torch bmm", lambda: bmm(points()), target, theirs),),
        error=lambda result: float((as_tensor(result).double() - _exact(points())).abs().max()),
        tolerance=ours,
        pairs=float(members) * n**2,
        dim=DIM,
        dtype=dtype,
    )


def bmm(x: Tensor) -> Call:
    return lambda: torch.bmm(torch.softmax(torch.bmm(x, x.mT), dim=-1), x)


def _exact(x: Tensor) -> Tensor:
    from attractor.engines import attend

    points = x.double()
    output, _ = attend(points, points, points, engine="reference")
    assert output is not None
    return output


BETA = 9.0
TOLERANCE = 1e-8


def spectral_contests(settings: Settings) -> list[Contest]:
    """On the sphere, where a target is set, and on the circle."""
    n = settings.size(65536, 1024)
    return [_spectral_contest(settings, n, 3, 15.0), _spectral_contest(settings, n, 2, None)]


def _spectral_contest(settings: Settings, n: int, dim: int, target: float | None) -> Contest:
    points = cache(lambda: uniform(n, dim, settings.seed))
    return Contest(
        group="spectral",
        name=f"evaluation float64, d={dim}, n={n}, beta={BETA:g}",
        ours=Contender("attractor spectral", lambda: velocity(points(), "spectral")),
        peers=(Contender("attractor fused", lambda: velocity(points(), "fused"), target),),
        error=lambda result: velocity_error(as_tensor(result), points(), settings.seed),
        tolerance=TOLERANCE,
    )


def velocity(x: Tensor, name: str, beta: float = BETA) -> Call:
    """One velocity on the sphere by the engine of that name."""
    from attractor import engines
    from attractor.laws import Attention
    from attractor.solvers import velocity
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens, space, name = Attention.isotropic(x.shape[-1], beta), Tokens(x), Sphere(), engine(name)

    def call() -> Tensor:
        with engines.using(name):
            return velocity(law, tokens, space)

    return call


def velocity_error(result: Tensor, x: Tensor, seed: int) -> float:
    """The largest error of a coordinate of the velocity over some rows."""
    rows = sample_rows(len(x), seed)
    exact = evaluate_rows(x, rows, BETA)
    tangent = exact - (exact * x[rows]).sum(-1, keepdim=True) * x[rows]
    return float((result[rows] - tangent).abs().max())
