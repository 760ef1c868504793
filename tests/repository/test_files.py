"""The shape of the tree: small files, names that say something, tests that mirror the package."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "attractor"
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py")])
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{lines} lines: split it"
    assert path.stem not in VAGUE


def test_tests_mirror_the_package() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages
    assert {name for name in packages if not list((ROOT / "tests" / name).glob("test_*.py"))} == set()


def test_no_registry_is_named() -> None:
    """Installs use whatever index the machine is set up with."""
    configuration = ["pyproject.toml", "constraints.txt", "Makefile", ".ci/run", ".pre-commit-config.yaml"]
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in configuration)
    assert "://" not in text
    assert "index-url" not in text
