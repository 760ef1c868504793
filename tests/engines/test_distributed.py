"""A problem cut into pieces: every engine knows where its rows stand, and ranks that exchange them have what one process has."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attractor.engines import Problem, attend, choose, distributed
from attractor.engines.dispatch import _engines
from attractor.engines.problem import MODES

MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"causal": True},
    "window": {"window": 7},
    "causal window": {"causal": True, "window": 9},
    "skip_self": {"skip_self": True},
    "causal, skip_self": {"causal": True, "skip_self": True},
}


def problem(n: int = 45, mode: Any = "softmax", visible: bool = False, **options: Any) -> Problem:
    rng = np.random.default_rng(n)
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 3, n, 4))) for _ in range(3))
    seen = torch.from_numpy(rng.random((2, 1, n, n)) < 0.7) | torch.eye(n, dtype=torch.bool)
    bias = torch.from_numpy(rng.standard_normal((1, n)))
    given = {"causal": False, "window": None, "skip_self": False} | options
    return Problem(q, k, v, bias, mode, visible=seen if visible else None, **given)


class Threads:
    """Ranks that are threads of this process."""

    def __init__(
        self, rank: int, size: int, table: list[Tensor | None], barrier: threading.Barrier, memory: Tensor | None = None,
        monitor: Callable[[float], bool] = lambda waited: True,
    ) -> None:  # fmt: skip
        self.rank, self.size, self.table, self.barrier = rank, size, table, barrier
        self.shared = (
            None
            if memory is None
            else SimpleNamespace(rank=rank, size=size, memory=memory, monitor=monitor, handle=None)
        )

    def shared_memory(self, bytes: int) -> Any:
        assert self.shared is None or self.shared.memory.numel() >= bytes
        return self.shared

    def lost(self, error: Exception) -> Exception:
        return ConnectionError(str(error))

    def gather(self, part: Tensor) -> Tensor:
        self.table[self.rank] = part
        self.barrier.wait(timeout=30)
        whole = torch.stack([part for part in self.table if part is not None])
        self.barrier.wait(timeout=30)
        return whole


def exchanged(whole: Problem, size: int, engine: str) -> list[tuple[Tensor | None, Tensor | None]]:
    """What every rank has in the end."""
    table: list[Tensor | None] = [None] * size
    barrier, results = threading.Barrier(size), {}

    def work(rank: int) -> None:
        with distributed.use_group(Threads(rank, size, table, barrier)):
            results[rank] = distributed.run(whole, _engines[engine].run, _engines[engine].run_distributed)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", MASKS)
def test_rows_of_a_problem_are_a_problem(engine: str, mask: str, mode: str) -> None:
    whole = problem(mode=mode, **MASKS[mask])
    run = _engines[engine].run
    output, logsumexp = run(whole)
    assert output is not None
    for rows in (slice(0, 13), slice(13, 14), slice(29, 45)):
        part, sums = run(whole.take_rows(rows))
        torch.testing.assert_close(part, output[..., rows, :], rtol=1e-13, atol=1e-13)
        if logsumexp is not None:
            torch.testing.assert_close(sums, logsumexp[..., rows], rtol=1e-13, atol=1e-13)
    twice, _ = run(whole.take_rows(slice(10, 40)).take_rows(slice(5, 9)))
    torch.testing.assert_close(twice, output[..., 15:19, :], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_rows(engine: str, mask: str) -> None:
    rows = slice(11, 32)
    found = []
    for cut in (True, False):
        whole = problem(**MASKS[mask])
        leaves = [part.requires_grad_() for part in (whole.q, whole.k, whole.v, whole.key_bias) if part is not None]
        output, logsumexp = _engines[engine].run(whole.take_rows(rows) if cut else whole)
        assert output is not None
        assert logsumexp is not None
        output, logsumexp = (output, logsumexp) if cut else (output[..., rows, :], logsumexp[..., rows])
        found.append(torch.autograd.grad((output**2).sum() + logsumexp.sin().sum(), leaves))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [*MASKS.values(), {"visible": True}], ids=[*MASKS, "visible"])
def test_all_ranks_have_what_one_process_has(engine: str, options: dict[str, Any], size: int) -> None:
    for whole in (problem(**options), problem(3, "sigmoid", **options), replace(problem(8, **options), v=None)):
        wanted = _engines[engine].run(whole)
        for got in exchanged(whole, size, engine):
            for one, other in zip(got, wanted, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mask", MASKS)
def test_large_pieces_of_the_fused_engine_have_the_same_bits(mask: str, dtype: torch.dtype) -> None:
    if not _engines["fused"].works:
        pytest.skip(_engines["fused"].reason)
    rng = np.random.default_rng(3)
    # large scores, so that the running maximum is at work
    x = 8.0 * torch.from_numpy(rng.standard_normal((1607, 3))).to(dtype)
    given = {"causal": False, "window": None, "skip_self": False} | MASKS[mask]
    whole = Problem(x, x, x, None, "softmax", visible=None, **given)
    wanted = _engines["fused"].run(whole)
    for got in exchanged(whole, 2, "fused"):
        for one, other in zip(got, wanted, strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)


@pytest.mark.parametrize("n", [1, 2, 7, 63, 640, 1000, 8192])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_pieces_cover_every_row_once_and_share_the_work(n: int, causal: bool, size: int) -> None:
    x = torch.zeros(n, 1)
    shares = distributed.partition_rows(Problem(x, x, x, None, "softmax", causal, None, None, False), size)
    rows = [row for share in shares for piece in share for row in range(piece.start, piece.stop)]
    assert sorted(rows) == list(range(n))
    if n >= 1000:
        cost = [
            sum(row if causal else 1 for piece in share for row in range(piece.start, piece.stop)) for share in shares
        ]
        assert max(cost) < 1.15 * sum(cost) / size


def test_what_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem()
    assert not distributed.should_distribute(whole, True)  # nobody to share it with
    with distributed.use_group(Threads(0, 2, [], threading.Barrier(1))):
        assert not distributed.should_distribute(whole, True)  # too small
        monkeypatch.setitem(distributed.MIN_PAIRS, "cpu", whole.pairs)
        assert distributed.should_distribute(whole, False)
        assert distributed.should_distribute(replace(whole, causal=True), True)
        assert not distributed.should_distribute(
            replace(whole, causal=True), False
        )  # by an engine that does not know the places
        assert not distributed.should_distribute(replace(whole, q=whole.q.clone().requires_grad_()), True)
        with distributed.use_group(None):
            assert not distributed.is_active()
            assert not distributed.should_distribute(whole, True)
        torch.func.vmap(lambda q: attend(q, whole.k, whole.v)[0])(whole.q)  # would wait for others for ever
    assert choose(replace(whole, causal=True, offset=1)).supports_offset


def run_with_shared_memory(problems: list[Problem], size: int, slow: float = 0.0) -> list[list[Any]]:
    """What ranks have who compute problems one after the other in shared memory; each stops now and then."""
    memory = torch.zeros(1 << 20, dtype=torch.uint8)
    barrier, results, failed = threading.Barrier(size), {}, threading.Event()

    def work(rank: int) -> None:
        rng = random.Random(rank)
        ranks = Threads(rank, size, [], barrier, memory, lambda waited: not failed.is_set())
        results[rank] = []
        try:
            for each in problems:
                time.sleep(rng.choice([0.0, 0.0, slow]))
                results[rank].append(_engines["fused"].run_distributed(each, ranks))  # type: ignore[misc]
        except BaseException:
            failed.set()
            raise

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return [results[rank] for rank in range(size)]


def drawn(n: int, seed: int, mode: Any = "softmax", d: int = 3) -> Problem:
    """Queries that are a multiple of the keys."""
    rng = np.random.default_rng(seed)
    dtype = (torch.float64, torch.float32)[seed % 2]
    batch = ((), (2,))[seed // 2 % 2]
    k = torch.nn.functional.normalize(torch.from_numpy(rng.standard_normal((*batch, n, d))), dim=-1).to(dtype)
    bias = torch.from_numpy(rng.standard_normal(n)).to(dtype) if seed % 3 == 0 else None
    return Problem(4.0 * k, k, torch.roll(k, 1, -2), bias, mode, False, None, None, seed % 5 == 0)


@pytest.mark.skipif(not _engines["fused"].works, reason=_engines["fused"].reason)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_that_share_memory_have_the_bits_of_one_process(size: int) -> None:
    # sizes go up and down, so that areas are used again for others than before
    problems = [
        drawn(n, seed) for seed, n in enumerate((513, 2000, 600, 1100, 1024, 700, 2049, 513, 1537, 900, 2500, 520))
    ]
    problems += [drawn(1300, 12 + seed, "exponential") for seed in range(4)]
    problems += [drawn(n, 16 + seed, d=d) for seed, (n, d) in enumerate(((520, 5), (1000, 16), (700, 20), (900, 15)))]
    wanted = [_engines["fused"].run(each) for each in problems]
    for got in run_with_shared_memory(problems, size, slow=0.003):
        for one, other in zip(got, wanted, strict=True):
            assert torch.equal(one[0], other[0])  # type: ignore[arg-type]
            assert torch.equal(one[1], other[1])  # type: ignore[arg-type]


@pytest.mark.skipif(not _engines["fused"].works, reason=_engines["fused"].reason)
@pytest.mark.parametrize("size", [2, 3])
def test_many_features_without_shared_memory(size: int) -> None:
    """Sums would be more to send than rows, so rows are cut."""
    for seed in range(2):
        whole = drawn(1000, seed, d=16)
        share = _engines["fused"].run_distributed
        assert share is not None
        assert share(whole, Threads(0, size, [], threading.Barrier(1))) is None
        for got in exchanged(whole, size, "fused"):
            for one, other in zip(got, _engines["fused"].run(whole), strict=True):
                bound = 30 * torch.finfo(whole.q.dtype).eps
                torch.testing.assert_close(one, other, rtol=bound, atol=bound)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(not _engines["fused"].works, reason=_engines["fused"].reason)
def test_a_rank_that_waits_in_vain(one_thread: None) -> None:
    asked: list[float] = []
    share = _engines["fused"].run_distributed
    assert share is not None

    def ranks(monitor: Callable[[float], bool]) -> Threads:
        """Two, of which the other never comes."""
        return Threads(0, 2, [], threading.Barrier(1), torch.zeros(1 << 20, dtype=torch.uint8), monitor)

    def patient(waited: float) -> bool:
        asked.append(waited)
        return len(asked) < 4

    with pytest.raises(ConnectionError, match="closed"):
        share(drawn(900, 0), ranks(patient))
    assert len(asked) == 4
    assert sorted(asked) == asked
    assert 0.05 < asked[-1] < 10.0

    def interrupted(waited: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(drawn(900, 0), ranks(interrupted))

    def impatient(waited: float) -> bool:
        raise TimeoutError("Timed out")

    with pytest.raises(ConnectionError, match="Timed out"):
        share(drawn(900, 0), ranks(impatient))
    short = Threads(0, 2, [], threading.Barrier(1), torch.zeros(4096, dtype=torch.uint8))
    short.shared_memory = lambda bytes: short.shared  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="the shared memory is too small"):
        share(drawn(900, 0), short)


@pytest.mark.skipif(not _engines["fused"].works, reason=_engines["fused"].reason)
def test_problems_of_another_kind_need_no_shared_memory() -> None:
    def none(bytes: int) -> Any:
        raise AssertionError("asked for memory")

    ranks = Threads(0, 2, [], threading.Barrier(1))
    ranks.shared_memory = none  # type: ignore[method-assign]
    share = _engines["fused"].run_distributed
    assert share is not None
    whole = drawn(900, 0)
    for other in (replace(whole, causal=True), replace(whole, q=whole.v), replace(whole, v=None), drawn(500, 0)):
        assert share(other, ranks) is None


@pytest.mark.skipif(not _engines["fused"].works, reason=_engines["fused"].reason)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mask", ["full", "causal", "causal, skip_self"])
@pytest.mark.parametrize("size", [1.0, 6.0])
@pytest.mark.usefixtures("one_thread")
def test_groups_of_rows_side_by_side_have_the_bits_of_each_alone(mask: str, dtype: torch.dtype, size: float) -> None:
    # wide keys: many rows meet them in gangs of groups (of one thread: many would find too few), 64 rows are too few for that
    rng = np.random.default_rng(5)
    q, k, v = (torch.from_numpy(rng.standard_normal((2100, 48))).to(dtype) for _ in range(3))
    given = {"causal": False, "window": None, "skip_self": False} | MASKS[mask]
    whole = Problem(size * q, k, v, None, "softmax", visible=None, **given)
    run = _engines["fused"].run
    output, logsumexp = run(whole)
    for start in range(0, 2100, 64):
        rows = slice(start, min(start + 64, 2100))
        one, level = run(whole.take_rows(rows))
        assert torch.equal(one, output[..., rows, :])  # type: ignore[index, arg-type]
        assert torch.equal(level, logsumexp[..., rows])  # type: ignore[index, arg-type]
