"""Pictures, links and make targets that the pages name exist, and the API page names everything public."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
WRITTEN = {
    "theorems",
    "performance",
    "gallery",
    "commands",
}  # pages of docs/generated that the documentation writes when it is built
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    if page.parent.name not in ("_build", "generated")
)
SPACES = {
    name: importlib.import_module(name)
    for name in (
        "attractor", "attractor.observables", "attractor.theory", "attractor.nn", "attractor.models", "attractor.meanfield",
        "attractor.plotting", "attractor.engines", "attractor.errors",
    )
}  # fmt: skip


def anchors(page: Path) -> set[str]:
    """What may follow a # in a link to a page: its headings, as GitHub and MyST spell them, and its labels."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    heads = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    words = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {word.replace(" ", "-") for word in words} | set(
        re.findall(r"^\(([\w-]+)\)=$", page.read_text(encoding="utf-8"), re.M)
    )


def targets(page: Path) -> list[tuple[str, str]]:
    """Local files that a page links or shows, and the part of each that is meant."""
    text = page.read_text(encoding="utf-8")
    inline = [child for token in MarkdownIt().parse(text) for child in token.children or []]
    links = [str(child.attrs.get("href") or child.attrs.get("src") or "") for child in inline]
    links += re.findall(r"^(?:```\{(?:image|figure)\}|:img-top:) (\S+)$", text, re.MULTILINE)
    local = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    return [(link.split("#")[0], link.partition("#")[2]) for link in local]


def missing(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for file, part in targets(page):
        place = page.parent / file if file else page
        if place.parent.name == "generated" and place.stem in WRITTEN:
            continue
        if not place.exists() or (part and place.suffix == ".md" and part not in anchors(place)):
            found.append(f"{file}#{part}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_resolve(page: Path) -> None:
    assert not missing(page)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One head\n\n[a](#one-head) [b](#two) [c](page.md#one-head) [d](other.md) ![e](none.png)\n", encoding="utf-8"
    )
    assert missing(page) == ["#two", "other.md#", "none.png#"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert not {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)}


def public(namespace: ModuleType) -> set[str]:
    """What a namespace offers: ``__all__``, or every class it defines."""
    own = [name for name, thing in vars(namespace).items() if getattr(thing, "__module__", "") == namespace.__name__]
    names = getattr(namespace, "__all__", [name for name in own if name[0].isupper()])
    return {name for name in names if not name.startswith("_") and not isinstance(getattr(namespace, name), ModuleType)}


@pytest.mark.parametrize("namespace", SPACES.values(), ids=list(SPACES))
def test_the_api_page_names_everything_public(namespace: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ([A-Za-z]\w*)$", page, re.MULTILINE)) | set(re.findall(r"`[\w.]+\.(\w+)`", page))
    assert public(namespace) <= listed


def test_every_page_is_in_a_table_of_contents() -> None:
    trees = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/index.md")]
    listed = [block for tree in trees for block in re.findall(r"\{toctree\}\n(.*?)```", tree, re.DOTALL)]
    entries = {line.split("/")[-1] for block in listed for line in block.split()}
    assert not {page.stem for page in PAGES if "docs" in page.parts and page != ROOT / "docs" / "index.md"} - entries


def test_the_pages_that_are_written_have_what_they_are_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    gallery, performance = importlib.import_module("gallery_page"), importlib.import_module("performance_page")
    page = gallery.page()
    assert all(f"examples/{script.name}" in page for script in gallery.scripts())
    page = importlib.import_module("commands_page").page()
    assert "### study-results" in page
    assert "| `--seed` `N` | Seed of the random start. | `0` |" in page
    page = performance.page()
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert path.name in page, f"docs/performance_page.py does not know the schema of {path.name}"
    assert performance.duration(0.25) == "250 ms"
