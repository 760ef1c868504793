"""One call of the spectral engine: analyse the keys, multiply by the kernel's coefficients, evaluate at the queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from attractor.engines import fused
from attractor.engines.contract import Problem
from attractor.engines.fused import kernels
from attractor.engines.fused.layout import adjacent
from attractor.engines.spectral.harmonics import basis, series, with_coordinates
from attractor.engines.spectral.plan import Plan, flat, members
from attractor.errors import UnsupportedError


def run(problem: Problem) -> tuple[Tensor | None, Tensor | None]:
    plans = members(problem)
    if isinstance(plans, str):
        raise UnsupportedError(f"engine 'spectral' cannot run this problem: {plans}")
    values = [None] * len(plans) if problem.v is None else flat(problem.v, problem)
    biases = (
        [None] * len(plans) if problem.key_bias is None else flat(problem.key_bias.unsqueeze(-1), problem).squeeze(-1)
    )
    results = [_Member(problem, *parts).run() for parts in zip(plans, values, biases, strict=True)]
    outputs, sums = zip(*results, strict=True)
    return _joined(outputs, problem), _joined(sums, problem)


def _joined(parts: tuple[Tensor | None, ...], problem: Problem) -> Tensor | None:
    whole = [part for part in parts if part is not None]
    if not whole:
        return None
    stacked = whole[0] if len(whole) == 1 else torch.stack(whole)
    return stacked.reshape(*problem.batch, *whole[0].shape).to(problem.q.dtype)


class _Member:
    """One problem without batch axes; ``peak`` is the largest bias, and ``total`` the sum of masses relative to it."""

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
        # sums that are not divided by the normaliser have a scale of their own
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
        packed = _packed(coefficients)
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
        # a row leaves out the key of its own number: so these keys come first, in the order of the rows
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


def _packed(coefficients: np.ndarray) -> np.ndarray:
    """Blocks of four channels, and the rest; inside a block (m, l, channel)."""
    blocks = [coefficients[start : start + 4] for start in range(0, len(coefficients), 4)]
    return np.concatenate([np.moveaxis(block, 0, -1).ravel() for block in blocks])
