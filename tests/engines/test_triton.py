"""The Triton engine agrees with the reference: on a GPU where there is one, else in Triton's own interpreter on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attractor.engines import Problem, attend, dispatch, triton
from attractor.errors import UnsupportedError

HERE = Path(__file__).parent
installed = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")


@installed
@pytest.mark.slow
def test_its_kernels_agree_with_the_reference_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(HERE / "matrix.py"), "triton", "24", "2", "40"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    calls, skipped, _ = (int(word) for word in done.stdout.split() if word.isdigit())
    assert calls == 24
    assert skipped < 10


@pytest.mark.gpu
@pytest.mark.skipif(bool(triton.reason), reason=f"the triton engine does not work here: {triton.reason}")
def test_its_kernels_agree_with_the_reference_on_the_gpu() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "matrix.py"), "triton", "60", "3", "5000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@installed
@pytest.mark.slow
def test_pairs_computed_once_agree_with_the_reference_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_symmetric.py"), "12", "3", "100"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@installed
@pytest.mark.slow
def test_kernels_of_pairs_computed_once_compile_for_a_gpu_without_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_compile.py"), "90"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert all(int(word) > 0 for word in done.stdout.split() if word.isdigit())
    assert len(done.stdout.splitlines()) == 2


@pytest.mark.gpu
@pytest.mark.skipif(bool(triton.reason), reason=f"the triton engine does not work here: {triton.reason}")
def test_pairs_computed_once_agree_with_the_reference_on_the_gpu() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "triton_symmetric.py"), "120", "1", "9000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(bool(triton.reason), reason=f"the triton engine does not work here: {triton.reason}")
def test_the_same_bits_where_they_are_asked_for() -> None:
    x = torch.nn.functional.normalize(torch.randn(40000, 3, device="cuda"), dim=-1)
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (attend(9 * x, x, x, engine="triton")[0] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)


@pytest.mark.gpu
@pytest.mark.skipif(bool(triton.reason), reason=f"the triton engine does not work here: {triton.reason}")
@pytest.mark.parametrize("width", [None, 1e-3], ids=["uniform", "one cluster"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 2e-6), (torch.float64, 1e-14)])
def test_sums_over_many_keys_stay_accurate(dtype: torch.dtype, allowed: float, width: float | None) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(262144, 3, generator=generator, device="cuda", dtype=torch.float64)
    # in a cluster all terms of a sum are alike, and so is their rounding
    x = torch.nn.functional.normalize(x if width is None else x.new_tensor([1.0, 0.7, -0.4]) + width * x, dim=-1)
    x = x.to(dtype).double()
    found, _ = attend((9 * x).to(dtype), x.to(dtype), x.to(dtype), engine="triton")
    rows = torch.cat([torch.arange(128), torch.arange(0, len(x), 1024), torch.arange(len(x) - 128, len(x))]).cuda()
    expected = (9 * x[rows] @ x.T).softmax(-1) @ x
    assert found is not None
    error = (found[rows].double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(error.max()) <= allowed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so() -> None:
    x = torch.ones(3, 2)
    with pytest.raises(UnsupportedError, match=r"engine 'triton' does not work here: .*(NVIDIA GPU|not installed)"):
        attend(x, x, x, engine="triton")
    assert attend(x, x, x)[0] is not None
    assert not dispatch._engines["triton"].works


def test_it_says_what_it_cannot_do() -> None:
    def question(x: torch.Tensor, window: int | None = None) -> Problem:
        return Problem(x, x, x, None, "softmax", False, window, None, False)

    assert "float32 and float64" in triton.obstacle(question(torch.ones(3, 2, dtype=torch.float16)))
    assert "not on a GPU" in triton.obstacle(question(torch.ones(3, 2)))
    assert not triton.accepts(question(torch.ones(3, 200)))
