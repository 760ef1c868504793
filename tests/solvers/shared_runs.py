"""Started by torchrun from test_process_group.py: runs on two processes, and what came of them as one JSON file for each rank."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import attractor as at
from attractor.engines import distributed, fused, native
from attractor.solvers import process_group

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[1])
FOUND: dict[str, Any] = {}
GATHERED: list[int] = []
SHARED: list[int] = []
CURRENT: list[str] = []  # the case at hand

sphere, ellipsoid = at.Sphere(), at.Ellipsoid(torch.diag(torch.tensor([1.0, 2.0, 4.0])))


def tokens(n: int = 24, seed: int = 1, **options: Any) -> at.Tokens:
    return at.Tokens.uniform(n, 3, seed=seed, **options)


def weighted(n: int = 24) -> at.Tokens:
    return at.Tokens(tokens(n).points, masses=torch.linspace(1.0, 3.0, n))


def isotropic(beta: float = 3.0, **options: Any) -> at.Attention:
    return at.Attention.isotropic(3, beta, **options)


def heads(**options: Any) -> at.Attention:
    return at.Attention.random(3, heads=2, head_dim=3, seed=4, **options)


SOON = {"until": 0.5, "merge": False}
LARGE = {"space": sphere, "until": 0.02, "method": "rk4", "step": 0.01, "save": [0.02], "merge": False}
native.reason = "processes that share a run take its steps in Python, and so does the run that they are compared with"
BITWISE = None if fused.reason else "fused"  # the engine whose large pieces have the bits of the whole
VISIBLE = torch.ones(24, 24, dtype=torch.bool).tril(3)
CASES: dict[str, Callable[[], tuple[at.Law, Any, dict[str, Any]]]] = {
    **{
        f"kernel {name}": lambda name=name: (isotropic(kernel=name), tokens(), {"space": sphere, **SOON})
        for name in ("softmax", "l2", "sigmoid", "exponential", "linear")
    },
    **{
        f"mask {mask}": lambda mask=mask: (heads(mask=mask), tokens(25), {"space": ellipsoid, **SOON})
        for mask in ("causal", "window:5")
    },
    "linear, causal": lambda: (heads(kernel="linear", mask="causal"), tokens(), dict(until=0.2)),
    "kernel sinkhorn": lambda: (isotropic(1.0, kernel="sinkhorn"), tokens(), {"space": sphere, **SOON, "until": 0.05}),
    "sinkhorn, two heads": lambda: (heads(kernel="sinkhorn"), weighted(), {**SOON, "until": 0.05}),
    "a matrix as mask": lambda: (heads(mask=VISIBLE), tokens(), {"space": sphere, **SOON}),
    "masses": lambda: (isotropic(kernel="l2"), weighted(), {"space": sphere, **SOON}),
    "rotary positions": lambda: (at.Attention.random(4, seed=2, positions=at.Rotary()), at.Tokens.uniform(9, 4, seed=3), SOON),
    "merging to consensus": lambda: (isotropic(1.0), tokens(), dict(space=sphere, until=200.0, merge=1e-3)),
    "an ensemble with its own ends": lambda: (isotropic(1.0), tokens(5, ensemble=(3,)), dict(space=sphere, until=60.0)),
    "fewer tokens than ranks": lambda: (isotropic(1.0), tokens(1), dict(until=0.5)),
    "a stack": lambda: (at.Stack((heads(), heads(mask="causal"))), tokens(), {}),
    "layers": lambda: (isotropic(), tokens(), dict(space=sphere, until=5.0, method="layers")),
    "float32": lambda: (isotropic(), at.Tokens(tokens().points, dtype=torch.float32), {"space": sphere, **SOON}),
    "blockwise": lambda: (isotropic(), tokens(), {"space": sphere, "engine": "blockwise", **SOON}),
    "a Gaussian": lambda: (isotropic(-1.0), at.Gaussian([0.1, 0.2, 0.0], torch.eye(3)), dict(until=1.0)),
    "an event": lambda: (isotropic(), tokens(), {"space": sphere, **SOON, "events": [at.Event(lambda state, t: 0.3 - t)]}),
    "noise": lambda: (isotropic(), weighted(), {"space": sphere, "until": 0.5, "step": 0.05, "noise": at.Noise(0.1, seed=3)}),
    "common noise": lambda: (
        heads(), tokens(5, ensemble=(3,)), {"space": ellipsoid, "until": 0.5, "step": 0.05, "noise": at.Noise(0.1, common=0.2)}
    ),
    "redrawn values": lambda: (isotropic(), tokens(), {"space": sphere, "until": 0.5, "step": 0.1, "noise": at.Redrawn(0.7)}),
    "few evaluations": lambda: (isotropic(), tokens(), {"space": sphere, **SOON, "max_evaluations": 30}),
    "large": lambda: (isotropic(9.0), tokens(1100), {**LARGE, "engine": BITWISE}),
    "large, causal": lambda: (isotropic(9.0, mask="causal"), tokens(1100), {**LARGE, "engine": BITWISE}),
    "large, apart": lambda: (isotropic(9.0), tokens(1100), {**LARGE, "engine": BITWISE}),
    "larger": lambda: (isotropic(9.0), tokens(1700, ensemble=(2,)), {**LARGE, "engine": BITWISE}),
    "large, any engine": lambda: (isotropic(9.0), tokens(1100), LARGE),
}  # fmt: skip


def digest(run: at.Trajectory) -> str:
    return hashlib.sha256(run.points.numpy().tobytes() + run.times.numpy().tobytes()).hexdigest()


def compared(make: Callable[[], tuple[at.Law, Any, dict[str, Any]]]) -> dict[str, Any]:
    """The run of this rank alone beside the shared one."""
    (law, state, options), GATHERED[:], SHARED[:] = make(), [], []
    alone, shared = (at.flow(law, state, distributed=wanted, **options) for wanted in (False, None))
    return {
        "difference": float((alone.points - shared.points).abs().max()) if alone.points.shape == shared.points.shape else None,
        "outcomes": [[str(outcome) for outcome in run.outcomes] for run in (alone, shared)],
        "steps": [[run.stats.evaluations, run.stats.accepted, run.stats.merges, run.stats.engine] for run in (alone, shared)],
        "processes": [alone.stats.processes, shared.stats.processes],
        "digest": digest(shared),
        "seconds": shared.stats.seconds,
        "exchanges": len(GATHERED),
        "shared": len(SHARED),
    }  # fmt: skip


def failing(call: Callable[[], Any]) -> list[str]:
    """The name and the words of an error."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]


def on_rank(rank: int, act: Callable[[], Any], after: float = 0.05) -> at.Event:
    """Something that happens on one rank only, in mid-run."""

    def function(state: at.Tokens, t: float) -> float:
        if rank == RANK and t > after:
            act()
        return 1.0

    return at.Event(function)


def stumble() -> None:
    raise ValueError("out of cheese")


def stores() -> None:
    law, state, options = isotropic(), tokens(), dict(space=sphere, until=2.0, save=7)
    path = FOLDER / "run"
    whole = at.flow(law, state, **options)
    first = at.flow(law, state, store=path, max_evaluations=20, **options)
    FOUND["stopped"] = [first.outcome.name, at.load(path).outcome.name]
    FOUND["store exists"] = failing(lambda: at.flow(law, state, store=path, **options))
    resumed = at.resume(path)
    FOUND["resumed"] = [resumed.outcome.name, digest(resumed) == digest(whole), resumed.stats.processes]
    at.flow(law, state, store=FOLDER / "part", max_evaluations=20, **options)  # the test resumes it, in one process
    FOUND["whole"] = whole.points.tolist()
    FOUND["budget"] = at.flow(law, state, max_seconds=1e-9, **options).outcome.message


def failures() -> None:
    law, state, options = isotropic(), tokens(), {"space": sphere, **SOON}

    def events(rank: int, act: Callable[[], Any]) -> Any:
        return failing(lambda: at.flow(law, state, events=[on_rank(rank, act)], **options))

    FOUND["raise on 1"] = events(1, stumble)
    FOUND["raise at shared memory"] = before_shared_memory(1, stumble)
    FOUND["raise before shared memory"] = before_shared_memory(1, stumble, 1)
    FOUND["raise on 0"] = events(0, stumble)
    FOUND["other tokens"] = failing(lambda: at.flow(law, tokens(seed=RANK), **options))
    FOUND["other size"] = failing(lambda: at.flow(law, tokens(20 + RANK), **options))
    FOUND["other options"] = failing(lambda: at.flow(law, state, space=sphere, until=1.0 + RANK))
    FOUND["bad on 1"] = failing(lambda: at.flow(law, state, until=1.0, rtol=None if RANK == 0 else 7.0))
    FOUND["bad everywhere"] = failing(lambda: at.flow(law, state, until=-1.0))
    FOUND["other law"] = failing(lambda: at.flow(Drift(), state, until=1.0))
    leaf = at.Attention(torch.eye(3), torch.eye(3), torch.eye(3).requires_grad_())
    FOUND["gradient"] = failing(lambda: at.flow(leaf, state, distributed=True, until=1.0))
    own = at.flow(leaf, at.Tokens.uniform(4 + RANK, 3, seed=0), until=0.1)  # as in data-parallel training
    FOUND["own gradient"] = [own.stats.processes, own.n, own.final.points.requires_grad]
    os.environ[process_group.VARIABLE] = "1"  # from the next meeting on
    FOUND["asleep"] = events(1, lambda: time.sleep(2.5))
    awake("first")
    FOUND["asleep at shared memory"] = before_shared_memory(1, lambda: time.sleep(2.5))
    awake("second")
    os.environ[process_group.VARIABLE] = "soon"
    FOUND["variable"] = failing(lambda: at.flow(law, state, **options))
    del os.environ[process_group.VARIABLE]
    FOUND["afterwards"] = compared(CASES["kernel softmax"])


def awake(name: str) -> None:
    """Until both are here."""
    (FOLDER / f"awake {name} {RANK}").touch()
    while not (FOLDER / f"awake {name} {1 - RANK}").exists():
        time.sleep(0.01)


def before_shared_memory(rank: int, act: Callable[[], Any], when: int = 4) -> list[str]:
    """Something that happens on one rank while the others compute in shared memory; the first time, while they make it."""
    law, state, options = CASES["large"]()
    calls: list[int] = []
    plain = process_group.ProcessGroup.shared_memory

    def shared_memory(self: process_group.ProcessGroup, bytes: int) -> Any:
        calls.append(1)
        if self.rank == rank and len(calls) == when:
            act()
        return plain(self, bytes)

    process_group.ProcessGroup.shared_memory = shared_memory  # type: ignore[method-assign]
    try:
        return failing(lambda: at.flow(law, state, **options))
    finally:
        process_group.ProcessGroup.shared_memory = plain  # type: ignore[method-assign]


@dataclass(frozen=True)
class Drift(at.Law):
    """A law that looks at what it should not."""

    def velocity(self, tokens: at.Tokens, time: float = 0.0, *, skip_self: bool = False) -> torch.Tensor:
        return tokens.points * (1.0 + RANK)


def main() -> None:
    torch.set_num_threads(1)
    distributed.MIN_PAIRS["cpu"] = 1
    gather = process_group.ProcessGroup.gather
    process_group.ProcessGroup.gather = lambda self, part: (GATHERED.append(1), gather(self, part))[1]  # type: ignore[method-assign]
    allocate = process_group.ProcessGroup.shared_memory

    def counted(self: process_group.ProcessGroup, bytes: int) -> Any:
        found = None if CURRENT == ["large, apart"] else allocate(self, bytes)
        SHARED.extend([1] * (found is not None))
        return found

    process_group.ProcessGroup.shared_memory = counted  # type: ignore[method-assign]
    FOUND["cases"] = {}
    for name, make in CASES.items():
        CURRENT[:] = [name]
        FOUND["cases"][name] = compared(make)
    stores()
    failures()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(FOUND))


if __name__ == "__main__":
    main()
