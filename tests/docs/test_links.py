"""Pictures, links and make targets that the pages name exist, and the API page names everything public."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

import attractor
import attractor.observables

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md"), *ROOT.glob("*/README.md")]
)


def targets(page: Path) -> list[str]:
    """Local files that a page links or shows."""
    inline = [child for token in MarkdownIt().parse(page.read_text(encoding="utf-8")) for child in token.children or []]
    links = [str(child.attrs.get("href") or child.attrs.get("src") or "") for child in inline]
    return [link.split("#")[0] for link in links if link and not re.match(r"[a-z]+:|#", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_resolve(page: Path) -> None:
    missing = [target for target in targets(page) if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert not {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)}


def public(namespace: ModuleType) -> set[str]:
    """What a namespace offers: ``__all__``, or every name that is neither private nor a module."""
    names = getattr(namespace, "__all__", vars(namespace))
    return {name for name in names if not name.startswith("_") and not isinstance(getattr(namespace, name), ModuleType)}


@pytest.mark.parametrize("namespace", [attractor, attractor.observables], ids=lambda namespace: namespace.__name__)
def test_the_api_page_names_everything_public(namespace: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ([A-Za-z]\w*)$", page, re.MULTILINE))
    assert public(namespace) <= listed
