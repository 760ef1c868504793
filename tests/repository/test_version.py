"""The version is the same in the package, its metadata, the changelog and the citation files."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import yaml

import attractor

ROOT = Path(__file__).parents[2]


def test_installed_version() -> None:
    assert metadata.version("attractor") == attractor.__version__


def test_pyproject_reads_the_version_from_the_package() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in pyproject
    assert 'input = "src/attractor/_version.py"' in pyproject


def test_citation_file() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(citation["version"]) == attractor.__version__
    assert citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_changelog_heads_with_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert headings[:2] == ["Unreleased", attractor.__version__]


def test_bibliography_cites_the_version() -> None:
    bibliography = (ROOT / "src" / "attractor" / "references.bib").read_text(encoding="utf-8")
    assert f"Version {attractor.__version__}" in bibliography
