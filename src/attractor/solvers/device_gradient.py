"""Gradients through runs of the device loop (``device_gradient.cu``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attractor import memory
from attractor.errors import UnsupportedError
from attractor.laws import Attention
from attractor.solvers import device_kernels as kernels
from attractor.solvers.device_kernels import Run
from attractor.solvers.device_loop import Launch
from attractor.solvers.integration import Plan
from attractor.solvers.native_gradient import NativeGradient, has_known_gradients
from attractor.states import Tokens

KEPT_BYTES = (
    1 << 29
)  # of the states that are kept of all members, and of those that are computed again, if there are not too many,
FEWEST, MOST = 16, 1024  # and how many of them a member has, an even number
ROOM = 256  # steps for which there is room at first
TILE_BYTES = 40 << 10  # of what keys give to gradients, if all blocks compute them
LARGEST_LAW = 512  # numbers of the gradients of a law, which every thread adds up


class DeviceRecord:
    """The accepted steps of a run, on the device: for each member their number, the stride of the states that are kept, and how many
    there are; length and end of each step; and states, which are points and slopes."""

    def __init__(self, points: Tensor) -> None:
        members, n, d = points.shape
        slots = KEPT_BYTES // (members * 2 * n * d * points.element_size())
        self.slots = min(MOST, max(FEWEST, slots)) // 2 * 2
        needed = 2.0 * self.slots * members * 2 * n * d * points.element_size()  # kept, and computed again
        memory.check(needed, n, f"gradients through a run of {n:,} tokens", device=points.device)
        self.counts = torch.zeros((members, 3), dtype=torch.int32, device=points.device)
        self.steps = torch.zeros((members, ROOM, 2), dtype=torch.float64, device=points.device)
        self.kept = points.new_empty((members, self.slots, 2, n, d))
        self.taken = 0  # attempts so far
        self.parameters: kernels.Parameters | None = None  # of the law, as the run had them
        self.fetched: tuple[np.ndarray, np.ndarray] | None = None

    def arguments(self, attempts: int) -> tuple[int, dict[str, Tensor], dict[str, int]]:
        """Attempts of the next launch, at most ``attempts``, and its arrays and numbers."""
        room = self.steps.shape[1]
        if room - self.taken < ROOM // 2:
            self.steps = torch.cat((self.steps, torch.zeros_like(self.steps)), 1)
            room *= 2
        attempts = min(attempts, room - self.taken)
        self.taken += attempts
        arrays = {"record": self.counts, "record_steps": self.steps, "kept": self.kept}
        return attempts, arrays, {"record_room": room, "record_slots": self.slots}

    def update(self, arrived: bool) -> None:
        """Look how many steps were taken after a launch."""
        if not arrived:
            self.taken = int(self.counts[:, 0].max())

    def fetch(self) -> tuple[np.ndarray, np.ndarray]:
        """The counts (members, 3), and lengths and ends of steps (members, steps, 2), of a run that has ended."""
        if self.fetched is None:
            counts = self.counts.cpu().numpy()
            self.fetched = counts, self.steps[:, : int(counts[:, 0].max(initial=0))].cpu().numpy()
        return self.fetched

    def lengths(self) -> list[np.ndarray]:
        """Lengths of the steps of each member."""
        counts, table = self.fetch()
        return [row[:count, 0] for row, count in zip(table, counts[:, 0], strict=True)]

    def locate(
        self, start: float, end: float, member: np.ndarray, time: np.ndarray, is_last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Steps in which states were read, -1 for the start, and places within them, from 0 to 1."""
        counts, table = self.fetch()
        counts = counts[:, 0]
        steps, places = np.full(len(member), -1, dtype=np.int64), is_last.astype(np.float64)
        for number in np.unique(member):
            rows, count = np.flatnonzero(member == number), counts[number]
            if not count:
                continue
            length, after = table[number, :count].T
            found = np.where(is_last[rows], count - 1, np.searchsorted(after, time[rows], side="left"))
            found = np.where(time[rows] <= start, np.where(is_last[rows], found, -1), np.minimum(found, count - 1))
            lag = time[rows] - after[found]
            inside = np.where(lag < 0, np.maximum(1.0 + lag / length[found], 0.0), 1.0)
            steps[rows], places[rows] = found, np.where(found < 0, 0.0, inside)
        return steps, places


def is_supported(plan: Plan, tokens: Tokens) -> bool:
    """Whether the kernels compute all gradients that a run needs."""
    points, law = tokens.points, plan.law
    points = points.reshape(-1, tokens.n, tokens.dim)
    if points.device.type != kernels.backend.device_type or points.dtype != torch.float64 or type(law) is not Attention:
        return False
    if (
        kernels.obstacle(plan, points, tokens.positions, differentiable=True)
        or not law.kernel.bilinear
        or law.kernel.exact
    ):
        return False
    if law.positions is not None or law.heads * 2 * law.dim**2 > LARGEST_LAW or not has_known_gradients(plan, tokens):
        return False
    layout = _layout(plan, points, points.shape[:2])
    return layout.shared <= kernels.backend.shared_memory(points.device)


def _row_bytes(y: Tensor) -> int:
    """Bytes of what a token gives to the gradients of others, as in device_gradient.cu."""
    return -(-(3 * y.shape[-1] + 3) * y.element_size() // 16) * 16


def _rows_of_tile(y: Tensor) -> int:
    return max(32, min(512, TILE_BYTES // _row_bytes(y)) // 32 * 32)


def _layout(plan: Plan, y: Tensor, whole: Sequence[int]) -> kernels.Layout:
    """The layout of the reverse sweep: that of the loop, with room for what tokens give to the gradients of others."""
    layout = kernels.find_layout(y, *whole, plan.law.query.shape[-2], plan.stepper)  # type: ignore[attr-defined]
    return layout.extended((_rows_of_tile(y) if layout.tile else y.shape[1]) * _row_bytes(y))


class DeviceGradient(NativeGradient):
    """Records the accepted steps of a run of the device loop, and computes gradients through them."""

    on_device: ClassVar[bool] = True

    def __init__(self, plan: Plan, tokens: Tokens) -> None:
        self.plan, self.tokens = plan, tokens
        self.record = DeviceRecord(tokens.points.detach())  # type: ignore[assignment]

    def differentiate(
        self,
        inputs: Sequence[Tensor | None],
        needed: Sequence[bool],
        grad_finals: Tensor | None,
        grad_points: Tensor | None,
    ) -> list[Tensor | None]:
        named = dict(zip(self.names, inputs, strict=True))
        wanted = dict(zip(self.names, needed, strict=True))
        record: DeviceRecord = self.record  # type: ignore[assignment]
        stride = int(record.fetch()[0][:, 1].max(initial=0))
        if stride > record.slots:
            raise UnsupportedError(
                f"a run of more than {record.slots**2:,} steps has no gradients on a GPU: give tokens on the CPU, or a larger rtol"
            )
        member, step, place, grads = self._find_reads(grad_finals, grad_points)
        order = np.lexsort((place, step, member))  # reads of a member in the order of time
        member, step, place, grads = member[order], step[order], place[order], grads[order]
        plan, law = self.plan, self.plan.law
        assert isinstance(law, Attention)
        y = self.detached_tokens.points.contiguous()
        members, n, d = y.shape
        masses = self.detached_tokens.masses
        masses = None if masses is None else masses.to(y).reshape(-1, n).contiguous()
        assert record.parameters is not None
        system = kernels.describe_system(plan, law, y, masses, None, False, (members, n), record.parameters)
        layout = _layout(plan, y, (members, n))
        macros = {**system.macros, "REVERSE": 1, "HEADS": law.heads, "ROWS": _rows_of_tile(y)}
        function = kernels.find_function(macros, type(plan.stepper), y.device, layout.shared)
        terms = d * d + (d * d if macros["MATRICES"] else 1)
        blocks = -(-n * layout.split // layout.threads) if layout.tile else members
        first = np.searchsorted(member, np.arange(members + 1))
        device = y.device

        def place_on(array: np.ndarray, dtype: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(device)

        arrays: dict[str, Tensor | None] = {
            "f": torch.empty_like(y), "masses": masses, "state": y.new_empty((len(kernels.STATES), members)),
            "record": record.counts, "record_steps": record.steps, "kept": record.kept,
            "again": torch.empty_like(record.kept) if stride > 1 else None,
            "read_first": place_on(first, np.int64), "read_step": place_on(step, np.int64),
            "read_place": place_on(place, np.float64), "read_grads": place_on(grads, np.float64),
            "grad_start": torch.zeros_like(y), "grad_masses": None if masses is None else y.new_zeros((members, n)),
            "grad_law": y.new_zeros((blocks, law.heads, terms)),
        }  # fmt: skip
        argument = Run(
            members=members, columns=members, n=n, fresh=1, start=plan.start, end=plan.until, rtol=plan.rtol, atol=plan.atol,
            bound=plan.bound, record_room=record.steps.shape[1], record_slots=record.slots, **system.numbers,
        )  # fmt: skip
        launch = Launch(function, layout, argument, system.tensors)
        launch(y, y.new_zeros(8), rows=n * _row_bytes(y), **arrays)
        return self._collect(named, wanted, arrays, bool(macros["MATRICES"]))

    def _collect(
        self,
        named: dict[str, Tensor | None],
        wanted: dict[str, bool],
        arrays: dict[str, Tensor | None],
        matrices: bool,
    ) -> list[Tensor | None]:
        """Gradients of the inputs from those that the kernel has computed."""
        law, start = self.plan.law, arrays["grad_start"]
        assert isinstance(law, Attention)
        assert start is not None
        each, members, d = arrays["grad_law"], len(start), start.shape[-1]
        assert each is not None
        if len(each) != members or members == 1:  # the blocks of one system
            each = each.sum(0, keepdim=True)
        query, key = named["query"], named["key"]
        assert query is not None
        assert key is not None
        # through the interaction, scale log2(e) K'Q
        grad, unit = each[..., : d * d].reshape(*each.shape[:2], d, d), kernels.score_unit(law)
        factor = kernels.scale_of(law) * unit
        makers: dict[str, Callable[[], Tensor | None]] = {
            "start": lambda: start,
            "masses": lambda: arrays["grad_masses"],
            "query": lambda: factor * key @ grad,
            "key": lambda: factor * query @ grad.mT,
            "scale": lambda: (unit * grad * (key.mT @ query)).sum(),
            "value": lambda: each[..., d * d :].reshape(*each.shape[:2], d, d) if matrices else None,
        }
        results: list[Tensor | None] = []
        for name, part in named.items():
            value = makers[name]() if wanted[name] and name in makers else None
            if part is None or value is None:
                results.append(None)
                continue
            shape = part.shape if name != "masses" else part.reshape(-1, part.shape[-1]).shape
            value = value if value.shape == shape or name == "scale" else value.sum_to_size(shape)
            results.append(value.reshape(part.shape).to(part))
        return results
