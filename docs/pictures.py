"""Draws the pictures of the gallery again: runs every example and keeps its picture, in few colours. About a minute:

python docs/pictures.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "_static" / "gallery"
COLOURS = 64


def main() -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:]
    for script in sorted((ROOT / "examples").glob("*.py")):
        if wanted and script.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            quiet = {**os.environ, "MPLBACKEND": "agg"}
            subprocess.run([sys.executable, str(script)], cwd=folder, env=quiet, check=True)
            picture = Image.open(Path(folder) / f"{script.stem}.png").convert("RGB")
            picture.quantize(COLOURS).save(KEPT / f"{script.stem}.png", optimize=True)


if __name__ == "__main__":
    main()
