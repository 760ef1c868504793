"""Redraw the figures of the documentation (examples and stored benchmarks) with a 256-color palette. Takes about a minute:

python docs/figures.py [NAME ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.program import draw
from PIL import Image

ROOT = Path(__file__).parents[1]
GALLERY = ROOT / "docs" / "_static" / "gallery"
COLORS = 256


def main() -> None:
    GALLERY.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:]
    for script in sorted((ROOT / "examples").glob("*.py")):
        if wanted and script.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            quiet = {**os.environ, "MPLBACKEND": "agg"}
            subprocess.run([sys.executable, str(script)], cwd=folder, env=quiet, check=True)
            quantize(Path(folder) / f"{script.stem}.png", GALLERY / f"{script.stem}.png")
    for report in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        measured = json.loads(report.read_text(encoding="utf-8"))
        if measured.get("schema") == "benchmarks/1" and (not wanted or report.stem in wanted):
            figure = draw(measured, report.with_suffix(".png"))
            quantize(figure, figure)


def quantize(figure: Path, target: Path) -> None:
    """Save a figure with few colors, which makes the file several times smaller."""
    Image.open(figure).convert("RGB").quantize(COLORS).save(target, optimize=True)


if __name__ == "__main__":
    main()
