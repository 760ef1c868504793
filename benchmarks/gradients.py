"""Rows of gradients through a solve, and of a phase diagram."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.racing import Contender, Contest, Ready, Settings, as_tensor, import_peer, uniform
from benchmarks.solves import Solve, tune

SIZES = (64, 512)
UNTIL = 2.0
GOAL = 1e-6  # the error of the gradient, relative to its largest entry
RULE = 2.0  # of query and key: Q'K = 4 I


@dataclass(frozen=True)
class Problem:
    """The gradient with respect to the query Q of the sum of squares of the first coordinates at the end."""

    x: Tensor

    @cached_property
    def gradient(self) -> Tensor:
        """By autograd through the loop in Python."""
        return ours(self.x, engine="reference")(1e-11)

    def error(self, result: Any) -> float:
        found = as_tensor(result)
        return float((found - self.gradient).abs().max() / self.gradient.abs().max())


def ours(x: Tensor, **options: Any) -> Solve:
    from attractor.laws import Attention
    from attractor.solvers import flow
    from attractor.spaces import Sphere
    from attractor.states import Tokens

    eye, tokens = torch.eye(x.shape[-1], dtype=x.dtype), Tokens(x)

    def solve(rtol: float) -> Tensor:
        query = (RULE * eye).requires_grad_()
        law = Attention(query, RULE * eye, eye)
        asked = {"until": UNTIL, "save": [UNTIL], "stop": (), "rtol": rtol, "atol": 0.01 * rtol, **options}
        end = flow(law, tokens, space=Sphere(), **asked).points[-1]
        return torch.autograd.grad((end[:, 0] ** 2).sum(), query)[0]

    return solve


def drive_torch(query: Tensor, x: Tensor) -> Tensor:
    drive = torch.softmax((x @ query.mT) @ (RULE * x).mT, dim=-1) @ x
    return drive - (drive * x).sum(-1, keepdim=True) * x


def torchdiffeq_dopri5(x: Tensor) -> Solve:
    """Backpropagation through the steps."""
    odeint = import_peer("torchdiffeq").odeint
    times = torch.tensor([0.0, UNTIL], dtype=x.dtype)

    def solve(rtol: float) -> Tensor:
        query = (RULE * torch.eye(x.shape[-1], dtype=x.dtype)).requires_grad_()
        end = odeint(lambda t, y: drive_torch(query, y), x, times, rtol=rtol, atol=0.01 * rtol, method="dopri5")[-1]
        return torch.autograd.grad((end[:, 0] ** 2).sum(), query)[0]

    return solve


def torchode_dopri5(x: Tensor) -> Solve:
    """Backpropagation through the steps; tokens are one flat state."""
    torchode = import_peer("torchode")

    def solve(rtol: float) -> Tensor:
        query = (RULE * torch.eye(x.shape[-1], dtype=x.dtype)).requires_grad_()
        term = torchode.ODETerm(lambda t, y: drive_torch(query, y.reshape(-1, *x.shape)).reshape(y.shape))
        control = torchode.IntegralController(atol=0.01 * rtol, rtol=rtol, term=term)
        solver = torchode.AutoDiffAdjoint(torchode.Dopri5(term=term), control)
        span = torch.tensor([[0.0, UNTIL]], dtype=x.dtype)
        problem = torchode.InitialValueProblem(y0=x.reshape(1, -1), t_eval=span)
        end = solver.solve(problem).ys[0, -1].reshape(x.shape)
        return torch.autograd.grad((end[:, 0] ** 2).sum(), query)[0]

    return solve


def diffrax_dopri5(x: Tensor) -> Solve:
    """Compiled once for all tolerances, with the checkpoints that diffrax chooses."""
    jax, diffrax = import_peer("jax"), import_peer("diffrax")
    jax.config.update("jax_enable_x64", True)

    def field(time, x, query):
        drive = jax.nn.softmax((x @ query.T) @ (RULE * x).T, axis=-1) @ x
        return drive - (drive * x).sum(-1, keepdims=True) * x

    def loss(query, start, rtol):
        control = diffrax.PIDController(rtol=rtol, atol=0.01 * rtol)
        term, solver = diffrax.ODETerm(field), diffrax.Dopri5()
        found = diffrax.diffeqsolve(
            term, solver, 0.0, UNTIL, None, start, args=query, stepsize_controller=control, max_steps=256, throw=False
        )
        return (found.ys[-1][:, 0] ** 2).sum()

    compiled = jax.jit(jax.grad(loss))
    start, query = jax.numpy.asarray(x.numpy()), RULE * jax.numpy.eye(x.shape[-1])
    return lambda rtol: compiled(query, start, rtol).block_until_ready()


# name of the peer: its solver, and the least ratio to ours
PEERS: dict[str, tuple[Callable[[Tensor], Solve], float | None]] = {
    "diffrax Dopri5, warm": (diffrax_dopri5, 3.0),
    "torchdiffeq dopri5, torch naive": (torchdiffeq_dopri5, None),
    "torchode dopri5, torch naive": (torchode_dopri5, None),
}


def contests(settings: Settings) -> list[Contest]:
    """One contest for each number of tokens."""
    return [_contest(settings, n) for n in settings.size(SIZES, (8,))]


def _contest(settings: Settings, n: int) -> Contest:
    problem = cache(lambda: Problem(uniform(n, 3, settings.seed)))

    def build(solver: Callable[[Tensor], Solve]) -> Ready:
        return tune(solver(problem().x), problem().error, goal=GOAL)

    return Contest(
        group="gradients",
        name=f"gradient through a solve to error 1e-6, beta=4, n={n}, T={UNTIL:g}",
        ours=Contender("attractor flow, dopri5", lambda: build(lambda x: ours(x, method="dopri5"))),
        peers=tuple(
            Contender(label, lambda solver=solver: build(solver), least) for label, (solver, least) in PEERS.items()
        ),
        error=lambda result: problem().error(result),
        tolerance=GOAL,
    )


BETAS, STARTS, TOKENS, HORIZON, SAVES = 90, 2048, 32, 30.0, 200


def phase_contests(settings: Settings) -> list[Contest]:
    """A phase diagram of inverse temperatures and starts; its observable is computed during the run."""
    betas, starts = settings.size(BETAS, 3), settings.size(STARTS, 4)

    def diagram() -> Tensor:
        from attractor.laws import Attention
        from attractor.solvers import flow
        from attractor.states import Tokens

        points = Tokens.uniform(TOKENS, 3, settings.seed, ensemble=(starts,))
        curves = []
        for beta in torch.linspace(0.1, 9.0, betas).tolist():
            law = Attention.isotropic(3, beta)
            run = flow(law, points, space="sphere", until=HORIZON, save=SAVES, observe="pair_fraction", stop=())
            curves.append(run.observed["pair_fraction"].mean(1))
        return torch.stack(curves)

    def ready() -> Ready:
        start = time.perf_counter()
        diagram()
        return Ready(diagram, {"first_seconds": time.perf_counter() - start})

    def wrong(result: Tensor) -> float:
        """Fractions are between 0 and 1, and larger at the end than at the start."""
        good = bool(((result >= 0) & (result <= 1)).all()) and bool((result[:, -1] >= result[:, 0]).all())
        return 0.0 if good and tuple(result.shape) == (betas, SAVES + 1) else float("inf")

    return [
        Contest(
            group="phase",
            name=f"{betas} betas x {starts} starts x {TOKENS} tokens, T={HORIZON:g}, {SAVES} values of pair_fraction",
            ours=Contender("attractor flow, observe", ready),
            peers=(),
            error=wrong,
            tolerance=0.0,
        )
    ]
