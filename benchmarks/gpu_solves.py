"""Rows of whole runs on a GPU: ensembles, larger systems, gradients, noise and a phase diagram."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import require_gpu
from benchmarks.gradients import BETAS, HORIZON, RULE, SAVES, STARTS, TOKENS, UNTIL, drive_torch
from benchmarks.racing import Call, Contender, Contest, Ready, Settings, as_tensor, import_peer, uniform

BETA, END = 4.0, 5.0
RTOL = {"float64": 1e-8, "float32": 1e-5}
ERROR = {"float64": 1e-6, "float32": 2e-3}  # allowed, of a coordinate at the end
CHECKED = 4  # members whose error is measured
ENSEMBLES = ((1000, 32), (20000, 32), (2000, 128))
ENSEMBLE_TARGETS = {"float64": 8.0, "float32": 20.0}  # least ratios of diffrax to ours
LARGE, LARGE_SECONDS = (200000, 32), 0.2
SINGLES = ((1024, 3.0), (8192, 5.0))  # tokens and least ratio
GRADIENTS, GRADIENT_TARGET = (512, 4096), 2.0
NOISY, NOISY_STEPS, NOISE = (20000, 32), 500, 0.05


def wall_time_on_gpu(call: Call) -> tuple[float, Any]:
    """Wall-clock seconds of a call until the GPU has finished, and its result."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = call()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def ours(x: Tensor, rtol: float, **options: Any) -> Tensor:
    """The state at the end, of the dtype of x."""
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens = Attention.isotropic(x.shape[-1], BETA), Tokens(x, dtype=x.dtype)
    fixed = {"until": END, "save": [END], "stop": (), "merge": False, "rtol": rtol, "atol": 0.01 * rtol}
    return flow(law, tokens, space=Sphere(), **{**fixed, **options}).points[-1]  # type: ignore[arg-type]


def repeated(x: Tensor, rtol: float) -> Call:
    """``ours`` with the law and the tokens made once, as a sweep over starts does."""
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens, space = Attention.isotropic(x.shape[-1], BETA), Tokens(x, dtype=x.dtype), Sphere()
    fixed: dict[str, Any] = {"until": END, "save": [END], "stop": (), "merge": False, "rtol": rtol, "atol": 0.01 * rtol}
    return lambda: flow(law, tokens, space=space, **fixed).points[-1]


def import_jax() -> tuple[Any, Any]:
    """JAX and diffrax, which leave memory of the GPU to others."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax, diffrax = import_peer("jax"), import_peer("diffrax")
    jax.config.update("jax_enable_x64", True)
    return jax, diffrax


def diffrax_solve(x: Tensor, rtol: float) -> Call:
    """Dopri8 for fine tolerances and Dopri5 for coarse ones, compiled; members of an ensemble are vmapped."""
    jax, diffrax = import_jax()

    def field(time, x, _):
        drive = jax.nn.softmax(BETA * (x @ x.T), axis=-1) @ x
        return drive - (drive * x).sum(-1, keepdims=True) * x

    def one(x):
        control = diffrax.PIDController(rtol=rtol, atol=0.01 * rtol)
        method = diffrax.Dopri8() if rtol < 1e-6 else diffrax.Dopri5()
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field), method, 0.0, END, 0.01, x, stepsize_controller=control, max_steps=100000
        )
        return found.ys[0]

    compiled = jax.jit(one if x.ndim == 2 else jax.vmap(one))
    start = jax.numpy.asarray(x.cpu().numpy())
    return lambda: compiled(start).block_until_ready()


def solve_contest(settings: Settings, shape: tuple[int, ...], dtype: str, target: float | None) -> Contest:
    """``flow`` against diffrax at the same tolerance."""
    *members, n = shape
    points = cache(lambda: uniform(n, 3, settings.seed, dtype, tuple(members)).cuda())
    truth = cache(lambda: ours(first(points()).double(), 1e-11, engine="reference"))
    first = (lambda x: x[:CHECKED]) if members else (lambda x: x)

    def build(make: Callable[[Tensor, float], Call]) -> Ready:
        require_gpu()
        return Ready(make(points(), RTOL[dtype]), {"rtol": RTOL[dtype]})

    what = f"{members[0]} systems of {n} tokens" if members else f"one system of {n} tokens"
    peers = () if target is None else (Contender("diffrax on the GPU, warm", lambda: build(diffrax_solve), target),)
    return Contest(
        group="gpu_solves",
        name=f"GPU, {what} to T={END:g}, {dtype}",
        ours=Contender("attractor flow", lambda: build(repeated)),
        peers=peers,
        error=lambda result: float((first(as_tensor(result)).cpu().double() - truth().cpu()).abs().max()),
        tolerance=ERROR[dtype],
        dtype=dtype,
        dim=3,
        device="cuda",
        timer=wall_time_on_gpu,
    )


def contests(settings: Settings) -> list[Contest]:
    ensembles = [
        solve_contest(settings, settings.size(shape, (8, 8)), dtype, target)
        for shape in ENSEMBLES
        for dtype, target in ENSEMBLE_TARGETS.items()
    ]
    large = solve_contest(settings, settings.size(LARGE, (9, 8)), "float64", None)
    singles = [
        solve_contest(settings, (settings.size(n, 64),), dtype, target) for n, target in SINGLES for dtype in RTOL
    ]
    return [*ensembles, large, *singles]


# ------------------------------------------------------------------ gradients


def attractor_gradient(x: Tensor, rtol: float, **options: Any) -> Call:
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    eye, tokens = torch.eye(3, dtype=x.dtype, device=x.device), Tokens(x)
    asked = {"until": UNTIL, "save": [UNTIL], "stop": (), "rtol": rtol, "atol": 0.01 * rtol, **options}

    def call() -> Tensor:
        query = (RULE * eye).requires_grad_()
        end = flow(Attention(query, RULE * eye, eye), tokens, space=Sphere(), **asked).points[-1]
        return torch.autograd.grad((end[:, 0] ** 2).sum(), query)[0]

    return call


def diffrax_gradient(x: Tensor, rtol: float) -> Call:
    jax, diffrax = import_jax()

    def field(time, x, query):
        drive = jax.nn.softmax((x @ query.T) @ (RULE * x).T, axis=-1) @ x
        return drive - (drive * x).sum(-1, keepdims=True) * x

    def loss(query, start):
        control = diffrax.PIDController(rtol=rtol, atol=0.01 * rtol)
        term, solver = diffrax.ODETerm(field), diffrax.Dopri5()
        found = diffrax.diffeqsolve(
            term, solver, 0.0, UNTIL, 0.01, start, args=query, stepsize_controller=control, max_steps=256
        )
        return (found.ys[-1][:, 0] ** 2).sum()

    compiled = jax.jit(jax.grad(loss))
    start, query = jax.numpy.asarray(x.cpu().numpy()), RULE * jax.numpy.eye(3)
    return lambda: compiled(query, start).block_until_ready()


def torch_gradient(x: Tensor) -> Tensor:
    """The gradient through classical Runge-Kutta steps so short that their error is negligible."""
    query = (RULE * torch.eye(3, dtype=x.dtype, device=x.device)).requires_grad_()
    y, steps = x, 200
    h = UNTIL / steps
    for _ in range(steps):
        a = drive_torch(query, y)
        b = drive_torch(query, y + h / 2 * a)
        c = drive_torch(query, y + h / 2 * b)
        d = drive_torch(query, y + h * c)
        y = y + h / 6 * (a + 2 * b + 2 * c + d)
    return torch.autograd.grad((y[:, 0] ** 2).sum(), query)[0]


def gradient_contests(settings: Settings) -> list[Contest]:
    return [_gradient_contest(settings, settings.size(n, 16)) for n in GRADIENTS]


def _gradient_contest(settings: Settings, n: int) -> Contest:
    points = cache(lambda: uniform(n, 3, settings.seed).cuda())

    def build(make: Callable[[Tensor, float], Call]) -> Ready:
        require_gpu()
        return Ready(make(points(), 1e-6), {"rtol": 1e-6})

    def error(result: Any) -> float:
        found = as_tensor(result).cpu()
        expected = truth().cpu()
        return float((found - expected).abs().max() / expected.abs().max())

    truth = cache(
        lambda: torch_gradient(points()) if n <= 1024 else attractor_gradient(points(), 1e-9, engine="triton")()
    )
    return Contest(
        group="gpu_gradients",
        name=f"GPU, gradient through a run to T={UNTIL:g}, {n} tokens, float64",
        ours=Contender("attractor flow", lambda: build(attractor_gradient)),
        peers=(Contender("diffrax on the GPU, warm", lambda: build(diffrax_gradient), GRADIENT_TARGET),),
        error=error,
        tolerance=1e-4,
        dim=3,
        device="cuda",
        timer=wall_time_on_gpu,
    )


# ------------------------------------------------------------------ noise and a phase diagram


def noise_contests(settings: Settings) -> list[Contest]:
    return [_noise_contest(settings, method, dtype) for method in ("euler", "strang2") for dtype in RTOL]


def _noise_contest(settings: Settings, method: str, dtype: str) -> Contest:
    from attractor.laws import Attention
    from attractor.solvers import Noise, flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    members, n = settings.size(NOISY, (4, 8))
    steps, h = settings.size(NOISY_STEPS, 5), 0.01
    points = cache(lambda: uniform(n, 3, settings.seed, dtype, members).cuda())
    law, noise = Attention.isotropic(3, BETA), Noise(NOISE, seed=settings.seed)
    asked: dict[str, Any] = {"space": Sphere(), "method": method, "step": h, "until": h * steps, "save": [h * steps]}

    def ready() -> Ready:
        require_gpu()
        tokens = Tokens(points(), dtype=points().dtype)
        return Ready(lambda: flow(law, tokens, noise=noise, **asked).points[-1])

    def error(result: Any) -> float:
        """Against the loop in Python, whose members have the same random numbers."""
        some = Tokens(points()[:CHECKED].double())
        slow = flow(law, some, noise=noise, engine="reference", **asked).points[-1]
        return float((as_tensor(result)[:CHECKED].double() - slow).abs().max())

    return Contest(
        group="gpu_noise",
        name=f"GPU, {members} systems of {n} tokens with noise, {steps} steps of {method}, {dtype}",
        ours=Contender("attractor flow", ready),
        peers=(),
        error=error,
        tolerance={"float64": 1e-8, "float32": 5e-2}[dtype],
        dtype=dtype,
        dim=3,
        device="cuda",
        timer=wall_time_on_gpu,
    )


def make_phase(beta: float, seed: int, starts: int) -> Any:
    """The system of a cell of the phase diagram."""
    from attractor.laws import Attention
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    return Attention.isotropic(3, beta), Tokens.uniform(TOKENS, 3, seed, ensemble=starts), Sphere()


def phase_contests(settings: Settings) -> list[Contest]:
    """The phase diagram of the row ``phase``: by one run for each beta, and by ``sweep`` with its folder and table."""
    betas, starts = settings.size(BETAS, 3), settings.size(STARTS, 4)
    values = torch.linspace(0.1, 9.0, betas, dtype=torch.float64).tolist()

    def together() -> Tensor:
        from attractor.laws import Attention
        from attractor.solvers import flow
        from attractor.states import Tokens

        curves, points = [], Tokens.uniform(TOKENS, 3, settings.seed, ensemble=(starts,)).to("cuda")
        for beta in values:
            law = Attention.isotropic(3, beta)
            asked: dict[str, Any] = {"space": "sphere", "until": HORIZON, "save": SAVES, "stop": (), "merge": False}
            run = flow(law, points, observe="pair_fraction", **asked)
            curves.append(run.observed["pair_fraction"].mean(1))
        return torch.stack(curves)

    def swept() -> Tensor:
        from attractor.sweeps import sweep

        asked: dict[str, Any] = {"until": HORIZON, "save": SAVES, "stop": (), "merge": False, "device": "cuda"}
        found = sweep(make_phase, {"beta": values}, starts=starts, observe="pair_fraction", seed=settings.seed, **asked)
        return torch.stack([torch.as_tensor(found.values("pair_fraction", beta=beta)).mean(1) for beta in values])

    def ready(function: Callable[[], Tensor]) -> Ready:
        require_gpu()
        start = time.perf_counter()
        function()
        return Ready(function, {"first_seconds": time.perf_counter() - start})

    def wrong(result: Tensor) -> float:
        """Fractions lie in [0, 1], all tokens are together at the end for a small beta and not for a large one."""
        good = bool(((result >= 0) & (result <= 1)).all()) and tuple(result.shape) == (betas, SAVES + 1)
        return 0.0 if good and bool(result[0, -1] >= result[-1, -1]) else float("inf")

    return [
        Contest(
            group="gpu_phase",
            name=f"GPU, {betas} betas x {starts} starts x {TOKENS} tokens, T={HORIZON:g}, {SAVES} values of pair_fraction",
            ours=Contender("attractor flow for each beta", lambda: ready(together)),
            peers=(Contender("attractor sweep", lambda: ready(swept)),),
            error=wrong,
            tolerance=0.0,
            device="cuda",
            timer=wall_time_on_gpu,
        )
    ]
