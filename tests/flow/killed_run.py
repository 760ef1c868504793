"""Started by torchrun from test_spread.py: the command line, with a checkpoint after every step and rank 1 killed in mid-run."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from typing import Any

from attractor import cli
from attractor.engines import spread
from attractor.flow.ranks import Ranks

beat = Ranks.beat


def deadly(self: Ranks, run: Any) -> float:
    if self.rank == 1 and run.accepted == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return beat(self, run)


spread.SMALLEST["cpu"] = 1
Ranks.beat = deadly  # type: ignore[method-assign]
store = importlib.import_module("attractor.flow.store")
store.INTERVAL, store.SHARE = 0.0, 1e9  # type: ignore[attr-defined]
cli.main(sys.argv[1:])
