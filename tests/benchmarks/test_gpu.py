"""The rows of the GPU, as far as a CPU can tell."""

from __future__ import annotations

import pytest
import torch
from benchmarks.racing import run_contest, sampled_error, uniform

from benchmarks import Settings, Skip, gpu


@pytest.mark.parametrize("make", [gpu.naive, gpu.chunked])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-14)])
def test_the_peers_are_right(make, dtype: str, tolerance: float) -> None:
    x = uniform(2500, 3, 0, dtype)  # more than a chunk
    assert sampled_error(make(x)(), x, seed=0) < tolerance
    assert sampled_error(make(x)()[:-1], x, seed=0) == float("inf")


def test_the_time_of_fewer_tokens_is_scaled_to_the_pairs() -> None:
    x = uniform(8, 3, 0)
    call = gpu.Sized(gpu.naive(x), x, 16.0)
    result, points = call()
    assert call.factor == 16.0
    assert points is x
    assert result.shape == x.shape


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_row_is_skipped_with_the_reason() -> None:
    for contest in gpu.contests(Settings(rounds=1, quick=True)):
        entries = run_contest(contest, Settings(rounds=1, quick=True))["contenders"]
        assert {entry["status"] for entry in entries} == {"skipped"}
        assert entries[0]["reason"] == "there is no CUDA device here"
    with pytest.raises(Skip, match="no CUDA device"):
        gpu.require_gpu()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_the_peers_run() -> None:
    x = uniform(512, 3, 0, "float32").cuda()
    for make in (gpu.sdpa, gpu.naive, gpu.chunked):
        seconds, result = gpu.time_by_events(gpu.Sized(make(x), x, 1.0))
        assert seconds > 0
        assert sampled_error(result[0], x, seed=0) < 1e-4
