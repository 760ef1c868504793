"""The built documentation: links resolve, pages are accessible and fit narrow windows. ``make docs`` runs this after the build."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

from attractor.theory import list_theorems

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
AXE = ROOT / "build" / "axe" / "axe.min.js"  # .ci/run downloads it
# one page of each kind
PAGES = (
    "index",
    "coming_from",
    "tutorials/00_first_flow",
    "checkpoints",
    "benchmarks",
    "generated/gallery",
    "generated/commands",
)

pytestmark = pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the documentation is not built: make docs")


class Targets(HTMLParser):
    """Links, embedded files and identifiers of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.names.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def test_links_of_the_site_resolve() -> None:
    pages = {page: Targets(page) for page in SITE.rglob("*.html") if "_static" not in page.parts}
    assert len(pages) > 50
    broken = []  # fragments of links from source code to the API are made by an extension of Sphinx
    for page, found in pages.items():
        for link in found.links:
            address, part = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            target = (page.parent / unquote(address.partition("?")[0])).resolve() if address else page
            if not target.exists():
                broken.append(f"{page.relative_to(SITE)}: {link}")
            elif part and "_modules" not in page.parts and target in pages and unquote(part) not in pages[target].names:
                broken.append(f"{page.relative_to(SITE)}: {link} has no such part")
    assert not broken, "\n".join(broken[:30])


def test_theorems_that_the_explorer_links_to_have_sections() -> None:
    """The page makes the addresses of sections from the keys and titles of theorems."""
    source = (ROOT / "src" / "attractor" / "explorer" / "page" / "theory.js").read_text(encoding="utf-8")
    keys = set(re.findall(r'"((?:consensus|regimes|meanfield)\.[\w.-]+)": "', source))
    sections = Targets(SITE / "generated" / "theorems.html").names
    for theorem in list_theorems():
        if theorem.key in keys:
            assert re.sub("[^a-z0-9]+", "-", f"{theorem.key}: {theorem.title}".lower()) in sections
    assert len(keys) > 10
    assert "theorems.html" in (SITE / "explore.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def window(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    yield opened
    opened.close()


@pytest.mark.browser
@pytest.mark.parametrize("name", PAGES)
def test_page(name: str, window: Any) -> None:
    """No fault that axe-core finds in light and dark, no request elsewhere, and no page wider than a phone."""
    if not AXE.exists():
        pytest.skip("axe-core is not here: .ci/run downloads it")
    outside: list[str] = []
    window.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:", "blob:")) else outside.append(request.url),
    )
    window.set_viewport_size({"width": 1280, "height": 900})
    window.goto((SITE / f"{name}.html").as_uri())
    window.add_script_tag(path=str(AXE))
    for theme in ("light", "dark"):
        window.evaluate("theme => { document.body.dataset.theme = theme }", theme)
        found = window.evaluate("() => axe.run({ runOnly: ['wcag2a', 'wcag2aa'] })")
        faults = {row["id"]: [node["html"][:120] for node in row["nodes"][:3]] for row in found["violations"]}
        assert not faults, f"{theme}: {json.dumps(faults, indent=1)}"
    window.set_viewport_size({"width": 390, "height": 800})
    assert window.evaluate("document.documentElement.scrollWidth") <= 390
    assert not outside
