"""Every code block of README and the documentation runs as written.

Python fences of one file share a namespace and a temporary directory, in reading order. Lines of shell fences that
start with ``attractor`` run in the same directory; other lines may only install, build or start processes. A ``text`` fence
directly after a python fence holds the expected output. The comment ``<!-- not run: reason -->`` directly above a fence skips it.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from attractor.observables import registry

ROOT = Path(__file__).parents[2]
DOCS = [page for page in ROOT.glob("docs/**/*.md") if page.parent.name not in ("_build", "generated")]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS])
SHELLS = {"bash", "sh", "shell", "console"}
LANGUAGES = {"python", "text", "toml", "json", *SHELLS}
ELSEWHERE = {"make", "pip", "torchrun", "python", "python3", "git"}  # commands that other tests or CI run
# Accepted reasons for not running a block: it needs hardware, files, a network or time that a test does not have.
REASON = re.compile(r"minute|hour|long|GPU|CUDA|process|yours|killed|fetch|download|network|browser", re.IGNORECASE)


@dataclass(frozen=True)
class Block:
    language: str
    source: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    """Fences of a page that are run."""
    found: list[Block] = []
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    for previous, token, following in zip([None, *tokens], tokens, [*tokens[1:], None], strict=False):
        if token.type != "fence" or token.map is None:
            continue
        if previous is not None and previous.type == "html_block" and previous.content.startswith("<!-- not run:"):
            continue
        printed = following is not None and following.type == "fence" and following.info.strip() == "text"
        found.append(Block(token.info.strip(), token.content, token.map[0] + 1, following.content if printed else None))
    return found


def left_out(page: Path) -> list[str]:
    """Reasons that a page gives for fences that are not run."""
    tokens = MarkdownIt().parse(page.read_text(encoding="utf-8"))
    comments = [token.content for token in tokens if token.type == "html_block"]
    return [text.partition("not run:")[2].partition("-->")[0].strip() for text in comments if "not run" in text]


def run_python(block: Block, page: Path, namespace: dict[str, object]) -> None:
    # Blank lines in front make a traceback point at the line of the page.
    code = compile("\n" * block.line + block.source, str(page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    if block.output is not None:
        assert printed.getvalue().strip() == block.output.strip(), f"{page.name}:{block.line} prints something else"


def run_shell(block: Block, page: Path) -> None:
    for line in block.source.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] != ["attractor"]:
            continue
        # in this process: a new one would spend most of its time on imports
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as complaints:
            code = exit_code(words[1:])
        assert code == 0, f"{page.name}:{block.line}: {line}\n{complaints.getvalue()}"


def exit_code(words: list[str]) -> int:
    """Exit code of ``attractor`` with these arguments."""
    from attractor.cli.main import run

    try:
        return run(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    # observables that a page registers must not remain registered
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language in SHELLS:
            run_shell(block, page)


def test_the_pages_contain_code() -> None:
    """The search for fences finds them."""
    languages = [block.language for page in PAGES for block in blocks(page)]
    assert languages.count("python") >= 10
    assert any(language in SHELLS for language in languages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_fence_is_run_or_gives_a_reason(page: Path) -> None:
    """Every fence has a known language and known commands, and every skipped fence gives an accepted reason."""
    unknown = {block.language for block in blocks(page) if not block.language.startswith("{")} - LANGUAGES
    assert not unknown
    commands = {
        line.removeprefix("$ ").split()[0]
        for block in blocks(page)
        if block.language in SHELLS
        for line in block.source.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    }
    assert commands <= {"attractor", *ELSEWHERE}
    assert not [reason for reason in left_out(page) if not REASON.search(reason)]


@pytest.mark.parametrize("script", sorted(ROOT.glob("examples/*.py")), ids=lambda script: script.name)
def test_an_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(script), run_name="__main__")
    assert printed.getvalue().strip(), "an example prints its result"
    assert (tmp_path / f"{script.stem}.png").stat().st_size > 5_000, "an example draws NAME.png"
    assert (ROOT / "docs" / "_static" / "gallery" / f"{script.stem}.png").exists(), "run python docs/figures.py"
