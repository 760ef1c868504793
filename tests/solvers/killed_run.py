"""Started by torchrun from test_process_group.py: the command line, with a checkpoint after every step and rank 1 killed in mid-run.

The variable WHEN says when: before or among the pairs that ranks compute in shared memory; without it, after a step.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import Any

from attractor.cli import main as cli
from attractor.engines import distributed
from attractor.solvers.process_group import ProcessGroup

WHEN, CALLS = os.environ.get("WHEN"), []
synchronise, shared_memory = ProcessGroup.synchronise, ProcessGroup.shared_memory


def deadly(self: ProcessGroup, run: Any) -> float:
    if self.rank == 1 and run.accepted == 4 and not WHEN:
        end()
    return synchronise(self, run)


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def shared(self: ProcessGroup, bytes: int) -> Any:
    found = shared_memory(self, bytes)
    assert found is not None
    CALLS.append(1)
    if self.rank == 1 and len(CALLS) == 20 and WHEN == "before the pairs":
        end()
    if self.rank == 1 and len(CALLS) == 20 and WHEN == "among the pairs":
        threading.Timer(0.005, end).start()  # all of them take two some 10 milliseconds
    return found


distributed.MIN_PAIRS["cpu"] = 1
ProcessGroup.synchronise, ProcessGroup.shared_memory = deadly, shared  # type: ignore[method-assign]
store = importlib.import_module("attractor.solvers.store")
store.INTERVAL, store.SHARE = 0.0, 1e9  # type: ignore[attr-defined]
cli.main(sys.argv[1:])
