"""Every code block of README and the documentation runs as written.

Python fences of one file share a namespace and a temporary directory, in reading order. Lines of shell fences that
start with ``attractor`` run in the same directory. A ``text`` fence right after a python fence is what that block
prints. The comment ``<!-- not run: reason -->`` right above a fence leaves it out.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/tutorials/*.md")]
)
SHELLS = {"bash", "sh", "shell", "console"}


@dataclass(frozen=True)
class Block:
    language: str
    source: str
    line: int
    output: str | None


def blocks(page: Path) -> list[Block]:
    """The fences of a page that are to be run."""
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
        command = [str(Path(sys.executable).with_name("attractor")), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"{page.name}:{block.line}: {line}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            run_python(block, page, namespace)
        elif block.language in SHELLS:
            run_shell(block, page)


def test_the_pages_hold_code() -> None:
    """The search for fences finds them: a check on the check above."""
    languages = [block.language for page in PAGES for block in blocks(page)]
    assert languages.count("python") >= 10
    assert any(language in SHELLS for language in languages)


@pytest.mark.parametrize("script", sorted(ROOT.glob("examples/*.py")), ids=lambda script: script.name)
def test_an_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example says what it found"
