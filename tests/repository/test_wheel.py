"""The wheel contains all files that the package reads at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_is_complete_without_its_kernels(tmp_path: Path) -> None:
    """Without a C++ compiler the package is complete except for the compiled engines, and records the reason."""
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    options = ["-C", f"build-dir={tmp_path / 'build'}", "-C", "cmake.define.ATTRACTOR_KERNELS=OFF"]
    subprocess.run([*build, *options, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("attractor-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        reason = archive.read("attractor/engines/not_built.txt").decode()
    assert {"attractor/py.typed", "attractor/references.bib", "attractor/__init__.py"} <= names
    assert "ATTRACTOR_KERNELS=OFF" in reason
    assert "attractor = attractor.cli.main:main" in scripts
