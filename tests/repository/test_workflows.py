"""The files of the public CI are valid, and what they call exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(path: Path) -> None:
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML reads the key `on` as true
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in workflow["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            command = step.get("run", "")
            assert set(re.findall(r"\bmake ([a-z]+)", command)) <= targets
            for script in re.findall(r"\bbash (\S+)", command):
                assert (ROOT / script).is_file()


def test_the_tag_of_a_release_is_compared_with_the_version() -> None:
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (pattern,) = re.findall(r"sed -n 's/(.*?)/\\1/p' (\S+)\)", release)
    text = (ROOT / pattern[1]).read_text()
    expression = pattern[0].replace(r"\(", "(").replace(r"\)", ")")
    assert re.search(expression, text, re.MULTILINE)


def test_dependabot_and_issue_forms() -> None:
    assert yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["version"] == 2
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        assert all(part["type"] in ("textarea", "input", "markdown", "dropdown", "checkboxes") for part in form["body"])
