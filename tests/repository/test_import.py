"""``import attractor`` loads torch, but none of the optional or command-line packages."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ["matplotlib", "plotly", "zarr", "typer", "rich", "PIL", "imageio_ffmpeg", "ot", "transformers"]
# Processor time, so that the load of the machine does not matter.
PROBE = f"""
import json, sys, time
import torch
before, start = set(sys.modules), time.process_time()
import attractor
seconds, added = time.process_time() - start, set(sys.modules) - before
print(json.dumps({{"seconds": seconds, "heavy": [name for name in {HEAVY!r} if name in added]}}))
"""


def test_import_is_light() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    assert report["heavy"] == []
    assert report["seconds"] < 2.0
