"""Memory: what there is, what was used, and the refusal of what cannot be had."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest
import torch

import attractor as at
from attractor import memory
from attractor.engines import attend
from attractor.errors import MemoryShortageError

GIB = 1 << 30


@pytest.fixture
def poor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with one GiB left."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", path)


def test_what_is_available(poor: None) -> None:
    assert memory.available() == GIB


@pytest.mark.parametrize("unified", [True, False])
def test_the_limit_of_a_container(unified: bool, poor: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The nearest limit of the groups above a process counts, and page cache in them is as good as free."""
    root = tmp_path if unified else tmp_path / "memory"
    limit, used, cached = memory.UNIFIED if unified else memory.SPLIT
    for folder, bound, held in (("", GIB // 2, GIB // 4), ("a", GIB, 0), ("a/b", None, 0)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / limit).write_text(str(bound) if bound else "max" if unified else str((1 << 63) - 4096))
        (root / folder / used).write_text(f"{held}\n")
        (root / folder / "memory.stat").write_text(
            "anon 5\n" + "".join(f"{name} {GIB // 8 // len(cached) if held else 0}\n" for name in cached)
        )
    (tmp_path / "self").write_text("0::/a/b\n" if unified else "4:cpu,memory:/a/b\n3:cpuset:/\n")
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    monkeypatch.setattr(memory, "SELF", tmp_path / "self")
    memory._groups.cache_clear()
    try:
        assert memory.cgroup_memory_left() == GIB // 2 - GIB // 4 + GIB // 8 // len(cached) * len(cached)
        assert memory.available() == memory.cgroup_memory_left()
        (root / used).write_text("not a number")
        assert memory.available() == GIB
    finally:
        memory._groups.cache_clear()


def test_without_that_file_the_system_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "none")
    free = memory.available()
    assert free is None or free > 0


def test_the_peak_never_falls_and_sees_an_array() -> None:
    before = memory.peak()
    assert before is not None
    block = np.ones(1 << 25)
    after = memory.peak()
    assert after is not None
    assert after >= max(before, block.nbytes)
    run = at.flow(at.Attention.isotropic(2, 1.0), at.Tokens.uniform(4, 2), space=at.Sphere(), until=1.0)
    assert run.stats.peak_memory is not None
    assert run.stats.peak_memory >= after


@pytest.mark.parametrize(("power", "fit"), [(1, "250 tokens"), (2, "500 tokens")])
def test_the_refusal_says_what_would_fit(poor: None, power: int, fit: str) -> None:
    memory.check(GIB, 1000, "this", power=power)
    with pytest.raises(
        MemoryShortageError, match=f"memory for this: about 4 GiB are needed and 1 GiB are free; {fit} would fit"
    ):
        memory.check(4 * GIB, 1000, "this", power=power)
    with pytest.raises(MemoryError, match="not even one token"):
        memory.check(1e4 * GIB, 1000, "this")


def test_a_run_is_refused_before_it_begins(poor: None) -> None:
    law = at.Attention.isotropic(3, 1.0)
    with pytest.raises(
        MemoryShortageError, match=r"a run of 1,000,000 tokens of dimension 3 by dop853 with 11 .* would fit"
    ):
        at.flow(law, at.Tokens.uniform(1_000_000, 3), space=at.Sphere(), until=1.0)
    with pytest.raises(MemoryShortageError, match="or save fewer states"):
        at.flow(law, at.Tokens.uniform(50_000, 3), space=at.Sphere(), until=1.0, save=1000)


def test_what_is_said_to_fit_is_not_refused(poor: None) -> None:
    """The number in the sentence, taken at its word."""
    from attractor.solvers.run import check_footprint
    from attractor.solvers.steppers.dormand_prince import Dop853

    with pytest.raises(MemoryShortageError) as error:
        check_footprint((10**9, 3), Dop853(), 2, 8)
    fit = int(str(error.value).split("; ")[1].split(" ")[0].replace(",", ""))
    check_footprint((fit, 3), Dop853(), 2, 8)
    with pytest.raises(MemoryShortageError):
        check_footprint((int(1.2 * fit), 3), Dop853(), 2, 8)


def test_a_start_is_refused_before_it_is_drawn() -> None:
    with pytest.raises(MemoryShortageError, match="a start of 1,000,000,000,000 tokens"):
        at.Tokens.uniform(10**12, 3)


def test_all_pairs_at_once_are_refused(poor: None) -> None:
    x = torch.zeros(20_000, 3)
    with pytest.raises(
        MemoryShortageError, match=r"20,000 x 20,000 pairs .* 8,100 tokens would fit, and other engines"
    ):
        attend(x, x, x, engine="reference")
    output, _ = attend(x[:100], x, x, engine="reference")
    assert output is not None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not asked")
def test_freed_memory_is_handed_back() -> None:
    """Blocks that the C library keeps below one that is still in use."""
    held = lambda: int(Path("/proc/self/statm").read_text().split()[1])  # noqa: E731
    memory.trim()
    before = held()
    blocks = [bytearray(b"x" * 60_000) for _ in range(1000)]
    last, kept = blocks[-1], held()
    blocks.clear()
    assert memory.trim()
    assert len(last) == 60_000
    assert held() - before < (kept - before) / 4


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    memory._malloc_trim.cache_clear()
    assert not memory.trim()
    memory._malloc_trim.cache_clear()
