"""Started by torchrun from test_process_group.py: several commands one after the other, each by all processes."""

from __future__ import annotations

import sys

from attractor.cli import main as cli

for arguments in (
    ["simulate", "--tokens", "16", "--until", "1", "--json", "--out", sys.argv[1]],
    ["simulate", "--tokens", "16", "--until", "1", "--out", sys.argv[1]],
    ["simulate", "--tokens", "16", "--rtol", "7"],
    ["simulate", "--no-such-option"],
    ["simulate", "--resume", sys.argv[1]],
):
    sys.stderr.write(f"exit code {cli.run(arguments)}\n")
