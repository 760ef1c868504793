"""Progress bars and lines on stderr."""

from __future__ import annotations

import pytest

from attractor.progress import is_shown, progress_bar, progress_lines


def test_a_bar_is_drawn_only_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    for wanted in (False, True):
        with progress_bar("work", wanted, total=2) as update:
            update(1, note="half")
            update(2, 2)
        printed = capsys.readouterr()
        assert printed.out == ""
        assert bool(printed.err) is wanted


def test_no_bar_where_stderr_is_no_terminal() -> None:
    assert not is_shown(None)
    assert is_shown(True, quiet=True)


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress_lines(None)("first")
    progress_lines(False)("second")
    assert capsys.readouterr().err == "first\n"
