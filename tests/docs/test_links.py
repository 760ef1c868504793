"""Links, images and make targets of the pages exist, and the API page matches the package."""

from __future__ import annotations

import importlib
import itertools
import re
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
# pages that docs/conf.py writes to docs/generated
GENERATED = {"theorems", "performance", "gallery", "reproduced", "commands", "columns"}
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    if page.parent.name not in ("_build", "generated")
)


def anchors(page: Path) -> set[str]:
    """Targets of links into a page: its headings, as GitHub and MyST spell them, and its labels."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    heads = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    words = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {word.replace(" ", "-") for word in words} | set(
        re.findall(r"^\(([\w-]+)\)=$", page.read_text(encoding="utf-8"), re.M)
    )


def targets(page: Path) -> list[tuple[str, str]]:
    """Local files that a page links to or embeds, each with the fragment of the link."""
    text = page.read_text(encoding="utf-8")
    inline = [child for token in MarkdownIt().parse(text) for child in token.children or []]
    links = [str(child.attrs.get("href") or child.attrs.get("src") or "") for child in inline]
    links += re.findall(r"^(?:```\{(?:image|figure)\}|:img-top:) (\S+)$", text, re.MULTILINE)
    local = [link for link in links if link and not re.match(r"[a-z]+:", link)]
    return [(link.split("#")[0], link.partition("#")[2]) for link in local]


def missing(page: Path) -> list[str]:
    """Broken local links of a page."""
    found = []
    for file, part in targets(page):
        place = page.parent / file if file else page
        if place.parent.name == "generated" and place.stem in GENERATED:
            continue
        if not place.exists() or (part and place.suffix == ".md" and part not in anchors(place)):
            found.append(f"{file}#{part}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_local_links_resolve(page: Path) -> None:
    assert not missing(page)


def test_broken_links_are_found(tmp_path: Path) -> None:
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


def api_entries() -> list[tuple[str, str]]:
    """The entries of the API page: module and name."""
    found, module = [], ""
    for line in (ROOT / "docs" / "api.md").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif re.fullmatch(r"   [A-Za-z]\w*", line):
            found.append((module, line.strip()))
    return found


def test_every_entry_of_the_api_page_exists() -> None:
    missing = [
        f"{module}.{name}" for module, name in api_entries() if not hasattr(importlib.import_module(module), name)
    ]
    assert not missing


@pytest.mark.parametrize("module", ["attractor", "attractor.errors"])
def test_the_api_page_lists_every_public_name(module: str) -> None:
    namespace = importlib.import_module(module)
    defined = [name for name, item in vars(namespace).items() if getattr(item, "__module__", "") == module]
    names = getattr(namespace, "__all__", [name for name in defined if name[0].isupper()])
    public = {name for name in names if name[0] != "_" and not isinstance(getattr(namespace, name), ModuleType)}
    assert not public - {name for _, name in api_entries()}


def test_every_page_is_in_a_table_of_contents() -> None:
    trees = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/**/index.md")]
    listed = [block for tree in trees for block in re.findall(r"\{toctree\}\n(.*?)```", tree, re.DOTALL)]
    entries = {line.split("/")[-1] for block in listed for line in block.split()}
    assert (
        not {
            page.stem for page in PAGES if "docs" in page.relative_to(ROOT).parts and page != ROOT / "docs" / "index.md"
        }
        - entries
    )


def test_generated_pages_cover_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    gallery, performance = importlib.import_module("gallery_page"), importlib.import_module("performance_page")
    page = gallery.page()
    assert all(f"examples/{script.name}" in page for script in gallery.scripts())
    list_figures = importlib.import_module("attractor.papers").list_figures
    page = importlib.import_module("reproduced_page").page()
    assert all(f"`{figure.key}`" in page for figure in list_figures())
    page = importlib.import_module("commands_page").page()
    assert "### simulate" in page
    assert "`--seed`" in page
    page = importlib.import_module("columns_page").page()
    assert "| `value_index` |" in page
    assert "| `sink_weight` |" in page
    page = performance.page()
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert path.name in page, f"docs/performance_page.py does not recognise the schema of {path.name}"
    assert performance.duration(0.25) == "250 ms"
