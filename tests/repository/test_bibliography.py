"""The one bibliography parses, and everything that is cited is in it."""

from __future__ import annotations

import re
from pathlib import Path

from pybtex.database import BibliographyData, parse_file

ROOT = Path(__file__).parents[2]
BIBLIOGRAPHY = ROOT / "src" / "attractor" / "references.bib"


def entries() -> BibliographyData:
    return parse_file(str(BIBLIOGRAPHY), bib_format="bibtex")


def test_keys_are_unique() -> None:
    keys = re.findall(r"^@\w+\{([^,]+),", BIBLIOGRAPHY.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(keys) == len({key.lower() for key in keys})
    assert set(keys) == set(entries().entries)


def test_every_entry_can_be_cited() -> None:
    for key, entry in entries().entries.items():
        assert entry.persons.get("author"), key
        assert entry.fields.get("title"), key
        assert re.fullmatch(r"\d{4}", entry.fields["year"]), key


def test_the_documentation_cites_known_keys() -> None:
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    cited = {key.strip() for keys in re.findall(r"\{cite:\w+\}`([^`]+)`", text) for key in keys.split(",")}
    assert cited
    assert cited <= set(entries().entries)


def test_the_code_cites_known_keys() -> None:
    """Docstrings cite as [key; key], ``citations`` returns strings."""
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("examples/*.py")]
    text = "\n".join(source.read_text(encoding="utf-8") for source in sources)
    cited = set(re.findall(r"[\[\"; ]([a-z]+(?:19|20)\d{2}[a-z]+)[\]\";]", text))
    assert cited
    assert cited <= set(entries().entries)


def test_the_paper_cites_its_bibliography_and_has_its_sections() -> None:
    text = (ROOT / "paper" / "paper.md").read_text(encoding="utf-8")
    body = text.split("---", 2)[2]
    cited = set(re.findall(r"@([a-z]+[0-9]{4}[a-z]+)", body))
    assert cited == set(parse_file(str(ROOT / "paper" / "paper.bib"), bib_format="bibtex").entries)
    sections = re.findall(r"^# (.+)$", body, re.MULTILINE)
    expected = ["Summary", "Statement of need", "State of the field", "Software design", "Research impact statement"]
    assert sections == [*expected, "AI usage disclosure", "References"]
    for picture in re.findall(r"\]\(([^)]+\.png)\)", body):
        assert (ROOT / "paper" / picture).is_file()
