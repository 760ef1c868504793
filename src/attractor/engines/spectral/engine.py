"""Spectral engine: attention on the circle and the 2-sphere in time linear in the number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attractor.engines import fused
from attractor.engines import fused as kernels
from attractor.engines.fused import adjacent
from attractor.engines.problem import Problem, Results
from attractor.engines.spectral.harmonics import HIGHEST, basis, order_for, series, truncation_error, with_coordinates
from attractor.errors import UnsupportedError

PAIRS = 1 << 20  # pairs of a batch member below which checking the lengths costs as much as the series saves
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-7}  # relative error that a row may have
TRUNCATION = {torch.float64: 2.0**-53, torch.float32: 2.0**-36}  # of the series, relative to the kernel's maximum
WIDE = ("avx512",)  # instruction sets with 512-bit vectors
# nanoseconds per pair in three dimensions, fused engine on one thread with symmetric scores; keyed by WIDE
PAIR = {
    True: {torch.float64: 0.36, torch.float32: 0.17},
    False: {torch.float64: 0.8, torch.float32: 0.3},
}
EVEN = 2.0**-50  # relative differences of lengths that are rounding errors of float64
SHARE = 1e-4  # part of the tolerance for truncation, so that rows with sums that much smaller than the largest still meet it
# Rounding error of a sum relative to the total mass, about twice the largest observed. As in all engines there is also an error
# relative to the sum itself: a small multiple of machine precision times the largest score.
ROUNDING = 2.0**-50
CACHE_KEY = "spectral"


@dataclass(frozen=True)
class Plan:
    """One member of the batch in float64: the lengths of its queries and keys, and the order of the series."""

    q: Tensor
    k: Tensor
    query_length: float
    key_length: float
    order: int
    dtype: torch.dtype
    tolerance: float
    keys: Tensor  # as given; k may be normalised to one length

    @property
    def dim(self) -> int:
        return self.q.shape[-1]

    @property
    def beta(self) -> float:
        return self.query_length * self.key_length

    @property
    def error(self) -> float:
        """Bound on the error of a row's sum, relative to the total mass."""
        return truncation_error(self.dim, self.beta, self.order) + ROUNDING

    def cost(self, columns: int) -> tuple[float, float]:
        """Modelled nanoseconds on one thread: the part that threads share, and the serial part."""
        each = 1.0 if kernels.instruction_set() in WIDE else 2.2  # relative cost of a harmonic
        harmonics = (self.order + 1) * (self.order + 2) / 2 if self.dim == 3 else self.order + 1
        # values with as many columns as the keys are usually multiples of them, and need no extra channels
        channels = 1 if columns in (0, self.dim) else 1 + columns
        shared = len(self.k) * (115.0 + 0.115 * each * harmonics * channels) + len(self.q) * (
            115.0 + 0.07 * each * harmonics * (1 + columns)
        )
        return shared, (2.5e5 if self.dim == 3 else 1.2e5) + 175.0 * harmonics


def accepts(problem: Problem) -> bool:
    """Whether the series applies and is faster than all pairs; cheap conditions are checked first."""
    if problem.queries * problem.keys < PAIRS or problem.needs_gradient or structural_obstacle(problem):
        return False
    if not _is_faster(problem, [_estimate_plan(problem)] * problem.batch.numel()):
        return False
    plans = make_plans(problem)
    return not isinstance(plans, str) and _is_faster(problem, plans)


def _estimate_plan(problem: Problem) -> Plan:
    """The plan for lengths of the first query and key alone: checking all of them takes longer than many problems."""
    q, k = (part.detach()[(0,) * (part.ndim - 2)] for part in (problem.q, problem.k))
    lengths = [math.hypot(*part[0].tolist()) for part in (q, k)]
    tolerance = _tolerance(problem)
    beta = min(lengths[0] * lengths[1], 1e4) if math.isfinite(lengths[0] * lengths[1]) else 0.0
    # rounded to three digits, so that the order is usually cached
    order = order_for(q.shape[-1], float(f"{beta:.3g}"), max(TRUNCATION[q.dtype], SHARE * tolerance))
    return Plan(q, k, lengths[0], lengths[1], order, q.dtype, tolerance, k)


def _tolerance(problem: Problem) -> float:
    return max(problem.tolerance or 0.0, TOLERANCE[problem.q.dtype])


def _is_faster(problem: Problem, plans: list[Plan]) -> bool:
    columns = 0 if problem.v is None else problem.v.shape[-1]
    # the fused engine computes each pair once where the queries are a multiple of the keys
    pair = PAIR[kernels.instruction_set() in WIDE][problem.q.dtype] * (1.0 if all(map(_is_symmetric, plans)) else 1.5)
    pair *= (1.0 + columns / 20.0) / 1.15
    costs = [plan.cost(columns) for plan in plans]
    # with a safety margin for the cost model
    return 1.2 * sum(shared + torch.get_num_threads() * alone for shared, alone in costs) < pair * problem.pairs


def _is_symmetric(plan: Plan) -> bool:
    """Whether the first and the last query are the same multiple of their keys."""
    if plan.q.shape != plan.k.shape:
        return False
    pairs = (pair for row in (0, -1) for pair in zip(plan.q[row].tolist(), plan.k[row].tolist(), strict=True))
    return all(abs(q * plan.key_length - k * plan.query_length) <= 1e-5 * plan.beta for q, k in pairs)


def priority(problem: Problem) -> float:
    """Above all others where it accepts a problem."""
    return 4.0


def obstacle(problem: Problem) -> str:
    """Why the engine cannot run a problem; empty if it can."""
    if problem.needs_gradient:
        return "it computes no gradients"
    found = structural_obstacle(problem) or make_plans(problem)
    return found if isinstance(found, str) else ""


def structural_obstacle(problem: Problem) -> str:
    """Why shapes, types or options rule out the engine; empty if they do not."""
    if problem.q.shape[-1] not in (2, 3):
        return f"queries and keys must be in the plane or in space, not in dimension {problem.q.shape[-1]}"
    if not problem.has_logsumexp:
        return f"the mode must be softmax or exponential, not {problem.mode}"
    if problem.is_masked:
        return "it does not support masks"
    if problem.q.dtype not in TOLERANCE:
        return f"it computes in float64 or float32, not {str(problem.q.dtype).removeprefix('torch.')}"
    if problem.q.device.type != "cpu":
        return f"it runs on the CPU, and the tensors are on {problem.q.device}"
    if not problem.queries or not problem.keys or not problem.batch.numel():
        return "there are no tokens"
    return "" if fused.accepts(problem) else "tensors must be plain ones of one dtype on the CPU"


def make_plans(problem: Problem) -> list[Plan] | str:
    """A plan for every member of the batch, or the reason why there is none; cached in the problem."""
    if CACHE_KEY not in problem.cache:
        problem.cache[CACHE_KEY] = _make_plans(problem)
    return problem.cache[CACHE_KEY]


def _make_plans(problem: Problem) -> list[Plan] | str:
    bias = problem.key_bias
    if bias is not None and not bool((bias < math.inf).all()):
        return "a key's bias is infinite or no number"
    plans = []
    queries, keys = _flatten(problem.q, problem), _flatten(problem.k, problem)
    for q, k in zip(queries, keys, strict=True):
        plan = _plan_member(q, k, problem.q.dtype, _tolerance(problem))
        if isinstance(plan, str):
            return plan
        plans.append(plan)
    if problem.mode == "exponential":
        peak = 0.0 if bias is None else float(bias.max())
        if max(plan.beta for plan in plans) + max(peak, 0.0) > 700.0:
            return "the weights overflow"
    return plans


def _plan_member(q: Tensor, k: Tensor, dtype: torch.dtype, tolerance: float) -> Plan | str:
    q, k = adjacent(q), adjacent(k)
    lengths, unevenness = [], 0.0
    for points, name in ((q, "queries"), (k, "keys")):
        square = float(points[0].square().sum())
        most = kernels.module().unevenness(
            torch.get_num_threads(), points.shape[0], points.shape[1], points.data_ptr(), points.stride(0), square
        )
        if not most <= 1e-3 * square:
            return f"{name} must have one length to lie on a sphere, and their squared lengths differ by {most:.1e} from {square:.3g}"
        lengths.append(math.sqrt(square))
        unevenness += 0.5 * most / square if square else 0.0
    beta = lengths[0] * lengths[1]
    # its effect on the scores must be below the tolerance, or no more than the rounding of the points
    if unevenness > max(8.0 * torch.finfo(dtype).eps, TOLERANCE[dtype] / max(beta, 1.0)):
        return f"queries and keys must lie on spheres, and their lengths differ by {unevenness:.1e} of themselves"
    keys = k
    if unevenness > EVEN:
        # negligible in the scores but not in the terms of the series, which cancel where a row is far from all keys
        q, k = (_normalise(points, length) for points, length in zip((q, k), lengths, strict=True))
    truncation = max(TRUNCATION[dtype], SHARE * tolerance)
    if not beta < 1e4 or order_for(q.shape[-1], beta, truncation) > HIGHEST:
        return f"scores up to {beta:.3g} need too long a series"
    return Plan(q, k, lengths[0], lengths[1], order_for(q.shape[-1], beta, truncation), dtype, tolerance, keys)


def _normalise(points: Tensor, length: float) -> Tensor:
    return points * (length / torch.linalg.vector_norm(points, dim=-1, keepdim=True)) if length else points


def _flatten(tensor: Tensor, problem: Problem) -> Tensor:
    """(members, rows, columns) in float64."""
    shape = tensor.shape[-2:]
    return tensor.detach().expand(*problem.batch, *shape).reshape(problem.batch.numel(), *shape).double()


def run(problem: Problem) -> Results:
    plans = make_plans(problem)
    if isinstance(plans, str):
        raise UnsupportedError(f"engine 'spectral' cannot run this problem: {plans}")
    values = [None] * len(plans) if problem.v is None else _flatten(problem.v, problem)
    biases = (
        [None] * len(plans)
        if problem.key_bias is None
        else _flatten(problem.key_bias.unsqueeze(-1), problem).squeeze(-1)
    )
    results = [_Member(problem, *parts).run() for parts in zip(plans, values, biases, strict=True)]
    outputs, sums = zip(*results, strict=True)
    return _join(outputs, problem), _join(sums, problem)


def _join(parts: tuple[Tensor | None, ...], problem: Problem) -> Tensor | None:
    whole = [part for part in parts if part is not None]
    if not whole:
        return None
    stacked = whole[0] if len(whole) == 1 else torch.stack(whole)
    return stacked.reshape(*problem.batch, *whole[0].shape).to(problem.q.dtype)


class _Member:
    """One problem without batch axes; ``peak`` is the largest bias, ``total`` the sum of masses relative to it."""

    def __init__(self, problem: Problem, plan: Plan, v: Tensor | None, bias: Tensor | None) -> None:
        self.problem, self.plan, self.bias = problem, plan, bias
        self.v = None if v is None else adjacent(v)
        self.masses: Tensor | None = None
        self.peak, self.total = 0.0, float(plan.k.shape[0])
        if bias is not None:
            self.peak = float(bias.max())
            self.masses = (bias - self.peak).exp()
            self.total = float(self.masses.sum())

    def run(self) -> tuple[Tensor | None, Tensor]:
        if not self.total > 0.0:  # every key is hidden, or NaN
            return self._direct(None)
        ratio = self._ratio()
        coefficients, order, first, sizes = self._series(ratio)
        output, logsumexp, good, poor = self._rows(coefficients, order, first, sizes, ratio)
        if 2 * poor > len(logsumexp):
            return self._direct(None)
        if poor:
            rows = (~good).nonzero().squeeze(-1)
            exact, sums = self._direct(rows)
            logsumexp[rows] = sums
            if output is not None and exact is not None:
                output[rows] = exact
        return output, logsumexp

    def _ratio(self) -> float | None:
        """c where v = c k to rounding, else None."""
        k, v = self.plan.keys, self.v
        if v is None or v.shape[-1] != k.shape[-1] or not self.plan.key_length:
            return None
        ratio = float(v[0] @ k[0]) / self.plan.key_length**2
        size = abs(ratio) * self.plan.key_length
        rows = (v.data_ptr(), v.stride(0), k.data_ptr(), k.stride(0))
        gap = kernels.module().deviation(torch.get_num_threads(), *k.shape, *rows, ratio)
        return ratio if gap <= 4.0 * torch.finfo(self.plan.dtype).eps * size else None

    def _series(self, ratio: float | None) -> tuple[np.ndarray, int, int, Tensor | None]:
        """Coefficients of all channels; the order of their table, the first channel of values, and the sizes of values."""
        plan, v = self.plan, self.v
        if v is None or ratio is not None:
            order = plan.order + (0 if v is None else 1)
            sums = self._analyse(order, None if self.masses is None else self.masses.unsqueeze(0))
            sums = sums if v is None else with_coordinates(basis(plan.dim, order), sums[0])
            return series(basis(plan.dim, order), plan.beta, plan.order, sums), order, 1, None
        masses = torch.ones(len(plan.k), dtype=torch.float64) if self.masses is None else self.masses
        # sums that are not divided by the normaliser have their own scale
        sizes = v.abs().amax(-1) * masses if self.problem.mode == "exponential" else None
        parts = [masses.unsqueeze(0), *([] if sizes is None else [sizes.unsqueeze(0)]), v.T * masses]
        sums = self._analyse(plan.order, torch.cat(parts))
        return series(basis(plan.dim, plan.order), plan.beta, plan.order, sums), plan.order, len(parts) - 1, sizes

    def _analyse(self, order: int, weights: Tensor | None) -> np.ndarray:
        """Sums of harmonics over the keys, (channels, m, l)."""
        k, tables = self.plan.k, basis(self.plan.dim, order)
        channels = 1 if weights is None else len(weights)
        sums = np.empty((channels, order + 1, tables.stride), dtype=complex)
        kernels.module().analyse(
            kernels.instruction_set(),
            torch.get_num_threads(),
            self.plan.dim,
            [len(k), order, tables.stride, channels],
            k.data_ptr(),
            k.stride(0),
            1.0 / self.plan.key_length if self.plan.key_length else 0.0,
            tables.steps.ctypes.data,
            0 if weights is None else weights.data_ptr(),
            sums.ctypes.data,
        )
        return sums / tables.scales

    def _rows(
        self, coefficients: np.ndarray, order: int, first: int, sizes: Tensor | None, ratio: float | None
    ) -> tuple[Tensor | None, Tensor, Tensor, int]:
        """Output, logsumexp, which rows are accurate enough, and how many are not."""
        plan, v, q = self.plan, self.v, self.plan.q
        tables, rows = basis(plan.dim, order), len(q)
        logsumexp, good = torch.empty(rows, dtype=torch.float64), torch.empty(rows, dtype=torch.bool)
        output = None if v is None else torch.empty(rows, v.shape[-1], dtype=torch.float64)
        bound = plan.error / plan.tolerance
        size = 0.0 if sizes is None else float(sizes.sum())
        packed = _pack(coefficients)
        addresses = [plan.k, v, self.masses, output, logsumexp, good]
        poor = kernels.module().synthesise(
            kernels.instruction_set(),
            torch.get_num_threads(),
            plan.dim,
            [rows, plan.order, tables.stride, len(coefficients)],
            q.data_ptr(),
            q.stride(0),
            1.0 / plan.query_length if plan.query_length else 0.0,
            tables.steps.ctypes.data,
            packed.ctypes.data,
            [
                0 if v is None else v.shape[-1],
                first,
                self.problem.mode == "softmax",
                self.problem.skip_self,
                min(rows, len(plan.k)),
                plan.k.stride(0),
                0 if v is None else v.stride(0),
            ],
            [
                1.0 if ratio is None else ratio * plan.key_length,
                float(np.exp(plan.beta + self.peak)) if self.problem.mode == "exponential" else 1.0,
                bound * self.total,
                bound * size,
                plan.beta,
                plan.beta + self.peak,
            ],
            [0 if part is None else part.data_ptr() for part in addresses],
        )
        return output, logsumexp, good, poor

    def _direct(self, rows: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """All pairs of some rows (or of all of them)."""
        plan = self.plan
        whole = replace(self.problem, q=plan.q, k=plan.k, v=self.v, key_bias=self.bias)
        if rows is None:
            return fused.run(whole)  # type: ignore[return-value]
        if not self.problem.skip_self or self.v is None:
            return fused.run(replace(whole, q=plan.q[rows]))  # type: ignore[return-value]
        # row i skips key i, so the keys of these rows come first, in the order of the rows
        own = rows[rows < len(plan.k)]
        rest = torch.ones(len(plan.k), dtype=torch.bool)
        rest[own] = False
        order = torch.cat([own, rest.nonzero().squeeze(-1)])
        turned = replace(
            whole, k=plan.k[order], v=self.v[order], key_bias=None if self.bias is None else self.bias[order]
        )
        results = [
            fused.run(replace(turned, q=plan.q[own])),
            fused.run(replace(turned, q=plan.q[rows[len(own) :]], skip_self=False)),
        ]
        outputs, sums = zip(*results, strict=True)
        return torch.cat(outputs), torch.cat(sums)  # type: ignore[arg-type]


def _pack(coefficients: np.ndarray) -> np.ndarray:
    """Blocks of four channels, and the rest; inside a block (m, l, channel)."""
    blocks = [coefficients[start : start + 4] for start in range(0, len(coefficients), 4)]
    return np.concatenate([np.moveaxis(block, 0, -1).ravel() for block in blocks])
