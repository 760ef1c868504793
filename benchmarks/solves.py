"""Rows of whole solves, everyone at a tolerance tuned to the same error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.racing import (
    Contender,
    Contest,
    Ready,
    Settings,
    Skip,
    as_tensor,
    import_peer,
    time_interleaved,
    uniform,
    wall_time,
)

Solve = Callable[[float], Any]


def ours(x: Tensor, beta: float, until: float, **options: Any) -> Solve:
    """``flow`` as it comes, but that it may not end early."""
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    law, tokens, space = Attention.isotropic(x.shape[-1], beta), Tokens(x), Sphere()
    asked = {"until": until, "save": [until], "stop": (), **options}
    # the last of the saved times is the end
    return lambda rtol: flow(law, tokens, space=space, rtol=rtol, atol=rtol, **asked).points[-1]


def torchdiffeq_dopri5(x: Tensor, beta: float, until: float) -> Solve:
    odeint = import_peer("torchdiffeq").odeint
    times = torch.tensor([0.0, until], dtype=x.dtype)

    def field(time: Tensor, x: Tensor) -> Tensor:
        drive = torch.softmax(beta * (x @ x.T), dim=-1) @ x
        return drive - (drive * x).sum(-1, keepdim=True) * x

    def solve(rtol: float) -> Tensor:
        with torch.no_grad():
            return odeint(field, x, times, rtol=rtol, atol=rtol, method="dopri5")[-1]

    return solve


def scipy_dop853(x: Tensor, beta: float, until: float) -> Solve:
    """Scipy with the field in numpy."""

    def drive(x: np.ndarray) -> np.ndarray:
        weights = beta * (x @ x.T)
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        return (weights @ x) / weights.sum(axis=-1, keepdims=True)

    return _scipy(x, until, drive)


def scipy_on_fused(x: Tensor, beta: float, until: float) -> Solve:
    """Scipy with our engine: an integrator that is not ours on a field that is fast, to check reference solutions."""
    from attractor.engines import attend

    def drive(x: np.ndarray) -> np.ndarray:
        points = torch.from_numpy(x)
        output, _ = attend(beta * points, points, points)
        assert output is not None
        return output.numpy()

    return _scipy(x, until, drive)


def _scipy(x: Tensor, until: float, drive: Callable[[np.ndarray], np.ndarray]) -> Solve:
    from scipy.integrate import solve_ivp

    shape = tuple(x.shape)

    def field(time: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(shape)
        b = drive(x)
        return (b - (b * x).sum(axis=-1, keepdims=True) * x).reshape(-1)

    def solve(rtol: float) -> np.ndarray:
        start = x.numpy().reshape(-1)
        return solve_ivp(field, (0.0, until), start, method="DOP853", rtol=rtol, atol=rtol).y[:, -1].reshape(shape)

    return solve


def diffrax_tsit5(x: Tensor, beta: float, until: float) -> Solve:
    """Compiled once for all tolerances; an ensemble (members, n, d) is vmapped, each member with its own steps."""
    jax, diffrax = import_peer("jax"), import_peer("diffrax")
    jax.config.update("jax_enable_x64", True)

    def field(time, x, _):
        drive = jax.nn.softmax(beta * (x @ x.T), axis=-1) @ x
        return drive - (drive * x).sum(-1, keepdims=True) * x

    def one(x, rtol):
        control = diffrax.PIDController(rtol=rtol, atol=rtol)
        where = {"saveat": diffrax.SaveAt(t1=True), "stepsize_controller": control, "max_steps": None, "throw": False}
        solution = diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, until, None, x, **where)
        return solution.ys[-1]

    compiled = jax.jit(one if x.ndim == 2 else jax.vmap(one, in_axes=(0, None)))
    start = jax.numpy.asarray(x.numpy())
    return lambda rtol: compiled(start, rtol).block_until_ready()


GOAL = 1e-6  # the error of a coordinate at the end
NEAR = 0.25  # an error above this share of the goal is near enough
TRIES = 7
FINEST, COARSEST = 1e-13, 1e-2


@dataclass(frozen=True)
class Truth:
    """The reference solution of a problem, and how far an integrator that is not ours is from it."""

    x: Tensor
    beta: float
    until: float
    rtol: float = 1e-12

    @cached_property
    def points(self) -> Tensor:
        return ours(self.x, self.beta, self.until, method="dop853", merge=False)(self.rtol)

    def error(self, result: Any) -> float:
        """The largest error of a coordinate of any token of any member."""
        found = as_tensor(result)
        return float((found - self.points).abs().max()) if found.shape == self.points.shape else float("inf")

    def checked(self, members: int = 2) -> dict[str, Any]:
        """Scipy's DOP853 at the same tolerance must agree (on the first members of an ensemble)."""
        some = self.x[None] if self.x.ndim == 2 else self.x[:members]
        points = self.points[None] if self.x.ndim == 2 else self.points[:members]
        apart = max(
            float((as_tensor(scipy_on_fused(x, self.beta, self.until)(self.rtol)) - end).abs().max())
            for x, end in zip(some, points, strict=True)
        )
        if not apart <= 0.1 * GOAL:
            raise Skip(f"the reference solution is not sure: scipy differs from it by {apart:.1e}")
        return {"reference": f"attractor dop853, rtol {self.rtol:g}", "scipy_differs_by": apart}


def tune(solve: Solve, error: Callable[[Any], float], start: float = GOAL, goal: float = GOAL) -> Ready:
    """The solve at the loosest tolerance found whose error is at most the goal and, where that can be had, near it.

    The error is about proportional to the tolerance, which gives the next one to try; where it is not (a step bound by
    stability does not grow with it), the search ends with the best that was seen.
    """
    rtol, best, loose = start, None, COARSEST * 30
    for _ in range(TRIES):
        seconds, result = wall_time(partial(solve, rtol))
        reached = error(result)
        if reached <= goal:
            best = max(best or (0.0, 0.0, 0.0), (rtol, reached, seconds))
        elif rtol < loose:
            loose = rtol
        if NEAR * goal <= reached <= goal or (best is not None and loose < 1.3 * best[0]):
            break
        aim = 0.6 * goal / reached if reached > 0 else 1e3
        following = rtol * (min(max(aim, 1e-3), 30.0) if reached == reached else 1e-2)
        if best is not None and not best[0] < following < loose:
            following = (best[0] * loose) ** 0.5
        if min(max(following, FINEST), COARSEST) == rtol:
            break
        rtol = min(max(following, FINEST), COARSEST)
    if best is None:
        raise Skip(f"no tolerance was found at which its error is {goal:g}; the last was {rtol:.1e}")
    rtol = best[0]
    return Ready(partial(solve, rtol), {"rtol": rtol, "tuned_error": best[1], "tuning_seconds": best[2]})


def choose_fastest(solves: dict[str, Solve], error: Callable[[Any], float]) -> Ready:
    """The fastest of several ways to the same error: that with the fastest of a few calls, taken in turns."""
    ready = {name: tune(solve, error) for name, solve in solves.items()}
    times = time_interleaved({name: one.call for name, one in ready.items()}, 2, wall_time)
    name = min(ready, key=lambda name: min(ready[name].note["tuning_seconds"], *times[name]))
    return Ready(ready[name].call, {"method": name, **ready[name].note})


BETAS = (1.0, 9.0, 25.0, 81.0)
METHODS = ("dopri5", "dop853")
# name of the peer: its solver, and the least ratio to ours
PEERS: dict[str, tuple[Callable[..., Solve], float]] = {
    "torchdiffeq dopri5, torch naive": (torchdiffeq_dopri5, 10.0),
    "scipy DOP853, numpy": (scipy_dop853, 15.0),
    "diffrax Tsit5, warm": (diffrax_tsit5, 2.5),
}


def contests(settings: Settings) -> list[Contest]:
    """One contest for each inverse temperature."""
    n, until = settings.size(1024, 32), settings.size(50.0, 5.0)
    return [
        solve_contest(
            group="solves",
            name=f"solve to error 1e-6, beta={beta:g}, n={n}, T={until:g}",
            truth=cache(lambda beta=beta: Truth(uniform(n, 3, settings.seed), beta, until)),
            peers=PEERS,
            variants={"attractor, merge=False": {"merge": False}},
        )
        for beta in settings.size(BETAS, (9.0,))
    ]


def solve_contest(
    group: str,
    name: str,
    truth: Callable[[], Truth],
    peers: dict[str, tuple[Callable[..., Solve], float]],
    variants: dict[str, dict[str, Any]] | None = None,
) -> Contest:
    """``flow`` by the better of its two adaptive methods against peers; variants of ours run beside it, without target."""

    def own(**options: Any) -> Ready:
        problem = truth()
        solves = {method: ours(problem.x, problem.beta, problem.until, method=method, **options) for method in METHODS}
        return choose_fastest(solves, problem.error)

    def theirs(solver: Callable[..., Solve]) -> Ready:
        problem = truth()
        return tune(solver(problem.x, problem.beta, problem.until), problem.error)

    beside = [Contender(label, lambda options=options: own(**options)) for label, options in (variants or {}).items()]
    return Contest(
        group=group,
        name=name,
        ours=Contender("attractor flow", own),
        peers=(
            *(
                Contender(label, lambda solver=solver: theirs(solver), least)
                for label, (solver, least) in peers.items()
            ),
            *beside,
        ),
        error=lambda result: truth().error(result),
        tolerance=GOAL,
        check=lambda: truth().checked(),
    )


TOKENS, SMALL_BETA = 16, 9.0


def small_contests(settings: Settings) -> list[Contest]:
    until, members = settings.size(50.0, 5.0), settings.size(1000, 8)
    one = cache(lambda: Truth(uniform(TOKENS, 3, settings.seed), SMALL_BETA, until))
    many = cache(lambda: Truth(uniform(TOKENS, 3, settings.seed, ensemble=members), SMALL_BETA, until))
    middle = cache(lambda: Truth(uniform(64, 3, settings.seed), 4.0, until / 10))
    where = f"n={TOKENS}, beta={SMALL_BETA:g}, T={until:g}"
    return [
        solve_contest("small", f"small solve, {where}", one, {"diffrax Tsit5, warm": (diffrax_tsit5, 1.0)}),
        solve_contest(
            "small",
            f"small solve, n=64, beta=4, T={until / 10:g}",
            middle,
            {"diffrax Tsit5, warm": (diffrax_tsit5, 2.0)},
        ),
        solve_contest(
            "small", f"{members} small solves, {where}", many, {"diffrax Tsit5, vmapped": (diffrax_tsit5, 2.0)}
        ),
    ]


MERGING_BETA, RTOL = 25.0, 1e-6
TOLERANCE = 1e-3  # of a coordinate at the end: the two runs must tell the same story


def merging_contests(settings: Settings) -> list[Contest]:
    n, until = settings.size(1024, 32), settings.size(1000.0, 20.0)
    points = cache(lambda: uniform(n, 3, settings.seed))
    truth = cache(lambda: ours(points(), MERGING_BETA, until, merge=False)(1e-8))

    def contender(name: str, target: float | None = None, **options: Any) -> Contender:
        return Contender(name, lambda: _ready(points, until, **options), target)

    return [
        Contest(
            group="merging",
            name=f"long horizon, beta={MERGING_BETA:g}, n={n}, T={until:g}, rtol={RTOL:g}",
            ours=contender("merged"),
            peers=(contender("unmerged", 8.0, merge=False),),
            error=lambda result: float((as_tensor(result) - truth()).abs().max()),
            tolerance=TOLERANCE,
        )
    ]


def _ready(points: Any, until: float, **options: Any) -> Ready:
    solve = ours(points(), MERGING_BETA, until, **options)
    return Ready(lambda: solve(RTOL), {"rtol": RTOL, "merge": options.get("merge", "as flow chooses")})


STIFF_RTOL = 1e-8


@dataclass(frozen=True)
class Stiff:
    """Softmax attention with Q'K = scale I and V = c I whose fast attraction limits explicit steps, in numpy for scipy's methods."""

    x: Tensor
    scale: float
    factor: float
    until: float
    causal: bool = False
    curved: bool = False

    def ours(self, rtol: float = STIFF_RTOL, **options: Any) -> Tensor:
        """``flow`` as it comes, but that it may not end early."""
        from attractor.laws import Attention
        from attractor.solvers import flow
        from attractor.states import Tokens

        eye = torch.eye(self.x.shape[-1], dtype=self.x.dtype)
        law = Attention(eye, eye, self.factor * eye, scale=self.scale, mask="causal" if self.causal else None)
        space = "sphere" if self.curved else None
        asked = {"until": self.until, "save": [self.until], "stop": (), "rtol": rtol, "atol": 0.01 * rtol, **options}
        return flow(law, Tokens(self.x), space=space, **asked).points[-1]

    def weights(self, x: np.ndarray) -> np.ndarray:
        scores = self.scale * (x @ x.T)
        if self.causal:
            scores[np.triu_indices(len(x), 1)] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        return weights / weights.sum(axis=-1, keepdims=True)

    def field(self, time: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(self.x.shape)
        v = self.factor * (self.weights(x) @ x)
        return (v - (v * x).sum(-1, keepdims=True) * x if self.curved else v).ravel()

    def jacobian(self, time: float, flat: np.ndarray) -> np.ndarray:
        x = flat.reshape(self.x.shape)
        n, d = x.shape
        w, own, eye = self.weights(x), np.arange(n), np.eye(d)
        mean = w @ x
        u = w[..., None] * (x[None] - mean[:, None])
        J = self.scale * np.einsum("ijc,id->icjd", u, x) + w[:, None, :, None] * eye[None, :, None, :]
        J[own, :, own, :] += self.scale * np.einsum("ijc,jd->icd", u, x)
        J *= self.factor
        if self.curved:
            v = self.factor * mean
            J = J - np.einsum("ia,ib,ibkc->iakc", x, x, J)
            J[own, :, own, :] -= (v * x).sum(-1)[:, None, None] * eye + x[:, :, None] * v[:, None, :]
        return J.reshape(n * d, n * d)

    def scipy(self, method: str, rtol: float = STIFF_RTOL) -> np.ndarray:
        from scipy.integrate import solve_ivp

        start, options = self.x.numpy().ravel(), {"rtol": rtol, "atol": 0.01 * rtol, "jac": self.jacobian}
        found = solve_ivp(self.field, (0.0, self.until), start, method=method, **options)
        return found.y[:, -1].reshape(self.x.shape)

    @cached_property
    def points(self) -> Tensor:
        """The reference solution."""
        return self.ours(1e-10)

    def error(self, result: Any) -> float:
        return float((as_tensor(result) - self.points).abs().max())

    def checked(self) -> dict[str, Any]:
        """Scipy's Radau at a tight tolerance must agree."""
        apart = self.error(self.scipy("Radau", 1e-9))
        if not apart <= 0.1 * GOAL:
            raise Skip(f"the reference solution is not sure: scipy differs from it by {apart:.1e}")
        return {"reference": "attractor, rtol 1e-10", "scipy_differs_by": apart}


def stiff_contests(settings: Settings) -> list[Contest]:
    """Two systems that take millions of explicit steps, against scipy's stiff methods with the exact Jacobian, all at rtol 1e-8."""
    from attractor.states import Tokens

    repelling, causal = settings.size(10.0, 0.3), settings.size(1e9, 1e4)
    flat = Stiff(Tokens.gaussian(8, 3, settings.seed).points, 1e8, -1.0, repelling)
    curved = Stiff(uniform(TOKENS, 3, settings.seed), 500.0, 1.0, causal, causal=True, curved=True)
    return [
        Contest(
            group="stiff",
            name=name,
            ours=Contender("attractor flow", lambda problem=problem: Ready(problem.ours, {"rtol": STIFF_RTOL})),
            peers=tuple(
                Contender(
                    f"scipy {method}, exact Jacobian",
                    lambda problem=problem, method=method: Ready(partial(problem.scipy, method), {"rtol": STIFF_RTOL}),
                )
                for method in ("Radau", "LSODA")
            ),
            error=problem.error,
            tolerance=GOAL,
            check=problem.checked,
        )
        for name, problem in (
            (f"stiff, flat, V=-I, scale=1e8, n=8, T={repelling:g}", flat),
            (f"stiff, causal, beta=500, n={TOKENS}, T={causal:g}", curved),
        )
    ]


NOISE, NOISE_BETA, NOISE_STEP = 0.05, 4.0, 0.01
LEAST_NOISY = 20.0  # times as fast as a loop in PyTorch


def plain_velocity(x: Tensor) -> Tensor:
    """Softmax attention on the unit sphere, as one writes it in PyTorch."""
    velocity = torch.softmax(NOISE_BETA * x @ x.mT, -1) @ x
    return velocity - x * (velocity * x).sum(-1, keepdim=True)


def plain_retract(y: Tensor) -> Tensor:
    return y / torch.linalg.vector_norm(y, dim=-1, keepdim=True)


def plain_euler(x: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    return plain_retract(x + NOISE_STEP * plain_velocity(x) + (2 * NOISE * NOISE_STEP) ** 0.5 * noise)


def plain_strang2(x: Tensor, generator: torch.Generator) -> Tensor:
    """The method of ``flow`` in PyTorch."""

    def half(x: Tensor) -> Tensor:
        slope = plain_velocity(x)
        return plain_retract(x + NOISE_STEP / 4 * (slope + plain_velocity(plain_retract(x + NOISE_STEP / 2 * slope))))

    x = half(x)
    noise = torch.randn(x.shape, dtype=x.dtype, generator=generator)
    factor = 1 - (x.shape[-1] - 2) * NOISE * NOISE_STEP / 3
    move = (2 * NOISE * NOISE_STEP * factor) ** 0.5 * (noise - x * (noise * x).sum(-1, keepdim=True))
    turn = torch.linalg.vector_norm(move, dim=-1, keepdim=True)
    return half(x * turn.cos() + move * torch.sinc(turn / torch.pi))


def noise_contests(settings: Settings) -> list[Contest]:
    """Ensembles with noise against loops in PyTorch. Paths differ, so that errors are those of the mean cosine over members."""
    members, n, steps = settings.size(20000, 200), settings.size(32, 8), settings.size(20, 5)
    points = cache(lambda: uniform(n, 3, settings.seed, ensemble=members))

    def own(method: str) -> Ready:
        from attractor.laws import Attention
        from attractor.solvers import Noise, flow
        from attractor.spaces import Sphere
        from attractor.states import Tokens

        law, tokens, until = Attention.isotropic(3, NOISE_BETA), Tokens(points()), NOISE_STEP * steps
        options = {"space": Sphere(), "noise": Noise(NOISE, seed=settings.seed), "method": method, "step": NOISE_STEP}
        return Ready(lambda: flow(law, tokens, until=until, save=[until], **options).points[-1], {"method": method})  # type: ignore[arg-type]

    def plain(step: Callable[[Tensor, torch.Generator], Tensor]) -> Ready:
        def loop() -> Tensor:
            x, generator = points(), torch.Generator().manual_seed(settings.seed)
            for _ in range(steps):
                x = step(x, generator)
            return x

        return Ready(loop, {})

    def order(x: Tensor) -> float:
        return float((x.mean(-2) ** 2).sum(-1).mean())

    return [
        Contest(
            group="noise",
            name=f"{members} systems of {n} tokens with noise, {steps} steps of {method}",
            ours=Contender("attractor flow", lambda method=method: own(method)),
            peers=(Contender("PyTorch loop", lambda step=step: plain(step), LEAST_NOISY),),
            error=lambda result, step=step: abs(order(as_tensor(result)) - order(plain(step).call())),
            tolerance=0.02,
        )
        for method, step in (("euler", plain_euler), ("strang2", plain_strang2))
    ]
