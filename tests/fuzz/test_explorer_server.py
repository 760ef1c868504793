"""The explorer's server under nonsense, crowds and floods for a long time: nothing crashes, nothing is left, the processor is idle again.

A case is 2,000 malformed messages, 50 clients with 10 runs each and 2,000 connections that send nothing. The small setting is
``tests/explorer/test_server.py``.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from tests.explorer.test_server import (
    SMALL,
    Client,
    count_descriptors,
    cpu_seconds,
    crowd,
    flood,
    is_idle,
    linux,
    read_memory,
    send_nonsense,
    wait_for,
    worker_pids,
)

from attractor.explorer import Explorer


@linux
@pytest.mark.timeout(3600)
def test_the_server_survives(fuzz: Any, capfd: Any) -> None:
    if not fuzz.long:
        pytest.skip("the small setting is in tests/explorer")
    served = Explorer("<!doctype html>")
    thread = threading.Thread(target=served.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        crowd(served, 4, 2)
        time.sleep(0.5)
        threads, descriptors, memory = threading.active_count(), count_descriptors(), read_memory()
        workers = set(worker_pids(served))
        for seed in fuzz.seeds(0, 20):
            send_nonsense(served, 2000, seed)
            crowd(served, 50, 10)
            for _ in range(5):
                flood(served, 400)
            assert wait_for(lambda: is_idle(served, threads), 60.0), f"seed {seed}: {threading.enumerate()}"
            assert wait_for(lambda: count_descriptors() <= descriptors + 2), f"seed {seed}"
            assert read_memory() < memory + (96 << 20), f"seed {seed}"
            assert workers <= set(worker_pids(served)), f"seed {seed}: a worker died"
            assert Client(served).run(SMALL)[-1]["kind"] == "end"
        before = cpu_seconds(served)
        time.sleep(2.0)
        assert cpu_seconds(served) - before < 0.4
        assert "internal error" not in capfd.readouterr().err
    finally:
        served.shutdown()
        served.close()
        thread.join()
