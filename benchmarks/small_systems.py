"""Whole solves of small systems on the sphere (Q'K = beta I, V = I) in float64, to one accuracy, contenders interleaved.

    python benchmarks/small_systems.py [--tokens 16] [--members 1] [--beta 9] [--until 50] [--error 1e-6] [--rounds 9]
        [--against diffrax,torchdiffeq,scipy] [--json]

``flow`` (this library) against warm, jitted diffrax (Tsit5, vmapped over members), torchdiffeq (dopri5, plain PyTorch) and
scipy (DOP853, numpy), those that are named and installed. Each runs at the loosest of the tolerances 1e-3, 1e-4, ...
that gives the asked error of every coordinate at the end, against DOP853 at 1e-13. Prints the smallest time of each, and the median
over rounds of its ratio to ``flow``. Takes less than a minute for one system, some minutes for a thousand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import attractor as at

Solve = Callable[[np.ndarray, float], np.ndarray]  # points (members, n, 3) and a tolerance to points at the end


def by_flow(beta: float, until: float, **options: object) -> Solve:
    law, plain = at.Attention.isotropic(3, beta), dict(save=[until], merge=False, stop=())

    def solve(x: np.ndarray, tolerance: float) -> np.ndarray:
        settings = plain | {"rtol": tolerance, "atol": tolerance} | options
        return at.flow(law, at.Tokens(x), space="sphere", until=until, **settings).final.points.numpy()  # type: ignore[arg-type]

    return solve


def by_diffrax(beta: float, until: float) -> Solve:
    import diffrax
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    def field(t, x, args):
        moved = jax.nn.softmax(beta * x @ x.T, axis=-1) @ x
        return moved - x * (x * moved).sum(-1, keepdims=True)

    @jax.jit
    def solve(x, tolerance):
        def one(x):
            control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
            end = diffrax.SaveAt(t1=True)
            term, method = diffrax.ODETerm(field), diffrax.Tsit5()
            return diffrax.diffeqsolve(
                term, method, 0.0, until, None, x, saveat=end, stepsize_controller=control, max_steps=None
            ).ys[0]

        return jax.vmap(one)(x) if len(x) > 1 else one(x[0])[None]

    return lambda x, tolerance: np.asarray(solve(jnp.asarray(x), tolerance).block_until_ready())


def by_torchdiffeq(beta: float, until: float) -> Solve:
    from torchdiffeq import odeint

    def field(t, x):
        moved = torch.softmax(beta * x @ x.mT, -1) @ x
        return moved - x * (x * moved).sum(-1, keepdim=True)

    def solve(x: np.ndarray, tolerance: float) -> np.ndarray:
        times = torch.tensor([0.0, until], dtype=torch.float64)
        rows = [
            odeint(field, torch.from_numpy(one), times, rtol=tolerance, atol=tolerance, method="dopri5") for one in x
        ]
        return torch.stack([row[-1] for row in rows]).numpy()  # type: ignore[index]

    return solve


def by_scipy(beta: float, until: float) -> Solve:
    from scipy.integrate import solve_ivp

    def solve(x: np.ndarray, tolerance: float) -> np.ndarray:
        def field(t, flat):
            y = flat.reshape(x.shape[1:])
            weights = np.exp(beta * (y @ y.T - 1.0))
            moved = weights @ y / weights.sum(1, keepdims=True)
            return (moved - y * (y * moved).sum(1, keepdims=True)).ravel()

        runs = [
            solve_ivp(field, (0, until), one.ravel(), method="DOP853", rtol=max(tolerance, 3e-14), atol=tolerance)
            for one in x
        ]
        return np.stack([run.y[:, -1].reshape(x.shape[1:]) for run in runs])

    return solve


def contenders(beta: float, until: float, names: list[str]) -> dict[str, Solve]:
    found: dict[str, Solve] = {"flow": by_flow(beta, until)}
    peers = {"diffrax": by_diffrax, "torchdiffeq": by_torchdiffeq, "scipy": by_scipy}
    for name, make in ((name, peers[name]) for name in names):
        try:
            found[name] = make(beta, until)
        except ImportError:
            print(f"{name} is not installed")
    return found


def tuned(solve: Solve, x: np.ndarray, truth: np.ndarray, wanted: float) -> tuple[float, float]:
    """The loosest tolerance that is accurate enough, and its error; the call that finds it also warms the contender."""
    for power in range(3, 14):
        error = float(np.abs(solve(x, 10.0**-power) - truth).max())
        if error <= wanted:
            return 10.0**-power, error
    raise SystemExit(f"no tolerance gives an error below {wanted:g}")


def timed(solve: Solve, x: np.ndarray, tolerance: float) -> float:
    began = time.perf_counter()
    solve(x, tolerance)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="Whole solves of small systems.")
    for name, default in {"tokens": 16, "members": 1, "rounds": 9, "threads": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in {"beta": 9.0, "until": 50.0, "error": 1e-6}.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--against", default="diffrax", help="any of diffrax, torchdiffeq and scipy, with commas")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    x = at.Tokens.uniform(given.tokens, 3, seed=1, ensemble=(given.members,)).points.numpy()
    truth = by_flow(given.beta, given.until, method="dop853")(x, 1e-13)
    racing = contenders(given.beta, given.until, given.against.split(","))
    settings = {name: tuned(solve, x, truth, given.error) for name, solve in racing.items()}
    rounds = [{name: timed(solve, x, settings[name][0]) for name, solve in racing.items()} for _ in range(given.rounds)]
    table = {
        name: {
            "milliseconds": 1e3 * min(times[name] for times in rounds),
            "ratio": statistics.median(times[name] / times["flow"] for times in rounds),
            "tolerance": settings[name][0],
            "error": settings[name][1],
        }
        for name in racing
    }
    if given.json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        numbers = f"{row['milliseconds']:10.3f} ms, {row['ratio']:7.2f} x flow"
        print(f"{name:12} {numbers}, tolerance {row['tolerance']:.0e}, error {row['error']:.1e}")


if __name__ == "__main__":
    main()
