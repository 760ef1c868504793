"""A random matrix of calls of ``attend``: an engine against the reference in float64, forward and backward.

    python tests/engines/matrix.py ENGINE COUNT SEED LARGEST

prints a line for every call that differs by more than rounding, and the number of calls; the exit status says whether all agree.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attractor.engines import Problem, dispatch
from attractor.errors import UnsupportedError

LANES = (
    ((), (), (), ()),
    ((2,), (2,), (2,), (2,)),
    ((2, 3), (3,), (2, 1), (2, 1)),
    ((), (2,), (), (2,)),
)


@dataclass(frozen=True)
class Call:
    """Operands, options and the size of the scores."""

    operands: tuple[Tensor, Tensor, Tensor | None, Tensor | None]
    options: dict[str, Any]
    size: float

    def problem(self, operands: Sequence[Tensor | None] | None = None) -> Problem:
        """The question, for these operands or others of the same shapes."""
        options = {"visible": None, **self.options}
        order = ("mode", "causal", "window", "visible", "skip_self", "offset")
        return Problem(*(operands or self.operands), *(options[name] for name in order))  # type: ignore[arg-type]

    def describe(self) -> str:
        shapes = [None if part is None else tuple(part.shape) for part in self.operands]
        shown = {
            name: tuple(value.shape) if isinstance(value, Tensor) else value for name, value in self.options.items()
        }
        return f"{self.operands[0].dtype} {shapes} {shown} size {self.size:g}"


def draw(rng: random.Random, engine: str, device: str, largest: int) -> Call:
    """A call with awkward sizes, masks, holes and extreme scores."""
    generator = torch.Generator().manual_seed(rng.randrange(10**9))
    dtype = rng.choice([torch.float32, torch.float64])
    sizes = [size for size in (1, 2, 31, 32, 33, 64, 100, 257, 1000, 3001, 5000) if size <= largest]
    few = [size for size in sizes if size <= 300]
    sizes = sizes if rng.random() < 0.1 else few  # the reference holds all pairs
    n = rng.choice(sizes)
    m = n if rng.random() < 0.6 else rng.choice(sizes)
    e = rng.choice([1, 2, 3, 4, 5, 16, 20, 64, 128])
    c = e if rng.random() < 0.5 else rng.choice([1, 2, 3, 4, 7, 16, 33, 128])
    lanes, size = LANES[0] if n * m > 10**6 else rng.choice(LANES), rng.choice([1.0, 1.0, 30.0, 1e4])
    mode = rng.choice(["softmax", "softmax", "exponential", "sigmoid", "linear"])
    only_sums = rng.random() < 0.1 and mode in ("softmax", "exponential")
    if mode == "exponential" and size > 5.0:
        only_sums = (
            True  # its outputs leave float32, and with them the comparison; their logarithms and these slopes stay
        )

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(device)

    root = (size / e**0.5) ** 0.5
    q, k, v = root * normal(*lanes[0], n, e), root * normal(*lanes[1], m, e), normal(*lanes[2], m, c)
    if rng.random() < 0.3 and e == c and lanes[1] == lanes[2]:
        v = k
    if rng.random() < 0.3 and n == m and lanes[0] == lanes[1]:
        # queries that are the keys, or a multiple of them: some engines compute every pair but once
        if rng.random() < 0.5:
            k = k / k.norm(dim=-1, keepdim=True) * size**0.5
            v = k if v.shape == k.shape and rng.random() < 0.5 else v
        q = k if rng.random() < 0.5 else rng.choice([1.0, 0.3, -0.2]) * k
    bias = None
    if rng.random() < 0.5:
        bias = normal(*lanes[3], m) * min(size, 100.0)
        holes = torch.rand(bias.shape, generator=generator).to(device) < 0.3
        if rng.random() < 0.3 and mode != "linear":
            bias = torch.where(holes, -torch.inf, bias)
    options: dict[str, Any] = {"mode": mode, "causal": rng.random() < 0.25, "skip_self": rng.random() < 0.3}
    options["offset"] = rng.choice([0, 0, 3, 50]) if dispatch._engines[engine].supports_offset else 0
    options["window"] = rng.choice([None, None, None, 1, 5, 40])
    if rng.random() < 0.2:
        leading = lanes[0] if rng.random() < 0.5 else ()
        options["visible"] = (torch.rand(*leading, n, m, generator=generator) < 0.5).to(device)
    return Call((q, k, None if only_sums else v, bias), options, size)


def draw_zonal(rng: random.Random, largest: int) -> Call:
    """A call on the circle or the sphere, as the series know it."""
    generator = torch.Generator().manual_seed(rng.randrange(10**9))
    dtype, e = rng.choice([torch.float32, torch.float64]), rng.choice([2, 3])
    sizes = [size for size in (1, 2, 31, 33, 257, 1000, 3001, 5000) if size <= largest]
    n = rng.choice(sizes)
    m = n if rng.random() < 0.6 else rng.choice(sizes)
    batch, size = LANES[rng.randrange(2)][0], rng.choice([0.0, 0.3, 9.0, 81.0, 1000.0])
    mode = rng.choice(["softmax", "exponential"])
    size = min(size, 60.0) if mode == "exponential" else size  # beyond, its sums leave float32

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def around(rows: int) -> Tensor:
        spread = rng.choice([1.0, 1.0, 0.01])
        return torch.nn.functional.normalize(
            normal(*batch, 1, e) * (spread < 1) + spread * normal(*batch, rows, e), dim=-1
        )

    k = around(m)
    q = size * (k if n == m and rng.random() < 0.5 else around(n))
    v = rng.choice([k, normal(*batch, m, rng.choice([1, 3, 5]))])
    bias = normal(*batch, m) if rng.random() < 0.5 else None
    if bias is not None and rng.random() < 0.3:
        bias = torch.where(torch.rand(bias.shape, generator=generator) < 0.3, -torch.inf, bias)
    parts = (part if part is None else part.to(dtype) for part in (q, k, None if rng.random() < 0.1 else v, bias))
    options = {"mode": mode, "causal": False, "skip_self": rng.random() < 0.3, "offset": 0, "window": None}
    return Call(tuple(parts), options, size)  # type: ignore[arg-type]


def difference(found: Tensor | None, expected: Tensor | None, known: float = 0.0) -> float:
    """Largest difference, but for an error that is known, relative to the largest entry; infinite where one is finite and the
    other is not."""
    if expected is None or found is None:
        return 0.0 if expected is found else float("inf")
    found, expected = found.detach().double(), expected.detach()
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(found), finite) or not torch.equal(found[~finite], expected[~finite]):
        return float("inf")
    if not finite.any():
        return 0.0
    apart = ((found - expected)[finite].abs().max() - known).clamp_min(0.0)
    return float(apart / expected[finite].abs().max().clamp_min(1e-30))


def compare(call: Call, engine: str, gradients: bool, seed: int) -> float:
    """The worst difference of outputs, and a tenth of that of gradients, in units of what rounding allows."""

    def leaves(kind: torch.dtype) -> list[Tensor | None]:
        q, k, v, bias = call.operands
        made = [
            None if part is None else part.detach().to(kind).clone().requires_grad_(gradients)
            for part in (q, k, v, bias)
        ]
        return made if v is not k else [made[0], made[1], made[1], made[3]]

    own, exact = leaves(call.operands[0].dtype), leaves(torch.float64)
    found, expected = (
        dispatch._engines[name].run(call.problem(part)) for name, part in ((engine, own), ("reference", exact))
    )
    worst = [difference(one, two) for one, two in zip(found, expected, strict=True)]
    if gradients:
        generator = torch.Generator().manual_seed(seed)
        along = [None if part is None else torch.randn(part.shape, generator=generator).to(part) for part in expected]

        def slope(results: tuple[Tensor | None, ...], operands: list[Tensor | None]) -> list[Tensor | None]:
            terms = [
                (torch.where(torch.isfinite(one), one, 0.0) * two.to(one)).sum()
                for one, two in zip(results, along, strict=True)
                if one is not None and two is not None
            ]
            wanted = list({id(part): part for part in operands if part is not None}.values())
            return list(torch.autograd.grad(sum(terms), wanted, allow_unused=True))  # type: ignore[arg-type]

        # autograd's derivative of a sigmoid y is y (1 - y): near saturation what is left of it is the rounding of 1 - y
        known = 0.0
        if call.options["mode"] == "sigmoid":
            sizes = [float(part.detach().abs().max()) for part in (*call.operands[:3], *along) if part is not None]
            known = torch.finfo(torch.float64).eps * max(sizes[:2]) * sizes[2] * sizes[3]
        slopes = zip(slope(found, own), slope(expected, exact), strict=True)
        worst += [0.1 * difference(one, two, known) for one, two in slopes]
    unit = (1e-12 if call.operands[0].dtype == torch.float64 else 3e-6) * max(1.0, call.size)
    return max(worst) / unit


def main(engine: str, count: int, seed: int, largest: int, device: str) -> int:
    rng, failures, skipped = random.Random(seed), 0, 0
    for number in range(count):
        zonal = engine == "spectral"
        call = draw_zonal(rng, largest) if zonal else draw(rng, engine, device, largest)
        gradients = not zonal and rng.random() < 0.5
        problem = call.problem()
        if gradients:
            problem.q.requires_grad_()
        try:
            dispatch._engines[engine].check(problem)
        except UnsupportedError:
            skipped += 1
            continue
        worst = compare(call, engine, gradients, number)
        if not worst <= 1.0:
            failures += 1
            print(  # noqa: T201
                f"call {number}: {worst:.2g} times what rounding allows: {call.describe()} gradients {gradients}"
            )
    print(  # noqa: T201
        f"{count} calls, {skipped} not for this engine, {failures} failures"
    )
    return failures


if __name__ == "__main__":
    where = "cuda" if sys.argv[1] == "triton" and torch.cuda.is_available() else "cpu"
    sys.exit(1 if main(sys.argv[1], *(int(word) for word in sys.argv[2:5]), where) else 0)
