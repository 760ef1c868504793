"""Draws the pictures of the documentation again, in few colours: every example's, and those of the stored benchmarks. About a minute:

python docs/pictures.py [NAME ...]
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
KEPT = ROOT / "docs" / "_static" / "gallery"
COLOURS = 256


def main() -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:]
    for script in sorted((ROOT / "examples").glob("*.py")):
        if wanted and script.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            quiet = {**os.environ, "MPLBACKEND": "agg"}
            subprocess.run([sys.executable, str(script)], cwd=folder, env=quiet, check=True)
            keep(Path(folder) / f"{script.stem}.png", KEPT / f"{script.stem}.png")
    for report in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        measured = json.loads(report.read_text(encoding="utf-8"))
        if measured.get("schema") == "benchmarks/1" and (not wanted or report.stem in wanted):
            picture = draw(measured, report.with_suffix(".png"))
            keep(picture, picture)


def keep(picture: Path, place: Path) -> None:
    """A picture with fewer colours takes a fraction of the room."""
    Image.open(picture).convert("RGB").quantize(COLOURS).save(place, optimize=True)


if __name__ == "__main__":
    main()
